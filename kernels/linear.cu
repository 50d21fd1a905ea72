// The gradient of a linear layer's bias; cuBLASLt computes its matmuls.
//
// Shapes: dy_to; the bias's gradient has shape o. Letters as in CONTRIBUTING.md.
#include "columns.cuh"

// partial[run][column] = sum of dy[row][column] over the run's rows.
template <int N, typename T>
__device__ __forceinline__ void column_sums(const T *dy_to, float *partial, u32 rows, u32 width,
                                            u32 rows_per_run) {
    const u32 lane = threadIdx.x % TILE, strand = threadIdx.x / TILE;
    const u32 vectors = width / N, vector = blockIdx.y * TILE + lane;
    const u32 first = blockIdx.x * rows_per_run;
    const u32 end = min(rows, first + rows_per_run);
    Floats<N> sum = {};
    if (vector < vectors) {
        const T *column = dy_to + u64(vector) * N;
#pragma unroll 4
        for (u32 row = first + strand; row < end; row += STRANDS) {
            const Floats<N> values = read<N>(column + u64(row) * width);
#pragma unroll
            for (int i = 0; i < N; i++) sum.at[i] += values.at[i];
        }
    }
    join(sum, partial + u64(blockIdx.x) * width, lane, strand, vector, vectors);
}

#define FOR_TYPE(NAME, T)                                                                            \
    KERNEL __launch_bounds__(THREADS)                                                                \
        bias_sums_##NAME(const T *__restrict__ dy, float *__restrict__ partial, u32 rows, u32 width, \
                         u32 rows_per_run, u32 vector) {                                             \
        if (vector)                                                                                  \
            column_sums<16 / sizeof(T)>(dy, partial, rows, width, rows_per_run);                     \
        else                                                                                         \
            column_sums<1>(dy, partial, rows, width, rows_per_run);                                  \
    }

FOR_EACH_TYPE(FOR_TYPE)
