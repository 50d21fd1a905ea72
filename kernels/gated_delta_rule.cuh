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

// Rows of a slab: what a product of tiles reads at once.
#define DEPTH 16
// Columns of a tile of states.
#define STRIP 16
// Rows of a triangular system that a thread solves in registers.
#define HELD 16

extern __shared__ float memory[];

struct Slabs {
    float a[DEPTH][CHUNK + 4], b[DEPTH][CHUNK + 4];
};

// sum[i][j] += the sum over d < depth of a(row + i, d) * b(d, column + j), for a tile of CHUNK rows and 16
// * NC columns; a thread has 4 rows and NC columns. A_ROWS and B_COLUMNS: neighbouring threads load
// neighbouring rows of a, and columns of b, instead of neighbouring d.
template <int NC, bool A_ROWS, bool B_COLUMNS, typename A, typename B>
__device__ __forceinline__ void multiply(float (&sum)[4][NC], u32 depth, A a, B b, Slabs &slabs) {
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * NC;
    for (u32 first = 0; first < depth; first += DEPTH) {
        __syncthreads();
        for (u32 at = threadIdx.x; at < DEPTH * CHUNK; at += THREADS) {
            const u32 r = A_ROWS ? at % CHUNK : at / DEPTH, d = A_ROWS ? at / CHUNK : at % DEPTH;
            slabs.a[d][r] = first + d < depth ? a(r, first + d) : 0.0f;
        }
        for (u32 at = threadIdx.x; at < DEPTH * 16 * NC; at += THREADS) {
            const u32 c = B_COLUMNS ? at % (16 * NC) : at / DEPTH;
            const u32 d = B_COLUMNS ? at / (16 * NC) : at % DEPTH;
            slabs.b[d][c] = first + d < depth ? b(first + d, c) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            float right[NC];
#pragma unroll
            for (int j = 0; j < NC; j++) right[j] = slabs.b[d][column + j];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float left = slabs.a[d][row + i];
#pragma unroll
                for (int j = 0; j < NC; j++) sum[i][j] = fmaf(left, right[j], sum[i][j]);
            }
        }
    }
}

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
