// Gradients of attention sinks, scores of query heads that take weight from the keys and have no value.
//
// Shapes: dy_blc, out_blc, logsumexp_bhl, sinks_h, sums_h. Letters as in CONTRIBUTING.md.
#include "common.cuh"

// sums[head] = -sum over all rows of e^(sink - logsumexp) * (dy . out) of the head. Grid [heads], THREADS
// threads: warp w adds rows w, w + WARPS, ..., and warps are added in order. Floor: 2 * batch * time * heads
// * width elements at memory speed.
template <typename T>
__device__ __forceinline__ void gradients(float *sums_h, const T *dy_blc, const T *out_blc,
                                          const float *logsumexp_bhl, const T *sinks_h, u32 batch, u32 time,
                                          u32 heads, u32 width) {
    constexpr u32 WARPS = THREADS / WARP;
    __shared__ float totals[WARPS];
    const u32 head = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float sink = to_f32(sinks_h[head]);
    float total = 0.0f;
#pragma unroll 4
    for (u32 row = warp; row < batch * time; row += WARPS) {
        const u64 start = (u64(row) * heads + head) * width;
        float delta = 0.0f;
        for (u32 column = lane; column < width; column += WARP)
            delta = fmaf(to_f32(dy_blc[start + column]), to_f32(out_blc[start + column]), delta);
        const u64 line = (u64(row / time) * heads + head) * time + row % time;
        total = fmaf(expf(sink - logsumexp_bhl[line]), delta, total);
    }
    total = warp_sum(total);
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float sum = 0.0f;
    for (u32 i = 0; i < WARPS; i++) sum += totals[i];
    sums_h[head] = -sum;
}

// target[i] = sums[i], or + sums[i].
template <typename T>
__device__ __forceinline__ void accumulate(T *target, const float *sums, u32 count, u32 adds) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) target[i] = from_f32<T>(adds ? to_f32(target[i]) + sums[i] : sums[i]);
}

#define FOR_TYPE(NAME, T)                                                                                 \
    KERNEL __launch_bounds__(THREADS)                                                                     \
        gradients_##NAME(float *__restrict__ sums, const T *__restrict__ dy, const T *__restrict__ out,   \
                         const float *__restrict__ logsumexp, const T *__restrict__ sinks, u32 batch,     \
                         u32 time, u32 heads, u32 width) {                                                \
        gradients(sums, dy, out, logsumexp, sinks, batch, time, heads, width);                            \
    }                                                                                                     \
    KERNEL __launch_bounds__(THREADS)                                                                     \
        accumulate_##NAME(T *target, const float *__restrict__ sums, u32 count, u32 adds) {               \
        accumulate(target, sums, count, adds);                                                            \
    }

FOR_EACH_TYPE(FOR_TYPE)
