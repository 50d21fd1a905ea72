// Attention masks besides the causal one: documents, windows and dropout; and the cap of scores.
#pragma once
#include "philox.cuh"

// `documents` is null, or has the position in its sequence at which each token's document begins, less that
// of the first query, which never decreases along a sequence. A query sees the last `window` keys up to its
// own; 0: all of them. Queries are numbered from `position`, the position of the first, and a sequence has
// `keys` rows of keys. Scores are capped by cap * tanh(score / cap); 0: they are not.
//
// Only where GENERAL is defined is there a cap, or a position: tests at run time, and the code behind them,
// would make the kernels of other models slower.
#ifdef GENERAL
constexpr bool IS_GENERAL = true;
#else
constexpr bool IS_GENERAL = false;
#endif

struct Masks {
    const u32 *documents;
    Dropout dropout;
    u32 window;
    float cap;
    u32 position, keys;

    __device__ __forceinline__ bool has_cap() const { return IS_GENERAL && cap != 0.0f; }
    // Whether some query does not see the first keys.
    __device__ __forceinline__ bool has_first_keys() const { return documents || window; }
    // The first key that a query sees. It never decreases along a sequence.
    __device__ __forceinline__ u32 first_key(u32 sequence, u32 query, u32 time) const {
        if (query >= time) return 0;
        const u32 at = query + position;
        const u32 document = documents ? documents[u64(sequence) * time + query] + position : 0;
        return window && at >= window ? max(document, at - window + 1) : document;
    }
    // The end of the tiles of `step` queries, from tile `begin` on, in which a query sees a key before `end`.
    __device__ __forceinline__ u32 end_tile(u32 sequence, u32 begin, u32 step, u32 end, u32 time) const {
        const u32 tiles = (time + step - 1) / step;
        if (!has_first_keys()) return tiles;
        u32 tile = begin + 1;
        while (tile < tiles && first_key(sequence, tile * step, time) < end) ++tile;
        return tile;
    }
    // A capped score, divided by `scale`, of the score divided by `scale`.
    __device__ __forceinline__ float capped(float score, float scale) const {
        return cap * tanhf(score * scale / cap) / scale;
    }
    // The derivative of the cap at a capped score.
    __device__ __forceinline__ float slope(float capped) const {
        const float part = capped / cap;
        return 1.0f - part * part;
    }
    // Factors of the weights of query or query + 8 and key or key + 8, where bit 3 of both is 0: [0] and [1]
    // are of the first query, [0] and [2] of the first key. `line` is the index of a sequence and head.
    __device__ __forceinline__ Floats<4> factors(u32 line, u32 query, u32 key) const {
        const Words words =
            philox(dropout.key0, dropout.key1, pair(query), pair(key), line, 0);
        Floats<4> factors;
#pragma unroll
        for (int i = 0; i < 4; i++) factors.at[i] = dropout.factor(words.at[i]);
        return factors;
    }
    // The factor of one weight.
    __device__ __forceinline__ float factor(u32 line, u32 query, u32 key) const {
        return factors(line, query & ~8u, key & ~8u).at[query / 8 % 2 * 2 + key / 8 % 2];
    }
    __device__ __forceinline__ static u32 pair(u32 position) { return position / 16 * 8 + position % 8; }
};

#define MASKS_PARAMETERS                                                                                  \
    const u32 *__restrict__ documents, u32 key0, u32 key1, u32 threshold, float kept, u32 window, float cap, \
        u32 position, u32 rows_of_keys
#define ROWS_OF_KEYS (IS_GENERAL ? rows_of_keys : time)
#define MASKS \
    Masks{documents, {key0, key1, threshold, kept}, window, cap, IS_GENERAL ? position : 0, ROWS_OF_KEYS}
