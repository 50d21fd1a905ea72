// The gated delta rule in f32: products of tiles that its kernels share.
//
// A chunk has CHUNK tokens. Arrays of the workspace are f32 and ordered by sequence, head and token:
// normalised queries and keys of every key head, and for every value head sums of the decays' logarithms
// since the chunk's beginning, corrections x, their weights (x = x0 - weights * state), and the states
// before the chunks, [width, values] each. Sums run in the order of tokens and columns, so bits repeat.
//
// Shapes: qkv_blc, dy_blc; tiles are named for their rows and columns, t and s tokens. Letters as in
// CONTRIBUTING.md.
#pragma once
#include "recurrent_chunk.cuh"
#include "slabs.cuh"

// Columns of a tile of states.
#define STRIP 16
// Rows of a triangular system that a thread solves in registers.
#define HELD 16

extern __shared__ float memory[];

// out[t][s] = factor(s) * the decayed product of row t of `rows` with key s, for s < t, or s <= t with OWN;
// other pairs are 0. Ends with a barrier.
template <bool OWN, typename F>
__device__ __forceinline__ void pairs(const Chunk &own, const float *rows, const float *keys,
                                      const float *sums, float *out_ts, F factor, Slabs &slabs) {
    const u32 width = own.sizes.width, last = own.n - 1;
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    rows += own.key_row(0) * width;
    keys += own.key_row(0) * width;
    float sum[4][4] = {};
    if (own.sizes.channels == 1) {
        multiply<4, false, false>(
            sum, width, [&](u32 t, u32 c) { return t <= last ? rows[u64(t) * width + c] : 0.0f; },
            [&](u32 c, u32 s) { return s <= last ? keys[u64(s) * width + c] : 0.0f; }, slabs);
    } else {
        for (u32 c = 0; c < width; c++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 s = min(column + j, last);
                const float key = keys[u64(s) * width + c], before = own.sum(sums, s, c);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const u32 t = min(row + i, last);
                    const float decay = expf(own.sum(sums, t, c) - before);
                    sum[i][j] = fmaf(rows[u64(t) * width + c], key * decay, sum[i][j]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 t = row + i, s = column + j;
            const bool seen = t <= last && (OWN ? s <= t : s < t) && own.sees(t, s);
            float value = 0.0f;
            if (seen) value = sum[i][j] * factor(s);
            if (seen && own.sizes.channels == 1) value *= expf(own.sum(sums, t, 0) - own.sum(sums, s, 0));
            out_ts[t * CHUNK + s] = value;
        }
    }
    __syncthreads();
}
