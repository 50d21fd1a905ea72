// Sums over the rows of a matrix: gradients of biases, and of a layer norm's gamma and beta.
#include "common.cuh"

// First pass. A block owns TILE vectors of columns and a run of rows: thread (lane, strand) adds its N columns of every
// STRANDS-th row of the run, four rows in flight; the strands are then added in order. Launch: THREADS threads,
// grid [runs, ceil(vectors / TILE)]; the host makes runs of at least 32 rows and at most 256 of them, enough blocks to
// fill a chip and a partial table that stays in L2. Floor: the matrix (two for a layer norm) once through memory.
// Second pass. A block of THREADS owns TILE columns: every strand adds its runs in order, then strands are added in order.
#define THREADS 256
#define TILE WARP
#define STRANDS (THREADS / TILE)

// Adds the strands' sums in order and writes the block's row of `partial`.
template <int N>
__device__ __forceinline__ void join(const Floats<N> &mine, float *partial, u32 lane, u32 strand, u32 vector, u32 vectors) {
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

// partial[run][column] = sum of dy[row][column] over the run's rows.
template <int N, typename T>
__device__ __forceinline__ void column_sums(const T *dy, float *partial, u32 rows, u32 width, u32 rows_per_run) {
    const u32 lane = threadIdx.x % TILE, strand = threadIdx.x / TILE;
    const u32 vectors = width / N, vector = blockIdx.y * TILE + lane;
    const u32 first = blockIdx.x * rows_per_run;
    const u32 end = min(rows, first + rows_per_run);
    Floats<N> sum = {};
    if (vector < vectors) {
        const T *column = dy + u64(vector) * N;
#pragma unroll 4
        for (u32 row = first + strand; row < end; row += STRANDS) {
            const Floats<N> values = read<N>(column + u64(row) * width);
#pragma unroll
            for (int i = 0; i < N; i++) sum.at[i] += values.at[i];
        }
    }
    join(sum, partial + u64(blockIdx.x) * width, lane, strand, vector, vectors);
}

// partial[run][0][column] = sum of dy * (x - mean) * rstd, partial[run][1][column] = sum of dy.
template <int N, typename T>
__device__ __forceinline__ void layer_norm_sums(const T *dy, const T *x, const float *means, const float *rstds,
                                                float *partial, u32 rows, u32 width, u32 rows_per_run) {
    const u32 lane = threadIdx.x % TILE, strand = threadIdx.x / TILE;
    const u32 vectors = width / N, vector = blockIdx.y * TILE + lane;
    const u32 first = blockIdx.x * rows_per_run;
    const u32 end = min(rows, first + rows_per_run);
    Floats<N> gamma = {}, beta = {};
    if (vector < vectors) {
        const u64 column = u64(vector) * N;
#pragma unroll 4
        for (u32 row = first + strand; row < end; row += STRANDS) {
            const u64 at = u64(row) * width + column;
            const Floats<N> dys = read<N>(dy + at), xs = read<N>(x + at);
            const float mean = means[row], rstd = rstds[row];
#pragma unroll
            for (int i = 0; i < N; i++) {
                gamma.at[i] = fmaf(dys.at[i], (xs.at[i] - mean) * rstd, gamma.at[i]);
                beta.at[i] += dys.at[i];
            }
        }
    }
    float *sums = partial + u64(blockIdx.x) * 2 * width;
    join(gamma, sums, lane, strand, vector, vectors);
    join(beta, sums + width, lane, strand, vector, vectors);
}

#define FOR_TYPE(NAME, T)                                                                                              \
    KERNEL __launch_bounds__(THREADS) column_sums_##NAME(const T *__restrict__ dy, float *__restrict__ partial,        \
                                                         u32 rows, u32 width, u32 rows_per_run, u32 vector) {          \
        if (vector) column_sums<16 / sizeof(T)>(dy, partial, rows, width, rows_per_run);                               \
        else column_sums<1>(dy, partial, rows, width, rows_per_run);                                                   \
    }                                                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                                  \
        layer_norm_sums_##NAME(const T *__restrict__ dy, const T *__restrict__ x, const float *__restrict__ means,     \
                               const float *__restrict__ rstds, float *__restrict__ partial, u32 rows, u32 width,      \
                               u32 rows_per_run, u32 vector) {                                                         \
        if (vector) layer_norm_sums<16 / sizeof(T)>(dy, x, means, rstds, partial, rows, width, rows_per_run);          \
        else layer_norm_sums<1>(dy, x, means, rstds, partial, rows, width, rows_per_run);                              \
    }

FOR_TYPE(f32, float)
FOR_TYPE(bf16, bf16)

// out[column] (+)= sum over runs of partial[run * stride + column].
template <typename Out>
__device__ __forceinline__ void finish(const float *partial, Out *out, u32 runs, u32 width, u32 stride, u32 accumulate) {
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

#define FOR_RESULT(NAME, OUT)                                                                                          \
    KERNEL __launch_bounds__(THREADS)                                                                                  \
        columns_finish_##NAME(const float *__restrict__ partial, OUT *__restrict__ out, u32 runs, u32 width,           \
                              u32 stride, u32 accumulate) {                                                            \
        finish(partial, out, runs, width, stride, accumulate);                                                         \
    }

FOR_RESULT(f32, float)
FOR_RESULT(bf16, bf16)
