// A gate of every element, or of every row: y = x * sigmoid(z).
//
// Launch: THREADS threads, a warp for each row. Floor: every element in and out once.
//
// Shapes: x_tc, y_tc; z_tc or one column. Letters as in CONTRIBUTING.md.
#include "common.cuh"

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <typename T>
__device__ __forceinline__ void forward(const T *x_tc, const T *z_tc, T *y_tc, u32 rows, u32 columns,
                                        u32 of_rows) {
    const u32 row = (blockIdx.x * THREADS + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    for (u32 c = lane; c < columns; c += WARP) {
        const u64 at = u64(row) * columns + c;
        y_tc[at] = from_f32<T>(to_f32(x_tc[at]) * sigmoid(to_f32(z_tc[of_rows ? row : at])));
    }
}

template <typename T>
__device__ __forceinline__ void backward(const T *dy_tc, const T *x_tc, const T *z_tc, T *dx_tc, T *dz_tc,
                                         u32 rows, u32 columns, u32 of_rows) {
    const u32 row = (blockIdx.x * THREADS + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    float sum = 0.0f;
    for (u32 c = lane; c < columns; c += WARP) {
        const u64 at = u64(row) * columns + c;
        const float value = sigmoid(to_f32(z_tc[of_rows ? row : at])), dy = to_f32(dy_tc[at]);
        const float product = dy * to_f32(x_tc[at]);
        sum += product;
        dx_tc[at] = from_f32<T>(dy * value);
        if (!of_rows) dz_tc[at] = from_f32<T>(product * value * (1.0f - value));
    }
    sum = warp_sum(sum);
    if (of_rows && lane == 0) {
        const float value = sigmoid(to_f32(z_tc[row]));
        dz_tc[row] = from_f32<T>(sum * value * (1.0f - value));
    }
}

#define FOR_TYPE(NAME, T)                                                                             \
    KERNEL __launch_bounds__(THREADS)                                                                 \
        forward_##NAME(const T *__restrict__ x, const T *__restrict__ z, T *__restrict__ y, u32 rows, \
                       u32 columns, u32 of_rows) {                                                    \
        forward(x, z, y, rows, columns, of_rows);                                                     \
    }                                                                                                 \
    KERNEL __launch_bounds__(THREADS)                                                                 \
        backward_##NAME(const T *__restrict__ dy, const T *__restrict__ x, const T *__restrict__ z,   \
                        T *__restrict__ dx, T *__restrict__ dz, u32 rows, u32 columns, u32 of_rows) { \
        backward(dy, x, z, dx, dz, rows, columns, of_rows);                                           \
    }

FOR_EACH_TYPE(FOR_TYPE)
