// The mean of squared differences, and its gradient.
#include "elementwise.cuh"

struct Difference {
    float factor;
    __device__ float operator()(float a, float b) const { return factor * (a - b); }
};

// Launch: THREADS threads, a block for every CHUNK elements; each thread adds its elements in f64, then the
// block in a fixed tree. Floor: both operands once.

__device__ __forceinline__ double block_sum(double x) {
    __shared__ double sums[THREADS];
    sums[threadIdx.x] = x;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    return sums[0];
}

template <typename T>
__device__ __forceinline__ void chunk(const T *a, const T *b, double *partial, u64 count) {
    const u64 first = u64(blockIdx.x) * CHUNK;
    const u64 end = min(count, first + CHUNK);
    double sum = 0.0;
#pragma unroll 8
    for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
        const double difference = double(to_f32(a[at])) - double(to_f32(b[at]));
        sum = fma(difference, difference, sum);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

#define FOR_TYPE(NAME, T)                                                                             \
    KERNEL __launch_bounds__(THREADS) chunks_##NAME(const T *__restrict__ a, const T *__restrict__ b, \
                                                    double *__restrict__ partial, u64 count) {        \
        chunk(a, b, partial, count);                                                                  \
    }                                                                                                 \
    KERNEL backward_##NAME(const T *a, const T *b, T *out, float factor, u64 count, u32 vector) {     \
        binary(a, b, out, Difference{factor}, count, vector);                                         \
    }                                                                                                 \
    KERNEL backward_scaled_##NAME(const T *a, const T *b, const float *by, T *out, float factor,      \
                              u64 count, u32 vector) {                                                \
        binary(a, b, out, Difference{__fmul_rn(factor, *by)}, count, vector);                         \
    }

FOR_EACH_TYPE(FOR_TYPE)

// loss = scale * (sum of partial) / count. Launch: one block.
KERNEL __launch_bounds__(THREADS)
    mean(const double *__restrict__ partial, float *__restrict__ loss, u32 blocks, u64 count, float scale) {
    double sum = 0.0;
    for (u32 block = threadIdx.x; block < blocks; block += THREADS) sum += partial[block];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *loss = float(double(scale) * sum / double(count));
}
