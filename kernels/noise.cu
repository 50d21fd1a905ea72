// Noise: out = x + magnitude * u for every element, with u uniform in [-1, 1).
#include "philox.cuh"

struct Noise {
    u32 key0, key1;
    float magnitude;
    u64 first_draw;
    __device__ __forceinline__ Words words(u64 at) const {
        const u64 draw = first_draw + at / 4;
        return philox(key0, key1, u32(draw), u32(draw >> 32), 0, 0);
    }
    // The host's bits: u is exact, and the product is rounded before the sum.
    __device__ __forceinline__ float add(float x, u32 word) const {
        const float u = float(word >> 8) * (1.0f / 8388608.0f) - 1.0f;
        return __fadd_rn(x, __fmul_rn(magnitude, u));
    }
};

// Launch: as in elementwise.cuh, four elements for each draw of words. Floor: x in, out out.
template <int N, typename T>
__device__ __forceinline__ void add_noise(const T *x, T *out, u64 count, const Noise &noise) {
    const u64 vectors = count / N, first = u64(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
    Floats<N> held[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 vector = first + i * THREADS;
        if (vector < vectors) held[i] = read<N>(x + vector * N);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 vector = first + i * THREADS;
        if (vector >= vectors) continue;
#pragma unroll
        for (int piece = 0; piece < N; piece += 4) {
            const Words words = noise.words(vector * N + piece);
#pragma unroll
            for (int j = 0; j < 4; j++) held[i].at[piece + j] = noise.add(held[i].at[piece + j], words.at[j]);
        }
        write(out + vector * N, held[i]);
    }
}

// One element: for unaligned arrays, and for the rest of aligned ones.
template <typename T>
__device__ __forceinline__ void add_noise_to_one(const T *x, T *out, u64 at, const Noise &noise) {
    out[at] = from_f32<T>(noise.add(to_f32(x[at]), noise.words(at).at[at % 4]));
}

#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS) noise_##NAME(const T *x, T *out, u64 count, u32 key0, u32 key1,      \
                                                   float magnitude, u64 first_draw, u32 vector) {          \
        constexpr int N = 16 / sizeof(T);                                                                  \
        const Noise noise = {key0, key1, magnitude, first_draw};                                           \
        if (vector) {                                                                                      \
            add_noise<N>(x, out, count, noise);                                                            \
            const u64 rest = count / N * N + threadIdx.x;                                                  \
            if (blockIdx.x == gridDim.x - 1 && rest < count) add_noise_to_one(x, out, rest, noise);        \
        } else {                                                                                           \
            const u64 first = u64(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;                          \
            for (u32 i = 0; i < UNROLL; i++)                                                               \
                if (first + i * THREADS < count)                                                           \
                    add_noise_to_one(x, out, first + i * THREADS, noise);                                  \
        }                                                                                                  \
    }

FOR_EACH_TYPE(FOR_TYPE)
