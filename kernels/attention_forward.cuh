// The forward pass of attention in half precision. Operands as in attention.cu.
#pragma once
#include "attention_tiles.cuh"

#define FORWARD_ROWS (16 * FORWARD_WARPS)

// Output, running maximum and running sum of a warp's 16 queries.
struct Rows {
    float out[D / 8][4], largest[2], total[2];
};

// One tile of keys: scores, running maximum and sum, output.
__device__ __forceinline__ void forward_tile(Rows &rows, const u32 (&q)[D / 16][4], u32 keys, u32 values,
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

// Grid [ceil(time / 128), heads, batch], 256 threads, shared (128 + 4 * 64) rows. A warp owns all columns of
// 16 queries, so the softmax needs no other warp; keys and values of 64 positions are double buffered. Long
// blocks of a head start first; the blocks of a head run together, so that L2 holds its keys and values.
// Floor: 2 matmuls, 2 * batch * heads * time^2 * HEAD_DIM FLOP (the causal half). `cells`: null, or where the
// largest magnitude of the output goes.
KERNEL __launch_bounds__(FORWARD_WARPS *WARP, D >= 96 ? 1 : 2)
    OF_HALF(forward)(Half *__restrict__ out, float *__restrict__ logsumexp, const Half *__restrict__ q,
                      const Half *__restrict__ k, const Half *__restrict__ v, u32 time, u32 heads, u32 group,
                      u32 q_stride, u32 kv_stride, float scale, u32 aligned, MASKS_PARAMETERS, u32 *cells) {
    extern __shared__ __align__(128) u8 memory[];
    const Masks masks = MASKS;
    constexpr u32 THREADS = FORWARD_WARPS * WARP, STAGE = FORWARD_KEYS * D * 2;
    const u32 block = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, first = block * FORWARD_ROWS,
              width = heads * D;
    const u64 sequence = u64(blockIdx.z) * time;
    const u64 kv_start = u64(blockIdx.z) * ROWS_OF_KEYS * kv_stride + head / group * D;
    const Half *queries = q + sequence * q_stride + head * D, *keys = k + kv_start, *values = v + kv_start;
    const u32 q_tile = shared_address(memory), stages = q_tile + FORWARD_ROWS * D * 2;
    const u32 row = first + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    const u32 limit = masks.position + time, end = min(masks.position + first + FORWARD_ROWS, limit),
              tiles = (end + FORWARD_KEYS - 1) / FORWARD_KEYS;

    load_tile<FORWARD_ROWS, THREADS>(q_tile, queries, q_stride, first, time, aligned);
    const u32 begin = masks.first_key(blockIdx.z, first, time) / FORWARD_KEYS;
    const u32 visible[2] = {masks.first_key(blockIdx.z, row, time),
                            masks.first_key(blockIdx.z, row + 8, time)};
    const u32 begin_stage = stages + begin % 2 * 2 * STAGE, begin_key = begin * FORWARD_KEYS;
    load_tile<FORWARD_KEYS, THREADS>(begin_stage, keys, kv_stride, begin_key, limit, aligned);
    load_tile<FORWARD_KEYS, THREADS>(begin_stage + STAGE, values, kv_stride, begin_key, limit, aligned);
    commit_copies();
    Rows rows = {{}, {-INFINITE, -INFINITE}, {}};
    u32 own[D / 16][4];
    for (u32 tile = begin; tile < tiles; ++tile) {
        wait_copies<0>();
        __syncthreads();
        if (tile + 1 < tiles) {
            const u32 next = stages + (tile + 1) % 2 * 2 * STAGE, key = (tile + 1) * FORWARD_KEYS;
            load_tile<FORWARD_KEYS, THREADS>(next, keys, kv_stride, key, limit, aligned);
            load_tile<FORWARD_KEYS, THREADS>(next + STAGE, values, kv_stride, key, limit, aligned);
        }
        commit_copies();
        if (tile == begin) {
#pragma unroll
            for (int i = 0; i < D / 16; ++i) left(own[i], q_tile, threadIdx.x / WARP * 16, i);
        }
        const u32 here = stages + tile % 2 * 2 * STAGE, first_key = tile * FORWARD_KEYS;
        const u32 warp_first = masks.position + first + threadIdx.x / WARP * 16;
        // The last tile of a block is entirely above the diagonal of its first warps.
        if (first_key > warp_first + 15) continue;
        forward_tile(rows, own, here, here + STAGE, row, first_key, first_key + FORWARD_KEYS > warp_first + 1,
                     scale * LOG2E, masks, visible, blockIdx.z * heads + head);
    }
    rows.total[0] = quad_sum(rows.total[0]);
    rows.total[1] = quad_sum(rows.total[1]);
    Half *to = out + sequence * width + head * D;
    const u32 most =
        store_rows(to, width, row, time, rows.out, 1.0f / rows.total[0], 1.0f / rows.total[1]);
    if (cells) record_pair(most, cells);
    float *line = logsumexp + (u64(blockIdx.z) * heads + head) * time;
    if (threadIdx.x % 4 == 0) {
        if (row < time) line[row] = rows.largest[0] * scale + LN2 * __log2f(rows.total[0]);
        if (row + 8 < time) line[row + 8] = rows.largest[1] * scale + LN2 * __log2f(rows.total[1]);
    }
}
