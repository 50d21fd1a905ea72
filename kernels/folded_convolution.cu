// A batch norm folded into the weight and bias of the convolution before it.
#include "common.cuh"

// Launch: a thread for each WIDE elements of the weight. Floor: the weight in, the folded weight out.

// The scale of a channel, rounded as on the host.
template <typename T>
__device__ __forceinline__ float scale_of(const T *weight, const float *variances, u32 channel,
                                          float epsilon) {
    return to_f32(weight[channel]) * (1.0f / sqrtf(variances[channel] + epsilon));
}

// folded[channel][i] = weight[channel][i] * scale, bias_out[channel] = bias - mean * scale, where scale =
// norm_weight / sqrt(variance + epsilon). The thread with a channel's first element writes its bias.
template <typename From, typename To>
__device__ __forceinline__ void fold(const From *weight, const From *norm_weight, const From *norm_bias,
                                     const float *means, const float *variances, To *folded, To *bias,
                                     u32 window, u32 count, u32 vector, float epsilon) {
    const u32 first = (blockIdx.x * THREADS + threadIdx.x) * WIDE;
    if (first >= count) return;
    if (vector) {
        const u32 channel = first / window;
        const float scale = scale_of(norm_weight, variances, channel, epsilon);
        Floats<WIDE> values = read<WIDE>(weight + first);
#pragma unroll
        for (int i = 0; i < WIDE; i++) values.at[i] *= scale;
        write(folded + first, values);
        if (first == channel * window)
            bias[channel] = from_f32<To>(fmaf(-means[channel], scale, to_f32(norm_bias[channel])));
        return;
    }
    for (u32 at = first; at < min(first + WIDE, count); at++) {
        const u32 channel = at / window;
        const float scale = scale_of(norm_weight, variances, channel, epsilon);
        folded[at] = from_f32<To>(to_f32(weight[at]) * scale);
        if (at == channel * window)
            bias[channel] = from_f32<To>(fmaf(-means[channel], scale, to_f32(norm_bias[channel])));
    }
}

#define FOLD(FROM, From, TO, To)                                                                             \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        fold_##FROM##_##TO(const From *__restrict__ weight, const From *__restrict__ norm_weight,            \
                           const From *__restrict__ norm_bias, const float *__restrict__ means,              \
                           const float *__restrict__ variances, To *__restrict__ folded,                     \
                           To *__restrict__ bias, u32 window, u32 count, u32 vector, float epsilon) {        \
        fold(weight, norm_weight, norm_bias, means, variances, folded, bias, window, count, vector,          \
             epsilon);                                                                                       \
    }
#define FOLD_HALF(NAME, T) FOLD(NAME, T, NAME, T) FOLD(f32, float, NAME, T)

FOLD(f32, float, f32, float)
FOR_EACH_HALF(FOLD_HALF)
