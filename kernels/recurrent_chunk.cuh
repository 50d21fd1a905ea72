// Sizes and chunks of operators with a state over the sequence: the gated delta rule, and the scan of state
// spaces, whose keys are B, whose queries are C and whose values are x. The last chunk of a sequence may have
// fewer than CHUNK tokens.
#pragma once
#include "common.cuh"

struct Sizes {
    u32 time, key, value, width, values, channels, chunks;
    __device__ __forceinline__ u32 packed() const { return 2 * key * width + value * values; }
    __device__ __forceinline__ u64 state() const { return u64(width) * values; }
};
#define SIZES u32 time, u32 key, u32 value, u32 width, u32 values, u32 channels, u32 chunks
#define SIZES_OF \
    Sizes { time, key, value, width, values, channels, chunks }

// A chunk of a value head: where its rows are, and what its tokens see.
struct Chunk {
    Sizes sizes;
    // Index of the chunk, the value head and the sequence; position of the first token; number of tokens.
    u32 chunk, head, batch, start, n;
    const u32 *documents;

    __device__ __forceinline__ Chunk(Sizes sizes, u32 chunk, u32 head, u32 batch, const u32 *documents_bl)
        : sizes(sizes),
          chunk(chunk),
          head(head),
          batch(batch),
          start(chunk * CHUNK),
          n(min(u32(CHUNK), sizes.time - chunk * CHUNK)),
          documents(documents_bl ? documents_bl + u64(batch) * sizes.time + chunk * CHUNK : nullptr) {}

    // Index of a token's row in arrays of the outside, of key heads, and of value heads.
    __device__ __forceinline__ u64 row(u32 t) const { return u64(batch) * sizes.time + start + t; }
    __device__ __forceinline__ u64 key_row(u32 t) const {
        const u32 key_head = head / (sizes.value / sizes.key);
        return (u64(batch) * sizes.key + key_head) * sizes.time + start + t;
    }
    __device__ __forceinline__ u64 value_row(u32 t) const {
        return (u64(batch) * sizes.value + head) * sizes.time + start + t;
    }
    // Index of the state before the chunk.
    __device__ __forceinline__ u64 state() const {
        return ((u64(batch) * sizes.value + head) * sizes.chunks + chunk) * sizes.state();
    }

    __device__ __forceinline__ bool sees(u32 t, u32 s) const {
        return !documents || int(documents[t]) <= int(start + s);
    }
    // The first token of the chunk that token t sees.
    __device__ __forceinline__ int first_seen(u32 t) const {
        return documents ? int(documents[t]) - int(start) : 0;
    }
    // Position in the sequence of the first token of a token's document.
    __device__ __forceinline__ u32 first_token(u32 t) const { return documents ? documents[t] : 0; }
    // Whether token t sees the state before the chunk.
    __device__ __forceinline__ bool carries(u32 t) const {
        return !documents || int(documents[t]) < int(start);
    }
    __device__ __forceinline__ bool begins(u32 t) const {
        return documents && start + t > 0 && documents[t] == start + t;
    }

    // The decays of a channel since the chunk's beginning, until its end, and from s to t.
    __device__ __forceinline__ float sum(const float *sums, u32 t, u32 c) const {
        return sums[value_row(t) * sizes.channels + (sizes.channels > 1 ? c : 0)];
    }
    __device__ __forceinline__ float since(const float *sums, u32 t, u32 c) const {
        return carries(t) ? expf(sum(sums, t, c)) : 0.0f;
    }
    __device__ __forceinline__ float until(const float *sums, u32 s, u32 c) const {
        return sees(n - 1, s) ? expf(sum(sums, n - 1, c) - sum(sums, s, c)) : 0.0f;
    }
};
