// Counts of rows of scores whose target is the best class, or among the best.
#include "common.cuh"

// counts = rows that are not ignored, those whose target has the highest score, and those with fewer than
// MOST classes above it. Of equal scores the lower class is the higher one; a NaN is above all. Launch: one
// block of THREADS threads, a warp for a row at a time. Sums of integers do not depend on their order.
template <typename T>
__device__ __forceinline__ void count(const T *scores, const u32 *targets, u32 *counts, u32 rows, u32 classes,
                                      u32 each) {
    __shared__ u32 found[COUNTS];
    if (threadIdx.x < COUNTS) found[threadIdx.x] = 0;
    __syncthreads();
    for (u32 at = threadIdx.x / WARP; at < rows; at += THREADS / WARP) {
        const u32 target = targets[u64(at) * each];
        if (target == IGNORED) continue;
        if (target >= classes) __trap();
        const T *row = scores + u64(at) * classes;
        const float own = to_f32(row[target]);
        u32 above = 0;
        for (u32 i = threadIdx.x % WARP; i < classes; i += WARP) {
            const float score = to_f32(row[i]);
            above += !(score < own || (score == own && i >= target));
        }
        for (u32 half = WARP / 2; half > 0; half /= 2) above += __shfl_xor_sync(0xffffffffu, above, half);
        if (threadIdx.x % WARP == 0) {
            atomicAdd(&found[0], 1u);
            if (above == 0) atomicAdd(&found[1], 1u);
            if (above < MOST) atomicAdd(&found[2], 1u);
        }
    }
    __syncthreads();
    if (threadIdx.x < COUNTS) counts[threadIdx.x] = found[threadIdx.x];
}

#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        count_##NAME(const T *__restrict__ scores, const u32 *__restrict__ targets,                        \
                     u32 *__restrict__ counts, u32 rows, u32 classes, u32 each) {                          \
        count<T>(scores, targets, counts, rows, classes, each);                                            \
    }

FOR_EACH_TYPE(FOR_TYPE)
