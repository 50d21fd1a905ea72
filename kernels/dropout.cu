// Dropout: out = x * factor for every element; the gradient is the same function of the output's gradient.
#include "philox.cuh"

// Launch: as in elementwise.cuh, four elements for each draw of words. Floor: x in, out out.
template <int N, typename T>
__device__ __forceinline__ void drop(const T *x, T *out, u64 count, u64 first_draw, const Dropout &dropout) {
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
            const u64 draw = first_draw + (vector * N + piece) / 4;
            const Words words = philox(dropout.key0, dropout.key1, u32(draw), u32(draw >> 32), 0, 0);
#pragma unroll
            for (int j = 0; j < 4; j++) held[i].at[piece + j] *= dropout.factor(words.at[j]);
        }
        write(out + vector * N, held[i]);
    }
}

// One element: for unaligned arrays, and for the rest of aligned ones.
template <typename T>
__device__ __forceinline__ void drop_one(const T *x, T *out, u64 at, u64 first_draw, const Dropout &dropout) {
    const u64 draw = first_draw + at / 4;
    const Words words = philox(dropout.key0, dropout.key1, u32(draw), u32(draw >> 32), 0, 0);
    out[at] = from_f32<T>(to_f32(x[at]) * dropout.factor(words.at[at % 4]));
}

#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS) dropout_##NAME(const T *x, T *out, u64 count, u32 key0, u32 key1,    \
                                                     u32 threshold, float scale, u64 first_draw,           \
                                                     u32 vector) {                                         \
        constexpr int N = 16 / sizeof(T);                                                                  \
        const Dropout dropout = {key0, key1, threshold, scale};                                            \
        if (vector) {                                                                                      \
            drop<N>(x, out, count, first_draw, dropout);                                                   \
            const u64 rest = count / N * N + threadIdx.x;                                                  \
            if (blockIdx.x == gridDim.x - 1 && rest < count)                                               \
                drop_one(x, out, rest, first_draw, dropout);                                               \
        } else {                                                                                           \
            const u64 first = u64(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;                          \
            for (u32 i = 0; i < UNROLL; i++)                                                               \
                if (first + i * THREADS < count)                                                           \
                    drop_one(x, out, first + i * THREADS, first_draw, dropout);                            \
        }                                                                                                  \
    }

FOR_EACH_TYPE(FOR_TYPE)
