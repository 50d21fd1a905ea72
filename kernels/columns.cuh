// Sums over the rows of a matrix: gradients of biases, and of the weights and biases of norms.
#pragma once
#include "common.cuh"

// First pass. A block owns TILE vectors of columns and a run of rows: thread (lane, strand) adds its N
// columns of every STRANDS-th row of the run, four rows in flight; the strands are then added in order.
// Launch: THREADS threads, grid [runs, ceil(vectors / TILE)]; the host makes runs of at least 32 rows and at
// most 256 of them: enough blocks to fill a GPU, and partial sums that stay in L2. Floor: the matrix (two for
// a layer norm) once through memory. Second pass. A block of THREADS owns TILE columns: every strand adds its
// runs in order, then strands are added in order.
#define STRANDS (THREADS / TILE)

// Adds the strands' sums in order and writes the block's row of `partial`.
template <int N>
__device__ __forceinline__ void join(const Floats<N> &mine, float *partial, u32 lane, u32 strand, u32 vector,
                                     u32 vectors) {
    __shared__ float sums[STRANDS][N][TILE];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) sums[strand][i][lane] = mine.at[i];
    __syncthreads();
    if (strand == 0 && vector < vectors) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float total = 0.0f;
#pragma unroll
            for (int other = 0; other < STRANDS; other++) total += sums[other][i][lane];
            partial[u64(vector) * N + i] = total;
        }
    }
}

// out[column] (+)= sum over runs of partial[run * stride + column].
template <typename Out>
__device__ __forceinline__ void finish(const float *partial, Out *out, u32 runs, u32 width, u32 stride,
                                       u32 accumulate) {
    __shared__ float sums[STRANDS][TILE];
    const u32 lane = threadIdx.x % TILE, strand = threadIdx.x / TILE;
    const u32 column = blockIdx.x * TILE + lane;
    float sum = 0.0f;
    if (column < width) {
#pragma unroll 4
        for (u32 run = strand; run < runs; run += STRANDS) sum += partial[u64(run) * stride + column];
    }
    sums[strand][lane] = sum;
    __syncthreads();
    if (strand == 0 && column < width) {
        float total = 0.0f;
#pragma unroll
        for (int other = 0; other < STRANDS; other++) total += sums[other][lane];
        out[column] = from_f32<Out>(accumulate ? to_f32(out[column]) + total : total);
    }
}

#define FOR_RESULT(NAME, OUT)                                                                                \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        columns_finish_##NAME(const float *__restrict__ partial, OUT *__restrict__ out, u32 runs, u32 width, \
                              u32 stride, u32 accumulate) {                                                  \
        finish(partial, out, runs, width, stride, accumulate);                                               \
    }

FOR_EACH_TYPE(FOR_RESULT)
