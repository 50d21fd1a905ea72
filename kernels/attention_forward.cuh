// The forward pass of attention in half precision. Operands as in attention.cu.
#pragma once
#include "attention_tiles.cuh"

#define FORWARD_ROWS (16 * FORWARD_WARPS)

// Output, running maximum and running sum of a warp's 16 queries.
struct Rows {
    float out[D / 8][4], largest[2], total[2];
};

// A warp's 16 queries as left operands: in registers, or the address of the warp's rows in shared memory
// where the output leaves no registers for them.
#if HEAD_DIM > 128
typedef u32 Queries;
#else
typedef u32 Queries[D / 16][4];
#endif
__device__ __forceinline__ void load_queries(u32 (&q)[D / 16][4], u32 tile) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) left(q[i], tile, threadIdx.x / WARP * 16, i);
}
__device__ __forceinline__ void load_queries(u32 &q, u32 tile) {
    q = tile + threadIdx.x / WARP * 16 * D * 2;
}

// times_transposed with the 16 rows at `a`.
template <int N>
__device__ __forceinline__ void times_transposed(float (&acc)[N][4], u32 a, u32 tile, u32 row) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        u32 own[4];
        left(own, a, 0, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            ldmatrix(b, tile + at(row + n * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            mma(acc[n], own, b[0], b[1]);
            mma(acc[n + 1], own, b[2], b[3]);
        }
    }
}

// One tile of keys: scores, running maximum and sum, output.
__device__ __forceinline__ void forward_tile(Rows &rows, const Queries &q, u32 keys, u32 values,
                                             u32 row, u32 first_key, bool masked, float scale,
                                             const Masks &masks, const u32 (&visible)[2], u32 line) {
    constexpr int N = FORWARD_KEYS / 8;
    float s[N][4] = {};
    times_transposed<N>(s, q, keys, 0);
    if (masks.has_cap()) {
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) s[n][i] = masks.capped(s[n][i], scale * LN2);
    }
    if (masked) {
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (first_key + n * 8 + threadIdx.x % 4 * 2 + i % 2 > masks.position + row + i / 2 * 8)
                    s[n][i] = -INFINITE;
    }
    if (masks.has_first_keys()) {
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (first_key + n * 8 + threadIdx.x % 4 * 2 + i % 2 < visible[i / 2]) s[n][i] = -INFINITE;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float largest = rows.largest[half];
#pragma unroll
        for (int n = 0; n < N; ++n) largest = fmaxf(largest, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
        largest = quad_max(largest);
        // For rows without a visible score so far, any finite number can be used.
        const float base = masks.has_first_keys() && largest == -INFINITE ? 0.0f : largest;
        const float shrink = exp2_fast((rows.largest[half] - base) * scale), offset = base * scale;
        rows.largest[half] = largest;
        float total = 0.0f;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = half * 2; i < half * 2 + 2; ++i)
                total += s[n][i] = exp2_fast(fmaf(s[n][i], scale, -offset));
        rows.total[half] = rows.total[half] * shrink + total;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) rows.out[n][half * 2] *= shrink, rows.out[n][half * 2 + 1] *= shrink;
    }
    if (masks.dropout.threshold)
        for_weights<N, false>(masks, line, row, first_key,
                              [&](int n, int i, float factor) { s[n][i] *= factor; });
    u32 p[N / 2][4];
    pack<N>(p, s);
    times<N>(rows.out, p, values, 0);
}

// Adds a sink, a score without a value, to the largest score and the sum of a row; returns the factor of its
// output.
__device__ __forceinline__ float add_sink(float &largest, float &total, float sink) {
    const float most = fmaxf(largest, sink), shrink = exp2_fast((largest - most) * LOG2E);
    total = total * shrink + exp2_fast((sink - most) * LOG2E);
    largest = most;
    return shrink / total;
}

