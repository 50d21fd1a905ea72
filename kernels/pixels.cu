// Values of pixels, normalised by channel.
#include "common.cuh"

// A pixel's values are consecutive: element i is of channel i % channels.
struct Channels {
    double mean[MOST_CHANNELS];
    double deviation[MOST_CHANNELS];
    u32 count;
};

// Floor: every pixel and every result once through memory. A block normalises all LEVELS of each channel into
// shared memory, in f64 as the host does, and looks up THREADS * UNROLL vectors of N elements.
template <int N, typename T>
__device__ __forceinline__ void normalise(const u8 *pixels, T *out, const Channels &channels, u64 count) {
    __shared__ float levels[MOST_CHANNELS * LEVELS];
#pragma unroll
    for (u32 channel = 0; channel < MOST_CHANNELS; channel++) {
        if (channel >= channels.count) break;
        for (u32 level = threadIdx.x; level < LEVELS; level += THREADS)
            levels[channel * LEVELS + level] =
                float((double(level) / 255.0 - channels.mean[channel]) / channels.deviation[channel]);
    }
    __syncthreads();
    const u64 first = u64(blockIdx.x) * (THREADS * UNROLL * N);
    const u32 phase = u32(first % channels.count);
#pragma unroll 4
    for (u32 i = 0; i < UNROLL; i++) {
        const u32 own = (i * THREADS + threadIdx.x) * N;
        const u64 at = first + own;
        if (at >= count) return;
        u32 channel = (phase + own) % channels.count;
        const auto next = [&](u8 level) {
            const float value = levels[channel * LEVELS + level];
            channel = channel + 1 == channels.count ? 0 : channel + 1;
            return value;
        };
        if (at + N <= count) {
            const Vector<u8, N> held = load<N>(pixels + at);
            Floats<N> values;
#pragma unroll
            for (int j = 0; j < N; j++) values.at[j] = next(held.at[j]);
            write(out + at, values);
        } else {
            for (u64 j = at; j < count; j++) out[j] = from_f32<T>(next(pixels[j]));
        }
    }
}

// Launch: THREADS threads, enough blocks for all elements. `vector`: both pointers are aligned for accesses
// of LANES elements.
#define FOR_TYPE(NAME, T)                                                                              \
    KERNEL normalise_##NAME(const u8 *pixels, T *out, double mean0, double mean1, double mean2,        \
                            double mean3, double deviation0, double deviation1, double deviation2,     \
                            double deviation3, u32 channels, u64 count, u32 vector) {                  \
        const Channels of{                                                                             \
            {mean0, mean1, mean2, mean3}, {deviation0, deviation1, deviation2, deviation3}, channels}; \
        if (vector)                                                                                    \
            normalise<LANES>(pixels, out, of, count);                                                  \
        else                                                                                           \
            normalise<1>(pixels, out, of, count);                                                      \
    }

FOR_EACH_TYPE(FOR_TYPE)
