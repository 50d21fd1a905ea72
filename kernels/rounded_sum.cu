// The end of a sum of partial results: a bias, and one rounding.
#include "common.cuh"

// out = sum + bias, rounded; bias may be null. Launch: a block per row, rows as the grid. Floor: the sum in
// once, the output out once.
template <typename T>
__device__ __forceinline__ void rounded_sum(const float *sum, const T *bias, T *out, u32 width) {
    const u64 row = u64(blockIdx.x) * width;
    for (u32 at = threadIdx.x; at < width; at += THREADS) {
        const float x = sum[row + at];
        out[row + at] = from_f32<T>(bias ? x + to_f32(bias[at]) : x);
    }
}

#define FOR_TYPE(NAME, T)                                                                                \
    KERNEL __launch_bounds__(THREADS)                                                                    \
        rounded_sum_##NAME(const float *__restrict__ sum, const T *__restrict__ bias, T *__restrict__ out, \
                           u32 rows, u32 width) {                                                        \
        rounded_sum(sum, bias, out, width);                                                              \
    }

FOR_EACH_TYPE(FOR_TYPE)
