// RMS norm of each head of a row, times a gate: y = x * rstd * weight * f(z).
//
// Shapes: x_tk, z_tk, y_tk, a row for each head; weight_k. Letters as in CONTRIBUTING.md.
#include "columns.cuh"

// The gate's value and slope.
__device__ __forceinline__ float2 gate(float z, bool is_silu) {
    const float sigmoid = 1.0f / (1.0f + expf(-z));
    if (is_silu) return make_float2(z * sigmoid, sigmoid * (1.0f + z * (1.0f - sigmoid)));
    return make_float2(sigmoid, sigmoid * (1.0f - sigmoid));
}

template <typename T>
__device__ __forceinline__ float row_rstd(const T *x_k, u32 width, float epsilon, u32 lane) {
    float square = 0.0f;
    for (u32 c = lane; c < width; c += WARP) square = fmaf(to_f32(x_k[c]), to_f32(x_k[c]), square);
    return 1.0f / sqrtf(warp_sum(square) * (1.0f / width) + epsilon);
}

// Launch: THREADS threads, a warp for each head. Floor: x and z in, y out.
template <typename T>
__device__ __forceinline__ void forward(const T *x_tk, const T *z_tk, const T *weight_k, T *y_tk, u32 rows,
                                        u32 width, float epsilon, u32 is_silu) {
    const u32 row = (blockIdx.x * THREADS + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    const u64 start = u64(row) * width;
    const float rstd = row_rstd(x_tk + start, width, epsilon, lane);
    for (u32 c = lane; c < width; c += WARP) {
        const float value = gate(to_f32(z_tk[start + c]), is_silu).x;
        y_tk[start + c] = from_f32<T>(to_f32(x_tk[start + c]) * rstd * to_f32(weight_k[c]) * value);
    }
}

// Gradients of x and z, and the sums of the weight's gradient over a run of heads. Launch: a block for each
// run, whose warps take heads in turn and are added in order. Floor: dy, x and z in, dx and dz out.
template <typename T>
__device__ __forceinline__ void backward(const T *dy_tk, const T *x_tk, const T *z_tk, const T *weight_k,
                                         T *dx_tk, T *dz_tk, float *sums, u32 rows, u32 width,
                                         u32 rows_per_run, float epsilon, u32 is_silu) {
    extern __shared__ float partial[];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = THREADS / WARP;
    float *own = partial + warp * width;
    for (u32 c = lane; c < width; c += WARP) own[c] = 0.0f;
    const u32 first = blockIdx.x * rows_per_run, end = min(rows, first + rows_per_run);
    for (u32 row = first + warp; row < end; row += warps) {
        const u64 start = u64(row) * width;
        const float rstd = row_rstd(x_tk + start, width, epsilon, lane);
        float product = 0.0f;
        for (u32 c = lane; c < width; c += WARP) {
            const float2 value = gate(to_f32(z_tk[start + c]), is_silu);
            const float normed = to_f32(x_tk[start + c]) * rstd, dy = to_f32(dy_tk[start + c]);
            const float weight = to_f32(weight_k[c]);
            own[c] = fmaf(dy * value.x, normed, own[c]);
            dz_tk[start + c] = from_f32<T>(dy * normed * weight * value.y);
            product = fmaf(dy * weight * value.x, normed, product);
        }
        const float mean = warp_sum(product) * (1.0f / width);
        for (u32 c = lane; c < width; c += WARP) {
            const float value = gate(to_f32(z_tk[start + c]), is_silu).x;
            const float g = to_f32(dy_tk[start + c]) * to_f32(weight_k[c]) * value;
            dx_tk[start + c] = from_f32<T>(rstd * (g - to_f32(x_tk[start + c]) * rstd * mean));
        }
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < width; c += THREADS) {
        float total = 0.0f;
        for (u32 other = 0; other < warps; other++) total += partial[other * width + c];
        sums[u64(blockIdx.x) * width + c] = total;
    }
}

#define FOR_TYPE(NAME, T)                                                                               \
    KERNEL __launch_bounds__(THREADS)                                                                   \
        forward_##NAME(const T *__restrict__ x, const T *__restrict__ z, const T *__restrict__ weight,  \
                       T *__restrict__ y, u32 rows, u32 width, float epsilon, u32 is_silu) {            \
        forward(x, z, weight, y, rows, width, epsilon, is_silu);                                        \
    }                                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                   \
        backward_##NAME(const T *__restrict__ dy, const T *__restrict__ x, const T *__restrict__ z,     \
                        const T *__restrict__ weight, T *__restrict__ dx, T *__restrict__ dz,           \
                        float *__restrict__ sums, u32 rows, u32 width, u32 rows_per_run, float epsilon, \
                        u32 is_silu) {                                                                  \
        backward(dy, x, z, weight, dx, dz, sums, rows, width, rows_per_run, epsilon, is_silu);          \
    }

FOR_EACH_TYPE(FOR_TYPE)
