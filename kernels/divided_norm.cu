// RMS normalisation of rows whose columns are divided in parts: sums over the columns of a part, and what
// follows from the totals over all parts.
//
// Shapes: x_td, y_td and their gradients, for some of the d columns; sums_t. Letters as in
// CONTRIBUTING.md.
#include "held_rows.cuh"

// Launch: a block of THREADS for every row. `vector`: rows are whole vectors of 16 bytes, and aligned. Floor:
// each array once through memory.

// sums[row] = sum of x * x.
template <int N, typename T>
__device__ __forceinline__ void squares(const T *x, float *sums, u32 width) {
    const T *row = x + u64(blockIdx.x) * width;
    float total = 0.0f;
    for (u32 at = threadIdx.x * N; at < width; at += THREADS * N) {
        const Floats<N> xs = read<N>(row + at);
#pragma unroll
        for (int i = 0; i < N; i++) total = fmaf(xs.at[i], xs.at[i], total);
    }
    total = group_sum<THREADS>(total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// y = x * rstd * weight.
template <int N, typename T>
__device__ __forceinline__ void scale(const T *x, const T *weight, const float *rstds, T *y, u32 width) {
    const u64 start = u64(blockIdx.x) * width;
    const float rstd = rstds[blockIdx.x];
    for (u32 at = threadIdx.x * N; at < width; at += THREADS * N) {
        Floats<N> values = read<N>(x + start + at);
        const Floats<N> weights = read<N>(weight + at);
#pragma unroll
        for (int i = 0; i < N; i++) values.at[i] = values.at[i] * rstd * weights.at[i];
        write(y + start + at, values);
    }
}

// sums[row] = sum of g * normal with g = dy * weight, normal = x * rstd.
template <int N, typename T>
__device__ __forceinline__ void products(const T *dy, const T *x, const T *weight, const float *rstds,
                                         float *sums, u32 width) {
    const u64 start = u64(blockIdx.x) * width;
    const float rstd = rstds[blockIdx.x];
    float total = 0.0f;
    for (u32 at = threadIdx.x * N; at < width; at += THREADS * N) {
        const Floats<N> dys = read<N>(dy + start + at), xs = read<N>(x + start + at),
                        weights = read<N>(weight + at);
#pragma unroll
        for (int i = 0; i < N; i++) total = fmaf(dys.at[i] * weights.at[i], xs.at[i] * rstd, total);
    }
    total = group_sum<THREADS>(total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// dx = rstd * (g - normal * mean), where mean is sums[row] over the columns of all parts.
template <int N, typename T>
__device__ __forceinline__ void gradient(const T *dy, const T *x, const T *weight, const float *rstds,
                                         const float *sums, T *dx, u32 width, u32 columns) {
    const u64 start = u64(blockIdx.x) * width;
    const float rstd = rstds[blockIdx.x], mean = sums[blockIdx.x] * (1.0f / columns);
    for (u32 at = threadIdx.x * N; at < width; at += THREADS * N) {
        const Floats<N> dys = read<N>(dy + start + at), xs = read<N>(x + start + at),
                        weights = read<N>(weight + at);
        Floats<N> values;
#pragma unroll
        for (int i = 0; i < N; i++)
            values.at[i] = rstd * (dys.at[i] * weights.at[i] - xs.at[i] * rstd * mean);
        write(dx + start + at, values);
    }
}

// sums[row] = 1 / sqrt(sums[row] / columns + epsilon). Launch: a thread for every row.
KERNEL __launch_bounds__(THREADS) rstds_f32(float *__restrict__ sums, u32 rows, u32 columns, float epsilon) {
    const u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row < rows) sums[row] = 1.0f / sqrtf(sums[row] * (1.0f / columns) + epsilon);
}

#define FOR_TYPE(NAME, T)                                                                                    \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        squares_##NAME(const T *__restrict__ x, float *__restrict__ sums, u32 width, u32 vector) {           \
        if (vector)                                                                                          \
            squares<16 / sizeof(T)>(x, sums, width);                                                         \
        else                                                                                                 \
            squares<1>(x, sums, width);                                                                      \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        scale_##NAME(const T *__restrict__ x, const T *__restrict__ weight, const float *__restrict__ rstds, \
                     T *__restrict__ y, u32 width, u32 vector) {                                             \
        if (vector)                                                                                          \
            scale<16 / sizeof(T)>(x, weight, rstds, y, width);                                               \
        else                                                                                                 \
            scale<1>(x, weight, rstds, y, width);                                                            \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        products_##NAME(const T *__restrict__ dy, const T *__restrict__ x, const T *__restrict__ weight,     \
                        const float *__restrict__ rstds, float *__restrict__ sums, u32 width, u32 vector) {  \
        if (vector)                                                                                          \
            products<16 / sizeof(T)>(dy, x, weight, rstds, sums, width);                                     \
        else                                                                                                 \
            products<1>(dy, x, weight, rstds, sums, width);                                                  \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        gradient_##NAME(const T *__restrict__ dy, const T *__restrict__ x, const T *__restrict__ weight,     \
                        const float *__restrict__ rstds, const float *__restrict__ sums, T *__restrict__ dx, \
                        u32 width, u32 columns, u32 vector) {                                                \
        if (vector)                                                                                          \
            gradient<16 / sizeof(T)>(dy, x, weight, rstds, sums, dx, width, columns);                        \
        else                                                                                                 \
            gradient<1>(dy, x, weight, rstds, sums, dx, width, columns);                                     \
    }

FOR_EACH_TYPE(FOR_TYPE)
