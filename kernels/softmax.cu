// Softmax of rows, and its gradient.
//
// Shapes: x_tv, y_tv and their gradients; any rows and columns. Letters as in CONTRIBUTING.md.
#include "common.cuh"

// Launch: THREADS threads; a warp computes a row, its threads' columns in order, then a fixed butterfly.
// Floor: the row in once and out once; a row longer than the caches is read three times.
template <typename T>
__device__ __forceinline__ void softmax(const T *x, T *y, u64 rows, u64 columns) {
    const u64 row = (u64(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    if (row >= rows) return;
    const u32 lane = threadIdx.x % WARP;
    const T *own = x + row * columns;
    float largest = __uint_as_float(0xff800000u), sum = 0.0f;
    for (u64 i = lane; i < columns; i += WARP) largest = fmaxf(largest, to_f32(own[i]));
    largest = warp_max(largest);
    for (u64 i = lane; i < columns; i += WARP) sum += expf(to_f32(own[i]) - largest);
    sum = warp_sum(sum);
    for (u64 i = lane; i < columns; i += WARP)
        y[row * columns + i] = from_f32<T>(expf(to_f32(own[i]) - largest) / sum);
}

// dx = y * (dy - sum of y * dy).
template <typename T>
__device__ __forceinline__ void softmax_back(const T *dy, const T *y, T *dx, u64 rows, u64 columns) {
    const u64 row = (u64(blockIdx.x) * THREADS + threadIdx.x) / WARP;
    if (row >= rows) return;
    const u64 first = row * columns;
    float sum = 0.0f;
    for (u64 i = threadIdx.x % WARP; i < columns; i += WARP)
        sum += to_f32(dy[first + i]) * to_f32(y[first + i]);
    sum = warp_sum(sum);
    for (u64 i = threadIdx.x % WARP; i < columns; i += WARP)
        dx[first + i] = from_f32<T>(to_f32(y[first + i]) * (to_f32(dy[first + i]) - sum));
}

#define FOR_TYPE(NAME, T)                                                                          \
    KERNEL softmax_##NAME(const T *x, T *y, u64 rows, u64 columns) { softmax(x, y, rows, columns); } \
    KERNEL softmax_back_##NAME(const T *dy, const T *y, T *dx, u64 rows, u64 columns) {            \
        softmax_back(dy, y, dx, rows, columns);                                                    \
    }

FOR_EACH_TYPE(FOR_TYPE)
