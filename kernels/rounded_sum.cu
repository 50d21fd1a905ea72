// The sum of partial results in a fixed tree, a bias, and one rounding.
#include "common.cuh"

// Up to eight arrays in f32, of which `count` exist.
struct Parts {
    const float *at[8];
    u32 count;
};

// Their sum at N elements: neighbours in pairs, level by level.
template <int N> __device__ __forceinline__ Floats<N> tree(const Parts &parts, u64 first) {
    Floats<N> values[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < parts.count) values[i] = read<N>(parts.at[i] + first);
    u32 count = parts.count;
#pragma unroll
    for (int level = 4; level > 0; level /= 2) {
#pragma unroll
        for (int i = 0; i < level; i++) {
            if (2 * i + 1 < count)
#pragma unroll
                for (int j = 0; j < N; j++) values[i].at[j] = values[2 * i].at[j] + values[2 * i + 1].at[j];
            else if (2 * i < count)
                values[i] = values[2 * i];
        }
        count = (count + 1) / 2;
    }
    return values[0];
}

// out = tree + bias, rounded; bias may be null. N divides `width`, and with N > 1 all arrays are aligned.
// Launch: a thread for every N elements. Floor: every array once through memory.
template <int N, typename T>
__device__ __forceinline__ void rounded_sum(const Parts &parts, const T *bias, T *out, u64 count, u32 width) {
    const u64 at = (u64(blockIdx.x) * THREADS + threadIdx.x) * N;
    if (at >= count) return;
    Floats<N> sum = tree<N>(parts, at);
    if (bias) {
        const Floats<N> added = read<N>(bias + at % width);
#pragma unroll
        for (int j = 0; j < N; j++) sum.at[j] += added.at[j];
    }
    write(out + at, sum);
}

#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS) rounded_sum_##NAME(                                                  \
        const float *__restrict__ p0, const float *__restrict__ p1, const float *__restrict__ p2,          \
        const float *__restrict__ p3, const float *__restrict__ p4, const float *__restrict__ p5,          \
        const float *__restrict__ p6, const float *__restrict__ p7, u32 parts, const T *__restrict__ bias, \
        T *__restrict__ out, u64 count, u32 width, u32 vector) {                                           \
        const Parts all = {{p0, p1, p2, p3, p4, p5, p6, p7}, parts};                                       \
        if (vector)                                                                                        \
            rounded_sum<4>(all, bias, out, count, width);                                                  \
        else                                                                                               \
            rounded_sum<1>(all, bias, out, count, width);                                                  \
    }

FOR_EACH_TYPE(FOR_TYPE)
