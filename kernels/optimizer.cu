// AdamW and SGD over all parameters in one launch.
#include "common.cuh"

// A table on the device lists the parameters, then for each (and one past the last) the first block that works on it. A
// block finds its parameter by bisection and owns CHUNK elements of it. Launch: THREADS threads, a block for every chunk
// of every parameter; every thread has UNROLL vectors of each array in flight. Floor: AdamW reads gradient, weight and both
// moments and writes all but the gradient, 28 bytes an element (30 with a bf16 copy); SGD 12, with momentum 20. A bf16
// gradient saves 2 of them.
#define UNROLL 2

// The addresses are 0 where there is none.
struct Parameter {
    u64 weight, gradient, first, second, compute;
    u64 elements;
    // DECAY: weight decay applies. ALIGNED: every address is a multiple of 16.
    u32 flags, unused;
};
#define DECAY 1u
#define ALIGNED 2u

// The last parameter that begins at or before this block.
__device__ __forceinline__ u32 parameter_of(const u32 *blocks, u32 count, u32 block) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (blocks[middle] <= block) low = middle;
        else high = middle;
    }
    return low;
}

struct Four { float at[4]; };

// Four elements from `at` on; those at or past `end` are 0.
template <typename T> __device__ __forceinline__ Four take(const T *from, u64 at, u64 end, bool aligned) {
    Four values;
    if (aligned && at + 4 <= end) {
        const Vector<T, 4> loaded = load<4>(from + at);
#pragma unroll
        for (int i = 0; i < 4; i++) values.at[i] = to_f32(loaded.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) values.at[i] = at + i < end ? to_f32(from[at + i]) : 0.0f;
    }
    return values;
}
template <typename T> __device__ __forceinline__ void put(T *to, u64 at, u64 end, bool aligned, const Four &values) {
    if (aligned && at + 4 <= end) {
        Vector<T, 4> rounded;
#pragma unroll
        for (int i = 0; i < 4; i++) rounded.at[i] = from_f32<T>(values.at[i]);
        store<4>(to + at, rounded);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (at + i < end) to[at + i] = from_f32<T>(values.at[i]);
        }
    }
}

// Runs `update` on all elements of this block's chunk: it loads UNROLL vectors before it stores one.
template <typename Update>
__device__ __forceinline__ void for_chunk(const Parameter *parameters, u32 count, const Update &update) {
    const u32 *blocks = reinterpret_cast<const u32 *>(parameters + count);
    const u32 index = parameter_of(blocks, count, blockIdx.x);
    const Parameter parameter = parameters[index];
    const u64 first = u64(blockIdx.x - blocks[index]) * CHUNK;
#pragma unroll 1
    for (u32 piece = 0; piece < CHUNK; piece += THREADS * 4 * UNROLL) update(parameter, first + piece + threadIdx.x * 4);
}

// What the host computes in f64 for a step.
struct AdamW { float factor, keep, take1, beta2, take2, root_correction, epsilon, step_size; };

template <typename G> __device__ __forceinline__ void adamw(const Parameter &parameter, u64 start, AdamW c) {
    const u64 end = parameter.elements;
    const bool aligned = parameter.flags & ALIGNED;
    float *weights = reinterpret_cast<float *>(parameter.weight);
    float *firsts = reinterpret_cast<float *>(parameter.first);
    float *seconds = reinterpret_cast<float *>(parameter.second);
    bf16 *computes = reinterpret_cast<bf16 *>(parameter.compute);
    Four weight[UNROLL], gradient[UNROLL], first[UNROLL], second[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + i * THREADS * 4;
        gradient[i] = take(reinterpret_cast<const G *>(parameter.gradient), at, end, aligned);
        weight[i] = take(weights, at, end, aligned);
        first[i] = take(firsts, at, end, aligned);
        second[i] = take(seconds, at, end, aligned);
    }
    const float keep = parameter.flags & DECAY ? c.keep : 1.0f;
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + i * THREADS * 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float g = gradient[i].at[j] * c.factor;
            const float m = first[i].at[j] + c.take1 * (g - first[i].at[j]);
            const float v = c.beta2 * second[i].at[j] + c.take2 * g * g;
            const float root = sqrtf(v) / c.root_correction + c.epsilon;
            weight[i].at[j] = weight[i].at[j] * keep - c.step_size * (m / root);
            first[i].at[j] = m;
            second[i].at[j] = v;
        }
        put(weights, at, end, aligned, weight[i]);
        put(firsts, at, end, aligned, first[i]);
        put(seconds, at, end, aligned, second[i]);
        if (computes) put(computes, at, end, aligned, weight[i]);
    }
}

struct Sgd { float factor, learning_rate, momentum, weight_decay; u32 first_step; };

// The momentum buffer is the parameter's `first`.
template <typename G> __device__ __forceinline__ void sgd(const Parameter &parameter, u64 start, Sgd c) {
    const u64 end = parameter.elements;
    const bool aligned = parameter.flags & ALIGNED;
    float *weights = reinterpret_cast<float *>(parameter.weight);
    float *buffers = reinterpret_cast<float *>(parameter.first);
    bf16 *computes = reinterpret_cast<bf16 *>(parameter.compute);
    Four weight[UNROLL], gradient[UNROLL], buffer[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + i * THREADS * 4;
        gradient[i] = take(reinterpret_cast<const G *>(parameter.gradient), at, end, aligned);
        weight[i] = take(weights, at, end, aligned);
        if (buffers && !c.first_step) buffer[i] = take(buffers, at, end, aligned);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + i * THREADS * 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float step = gradient[i].at[j] * c.factor + c.weight_decay * weight[i].at[j];
            if (buffers && !c.first_step) step = c.momentum * buffer[i].at[j] + step;
            buffer[i].at[j] = step;
            weight[i].at[j] -= c.learning_rate * step;
        }
        put(weights, at, end, aligned, weight[i]);
        if (buffers) put(buffers, at, end, aligned, buffer[i]);
        if (computes) put(computes, at, end, aligned, weight[i]);
    }
}

// G: of the gradients. `factor`: the norm and what clips it, or null.
#define FOR_TYPE(NAME, G)                                                                                              \
    KERNEL __launch_bounds__(THREADS)                                                                                  \
        adamw_##NAME(const Parameter *__restrict__ parameters, const float *__restrict__ factor, u32 count, float keep,\
                     float take1, float beta2, float take2, float root_correction, float epsilon, float step_size) {   \
        const AdamW c = {factor ? factor[1] : 1.0f, keep, take1, beta2, take2, root_correction, epsilon, step_size};   \
        for_chunk(parameters, count, [&](const Parameter &p, u64 at) { adamw<G>(p, at, c); });                         \
    }                                                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                                  \
        sgd_##NAME(const Parameter *__restrict__ parameters, const float *__restrict__ factor, u32 count,              \
                   float learning_rate, float momentum, float weight_decay, u32 first_step) {                          \
        const Sgd c = {factor ? factor[1] : 1.0f, learning_rate, momentum, weight_decay, first_step};                  \
        for_chunk(parameters, count, [&](const Parameter &p, u64 at) { sgd<G>(p, at, c); });                           \
    }

FOR_EACH_TYPE(FOR_TYPE)
