// The gated delta rule, forward: five kernels over all chunks, of which only `states` follows their order.
//
// Launch: THREADS threads; `normalise` has a warp a row, `states` a block for STRIP columns of a head's
// state, the others a block for each chunk, head and sequence. Floor: f32 arrays of the workspace in and
// out, and 3 * width * values multiplications a token and head.
#include "gated_delta_rule.cuh"

// Normalised queries, over the root of their width, and keys.
template <typename T>
__device__ __forceinline__ void normalise(const T *qkv_blc, float *queries, float *keys, Sizes sizes,
                                          float epsilon, u32 count) {
    const u32 item = (blockIdx.x * THREADS + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (item >= count) return;
    // Items are ordered by row, then queries and keys, then head.
    const u32 head = item % sizes.key, kind = item / sizes.key % 2, row = item / sizes.key / 2;
    const u32 batch = row / sizes.time, width = sizes.width;
    const T *from = qkv_blc + u64(row) * sizes.packed() + (kind * sizes.key + head) * width;
    float square = 0.0f;
    for (u32 c = lane; c < width; c += WARP) square = fmaf(to_f32(from[c]), to_f32(from[c]), square);
    float factor = 1.0f / sqrtf(warp_sum(square) + epsilon);
    if (kind == 0) factor *= 1.0f / sqrtf(float(width));
    float *to = (kind == 0 ? queries : keys) +
                ((u64(batch) * sizes.key + head) * sizes.time + row % sizes.time) * width;
    for (u32 c = lane; c < width; c += WARP) to[c] = to_f32(from[c]) * factor;
}

// Sums of the logarithms of a chunk's decays, in order.
KERNEL __launch_bounds__(THREADS)
    cumulate(const float *__restrict__ decay, float *__restrict__ sums, SIZES) {
    const Chunk own(SIZES_OF, blockIdx.x, blockIdx.y, blockIdx.z, nullptr);
    for (u32 c = threadIdx.x; c < channels; c += THREADS) {
        float sum = 0.0f;
#pragma unroll 8
        for (u32 t = 0; t < own.n; t++) {
            sum += decay[(own.row(t) * value + own.head) * channels + c];
            sums[own.value_row(t) * channels + c] = sum;
        }
    }
}

// Corrections of a chunk for a state of zero, and their weights: x[t] = v[t] - the sum over s < t of
// pair[t][s] * rate[s] * x[s], and the same for decayed keys instead of values. A thread has a column.
template <typename T>
__device__ __forceinline__ void solve(const T *qkv_blc, const float *keys, const float *sums,
                                      const float *rate, float *x, float *weights, const u32 *documents,
                                      Sizes sizes) {
    __shared__ Slabs slabs;
    __shared__ float pairs_ts[CHUNK * CHUNK];
    const Chunk own(sizes, blockIdx.x, blockIdx.y, blockIdx.z, documents);
    const u32 width = sizes.width, values = sizes.values, n = own.n;
    pairs<false>(own, keys, keys, sums, pairs_ts,
                 [&](u32 s) { return rate[own.row(s) * sizes.value + own.head]; }, slabs);
    const T *values_blc = qkv_blc + 2 * sizes.key * width + own.head * values;
    for (u32 column = threadIdx.x; column < values + width; column += THREADS) {
        const bool is_value = column < values;
        const u32 c = is_value ? column : column - values;
        const u32 columns = is_value ? values : width;
        float *to = (is_value ? x : weights) + own.value_row(0) * columns + c;
        for (u32 first = 0; first < n; first += HELD) {
            float at[HELD];
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                const u32 t = first + i;
                at[i] = 0.0f;
                if (t < n && is_value) at[i] = to_f32(values_blc[own.row(t) * sizes.packed() + c]);
                if (t < n && !is_value) at[i] = keys[own.key_row(t) * width + c] * own.since(sums, t, c);
            }
#pragma unroll 4
            for (u32 s = 0; s < first; s++) {
                const float before = to[u64(s) * columns];
#pragma unroll
                for (int i = 0; i < HELD; i++)
                    at[i] = fmaf(-pairs_ts[(first + i) * CHUNK + s], before, at[i]);
            }
#pragma unroll
            for (int i = 0; i < HELD; i++) {
#pragma unroll
                for (int s = 0; s < i; s++)
                    at[i] = fmaf(-pairs_ts[(first + i) * CHUNK + first + s], at[s], at[i]);
                if (first + i < n) to[u64(first + i) * columns] = at[i];
            }
        }
    }
}

