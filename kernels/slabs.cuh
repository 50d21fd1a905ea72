// Matmuls of tiles in f32 through slabs in shared memory. Sums run in the order of the depth, so bits repeat.
#pragma once
#include "common.cuh"

// Rows of a slab: what a product of tiles reads at once.
#define DEPTH 16

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
