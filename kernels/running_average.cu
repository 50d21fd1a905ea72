// Exponential running averages, to which the values of several micro-batches are added in order.
#include "common.cuh"

// Launch: THREADS threads, a thread for each element, which adds the rows of `values` one after the other,
// and for each counter. Floor: the values once in, the averages in and out.
KERNEL __launch_bounds__(THREADS)
    fold(float *__restrict__ averages, u32 *__restrict__ counters, const float *__restrict__ values,
         u32 width, u32 numbers, u32 rows, float momentum) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at < width) {
        float average = averages[at];
#pragma unroll 4
        for (u32 row = 0; row < rows; row++) {
            average = fmaf(momentum, values[u64(row) * width + at], (1.0f - momentum) * average);
        }
        averages[at] = average;
    }
    if (at < numbers) counters[at] += rows;
}