// States before the chunks, one after another, and the corrections that they bring. A block has STRIP
// columns.
KERNEL __launch_bounds__(THREADS)
    states(const float *__restrict__ keys, const float *__restrict__ sums, const float *__restrict__ rate,
           const float *__restrict__ weights, float *__restrict__ x, float *__restrict__ states,
           const float *__restrict__ first, float *__restrict__ last, const u32 *__restrict__ documents,
           SIZES) {
    __shared__ Slabs slabs;
    float *state_ks = memory, *strip_ts = memory + width * STRIP;
    const u32 head = blockIdx.y, batch = blockIdx.z, left = blockIdx.x * STRIP;
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16;
    const u64 of_head = (u64(batch) * value + head) * width * values;
    const bool is_inside = left + column < values;
    for (u32 at = threadIdx.x; at < width * STRIP; at += THREADS) {
        const u32 c = at / STRIP, j = left + at % STRIP;
        state_ks[at] = first && j < values ? first[of_head + u64(c) * values + j] : 0.0f;
    }
    for (u32 chunk = 0; chunk < chunks; chunk++) {
        const Chunk own(SIZES_OF, chunk, head, batch, documents);
        __syncthreads();
        for (u32 at = threadIdx.x; at < width * STRIP; at += THREADS) {
            const u32 c = at / STRIP, j = left + at % STRIP;
            if (j < values) states[own.state() + u64(c) * values + j] = state_ks[at];
        }
        float product[4][1] = {};
        multiply<1, false, true>(
            product, width,
            [&](u32 t, u32 c) { return t < own.n ? weights[own.value_row(t) * width + c] : 0.0f; },
            [&](u32 c, u32 j) { return state_ks[c * STRIP + j]; }, slabs);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 t = row + i;
            float corrected = 0.0f;
            if (t < own.n && is_inside) {
                float *to = x + own.value_row(t) * values + left + column;
                *to -= product[i][0];
                corrected = *to * rate[own.row(t) * value + head];
            }
            strip_ts[t * STRIP + column] = corrected;
        }
        for (u32 above = 0; above < width; above += CHUNK) {
            float added[4][1] = {};
            multiply<1, true, true>(
                added, own.n,
                [&](u32 r, u32 s) {
                    const u32 c = above + r;
                    return c < width ? keys[own.key_row(s) * width + c] * own.until(sums, s, c) : 0.0f;
                },
                [&](u32 s, u32 j) { return strip_ts[s * STRIP + j]; }, slabs);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 c = above + row + i;
                if (c >= width) continue;
                float *to = state_ks + c * STRIP + column;
                *to = fmaf(*to, own.since(sums, own.n - 1, c), added[i][0]);
            }
        }
    }
    __syncthreads();
    for (u32 at = threadIdx.x; last && at < width * STRIP; at += THREADS) {
        const u32 c = at / STRIP, j = left + at % STRIP;
        if (j < values) last[of_head + u64(c) * values + j] = state_ks[at];
    }
}

// Outputs of a chunk: what queries read from the state before it, and from the tokens of the chunk.
template <typename T>
__device__ __forceinline__ void outputs(const float *queries, const float *keys, const float *sums,
                                        const float *rate, const float *x, const float *states, T *out_blc,
                                        const u32 *documents, Sizes sizes) {
    __shared__ Slabs slabs;
    __shared__ float pairs_ts[CHUNK * CHUNK];
    const Chunk own(sizes, blockIdx.x, blockIdx.y, blockIdx.z, documents);
    const u32 width = sizes.width, values = sizes.values;
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    pairs<true>(own, queries, keys, sums, pairs_ts,
                [&](u32 s) { return rate[own.row(s) * sizes.value + own.head]; }, slabs);
    const float *state = states + own.state();
    for (u32 left = 0; left < values; left += CHUNK) {
        float sum[4][4] = {};
        multiply<4, false, true>(
            sum, width,
            [&](u32 t, u32 c) {
                return t < own.n ? queries[own.key_row(t) * width + c] * own.since(sums, t, c) : 0.0f;
            },
            [&](u32 c, u32 j) { return left + j < values ? state[u64(c) * values + left + j] : 0.0f; },
            slabs);
        multiply<4, false, true>(
            sum, own.n, [&](u32 t, u32 s) { return pairs_ts[t * CHUNK + s]; },
            [&](u32 s, u32 j) {
                return left + j < values ? x[own.value_row(s) * values + left + j] : 0.0f;
            },
            slabs);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 t = row + i, at = left + column + j;
                if (t < own.n && at < values)
                    out_blc[(own.row(t) * sizes.value + own.head) * values + at] = from_f32<T>(sum[i][j]);
            }
        }
    }
}