// Grid [ceil(time / 128), heads, batch], 256 threads, shared (128 + 4 * 64) rows. A warp owns all columns of
// 16 queries, so the softmax needs no other warp; keys and values of 64 positions are double buffered. Long
// blocks of a head start first; the blocks of a head run together, so that L2 holds its keys and values.
// Floor: 2 matmuls, 2 * batch * heads * time^2 * HEAD_DIM FLOP (the causal half). `cells`: null, or where the
// largest magnitude of the output goes.
KERNEL __launch_bounds__(FORWARD_WARPS *WARP, D >= 80 ? 1 : 2)
    OF_HALF(forward)(Half *__restrict__ out, float *__restrict__ logsumexp, const Half *__restrict__ q,
                      const Half *__restrict__ k, const Half *__restrict__ v, u32 time, u32 heads, u32 group,
                      u32 q_stride, u32 kv_stride, float scale, u32 aligned, MASKS_PARAMETERS,
                      u32 *cells PADDED_PARAMETERS(u32 head_width, const Half *__restrict__ sinks)
                          VALUES_PARAMETERS) {
    extern __shared__ __align__(128) u8 memory[];
    const Masks masks = MASKS;
    constexpr u32 THREADS = FORWARD_WARPS * WARP, STAGE = FORWARD_KEYS * D * 2;
    const u32 block = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, first = block * FORWARD_ROWS,
              width = heads * VALUE_WIDTH;
    const u64 sequence = u64(blockIdx.z) * time;
    const u64 kv_start = u64(blockIdx.z) * ROWS_OF_KEYS * kv_stride + head / group * WIDTH;
    const u64 v_start = u64(blockIdx.z) * ROWS_OF_KEYS * V_STRIDE + head / group * VALUE_WIDTH;
    const Half *queries = q + sequence * q_stride + head * WIDTH;
    const Half *keys = k + kv_start, *values = v + v_start;
    const u32 q_tile = shared_address(memory), stages = q_tile + FORWARD_ROWS * D * 2;
    const u32 row = first + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    const u32 limit = masks.position + time, end = min(masks.position + first + FORWARD_ROWS, limit),
              tiles = (end + FORWARD_KEYS - 1) / FORWARD_KEYS;

    load_tile<FORWARD_ROWS, THREADS>(q_tile, queries, q_stride, first, time, aligned, WIDTH);
    const u32 begin = masks.first_key(blockIdx.z, first, time) / FORWARD_KEYS;
    const u32 visible[2] = {masks.first_key(blockIdx.z, row, time),
                            masks.first_key(blockIdx.z, row + 8, time)};
    const u32 begin_stage = stages + begin % 2 * 2 * STAGE, begin_key = begin * FORWARD_KEYS;
    load_tile<FORWARD_KEYS, THREADS>(begin_stage, keys, kv_stride, begin_key, limit, aligned, WIDTH);
    load_tile<FORWARD_KEYS, THREADS>(begin_stage + STAGE, values, V_STRIDE, begin_key, limit, aligned,
                                     VALUE_WIDTH);
    commit_copies();
    Rows rows = {{}, {-INFINITE, -INFINITE}, {}};
    Queries own;
    for (u32 tile = begin; tile < tiles; ++tile) {
        wait_copies<0>();
        __syncthreads();
        if (tile + 1 < tiles) {
            const u32 next = stages + (tile + 1) % 2 * 2 * STAGE, key = (tile + 1) * FORWARD_KEYS;
            load_tile<FORWARD_KEYS, THREADS>(next, keys, kv_stride, key, limit, aligned, WIDTH);
            load_tile<FORWARD_KEYS, THREADS>(next + STAGE, values, V_STRIDE, key, limit, aligned,
                                             VALUE_WIDTH);
        }
        commit_copies();
        if (tile == begin) load_queries(own, q_tile);
        const u32 here = stages + tile % 2 * 2 * STAGE, first_key = tile * FORWARD_KEYS;
        const u32 warp_first = masks.position + first + threadIdx.x / WARP * 16;
        // The last tile of a block is entirely above the diagonal of its first warps.
        if (first_key > warp_first + 15) continue;
        forward_tile(rows, own, here, here + STAGE, row, first_key, first_key + FORWARD_KEYS > warp_first + 1,
                     scale * LOG2E, masks, visible, blockIdx.z * heads + head);
    }
    rows.total[0] = quad_sum(rows.total[0]);
    rows.total[1] = quad_sum(rows.total[1]);
    Half *to = out + sequence * width + head * VALUE_WIDTH;
    float factor[2] = {1.0f / rows.total[0], 1.0f / rows.total[1]};
    float largest[2] = {rows.largest[0] * scale, rows.largest[1] * scale};
#ifdef PADDED
    if (IS_GENERAL && sinks)
        for (int half = 0; half < 2; ++half)
            factor[half] = add_sink(largest[half], rows.total[half], to_f32(sinks[head]));
#endif
    const u32 most = store_rows(to, width, row, time, VALUE_WIDTH, rows.out, factor[0], factor[1]);
    if (cells) record_pair(most, cells);
    float *line = logsumexp + (u64(blockIdx.z) * heads + head) * time;
    if (threadIdx.x % 4 == 0) {
        if (row < time) line[row] = largest[0] + LN2 * __log2f(rows.total[0]);
        if (row + 8 < time) line[row + 8] = largest[1] + LN2 * __log2f(rows.total[1]);
    }
}
