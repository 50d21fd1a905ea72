// Arrays of pixels with zeros after their channels, as convolutions of half types need them.
#include "common.cuh"

// Launch: THREADS threads. Floor: both arrays once.

// The first `own` of `channels` channels are those of x, the others 0. A thread for each WIDE channels of a
// pixel; `channels` is a multiple of them.
template <typename T>
__device__ __forceinline__ void pad(const T *x, T *padded, u32 own, u32 channels, u32 count) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    const u32 vectors = channels / WIDE, pixel = index / vectors, first = (index - pixel * vectors) * WIDE;
    Floats<WIDE> values;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        values.at[i] = first + i < own ? to_f32(x[u64(pixel) * own + first + i]) : 0.0f;
    }
    write(padded + u64(index) * WIDE, values);
}

// out (+)= the first `own` of `channels` channels. A thread for each element of `out`.
template <typename T, typename Out>
__device__ __forceinline__ void unpad(const T *padded, Out *out, u32 own, u32 channels, u32 count,
                                      u32 accumulate) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    const u32 pixel = index / own, channel = index - pixel * own;
    const float value = to_f32(padded[u64(pixel) * channels + channel]);
    out[index] = from_f32<Out>(accumulate ? to_f32(out[index]) + value : value);
}

#define CHANNELS(NAME, T)                                                                                    \
    KERNEL pad_##NAME(const T *__restrict__ x, T *__restrict__ padded, u32 own, u32 channels, u32 count) {   \
        pad(x, padded, own, channels, count);                                                                \
    }                                                                                                        \
    KERNEL unpad_##NAME##_##NAME(const T *__restrict__ padded, T *out, u32 own, u32 channels, u32 count,     \
                                 u32 accumulate) {                                                           \
        unpad(padded, out, own, channels, count, accumulate);                                                \
    }                                                                                                        \
    KERNEL unpad_##NAME##_f32(const T *__restrict__ padded, float *out, u32 own, u32 channels, u32 count,    \
                              u32 accumulate) {                                                              \
        unpad(padded, out, own, channels, count, accumulate);                                                \
    }

FOR_EACH_HALF(CHANNELS)