// The next token of each sequence: grid [value heads, rows]; a thread has columns of the state. Rows beyond
// the slots give 0, and a row at position 0 begins with an empty state.
template <typename T>
__device__ __forceinline__ void step(const T *qkv_blc, const float *decay, const float *rate, float *states,
                                     const u32 *positions, T *out_blc, Sizes sizes, float epsilon,
                                     u32 slots) {
    const u32 head = blockIdx.x, row = blockIdx.y, width = sizes.width, values = sizes.values;
    T *out = out_blc + (u64(row) * sizes.value + head) * values;
    if (row >= slots) {
        for (u32 j = threadIdx.x; j < values; j += THREADS) out[j] = from_f32<T>(0.0f);
        return;
    }
    float *query = memory, *key = memory + width, *kept = memory + 2 * width;
    const T *from = qkv_blc + u64(row) * sizes.packed();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (warp < 2) {
        const T *own = from + (warp * sizes.key + head / (sizes.value / sizes.key)) * width;
        float square = 0.0f;
        for (u32 c = lane; c < width; c += WARP) square = fmaf(to_f32(own[c]), to_f32(own[c]), square);
        float factor = 1.0f / sqrtf(warp_sum(square) + epsilon);
        if (warp == 0) factor *= 1.0f / sqrtf(float(width));
        for (u32 c = lane; c < width; c += WARP) memory[warp * width + c] = to_f32(own[c]) * factor;
    }
    const bool is_first = positions[row] == 0;
    const u64 of_head = u64(row) * sizes.value + head;
    for (u32 c = threadIdx.x; c < width; c += THREADS)
        kept[c] = is_first ? 0.0f : expf(decay[of_head * sizes.channels + (sizes.channels > 1 ? c : 0)]);
    __syncthreads();
    float *state = states + of_head * sizes.state();
    for (u32 j = threadIdx.x; j < values; j += THREADS) {
        float x = to_f32(from[2 * sizes.key * width + head * values + j]), result = 0.0f;
        for (u32 c = 0; c < width && !is_first; c++)
            x = fmaf(-key[c], kept[c] * state[u64(c) * values + j], x);
        x *= rate[of_head];
        for (u32 c = 0; c < width; c++) {
            const float before = is_first ? 0.0f : kept[c] * state[u64(c) * values + j];
            const float after = fmaf(key[c], x, before);
            state[u64(c) * values + j] = after;
            result = fmaf(query[c], after, result);
        }
        out[j] = from_f32<T>(result);
    }
}

#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        normalise_##NAME(const T *__restrict__ qkv, float *__restrict__ queries, float *__restrict__ keys, \
                         SIZES, float epsilon, u32 count) {                                                \
        normalise(qkv, queries, keys, SIZES_OF, epsilon, count);                                           \
    }                                                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        solve_##NAME(const T *__restrict__ qkv, const float *__restrict__ keys,                            \
                     const float *__restrict__ sums,                                                       \
                     const float *__restrict__ rate, float *__restrict__ x, float *__restrict__ weights,   \
                     const u32 *__restrict__ documents, SIZES) {                                           \
        solve(qkv, keys, sums, rate, x, weights, documents, SIZES_OF);                                     \
    }                                                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        outputs_##NAME(const float *__restrict__ queries, const float *__restrict__ keys,                  \
                       const float *__restrict__ sums, const float *__restrict__ rate,                     \
                       const float *__restrict__ x, const float *__restrict__ states, T *__restrict__ out, \
                       const u32 *__restrict__ documents, SIZES) {                                         \
        outputs(queries, keys, sums, rate, x, states, out, documents, SIZES_OF);                           \
    }                                                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        step_##NAME(const T *__restrict__ qkv, const float *__restrict__ decay,                            \
                    const float *__restrict__ rate,                                                        \
                    float *__restrict__ states, const u32 *__restrict__ positions, T *__restrict__ out,    \
                    SIZES,                                                                                 \
                    float epsilon, u32 slots) {                                                            \
        step(qkv, decay, rate, states, positions, out, SIZES_OF, epsilon, slots);                          \
    }

FOR_EACH_TYPE(FOR_TYPE)
