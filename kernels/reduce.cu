// Sums and maxima along one dimension of an array [outer, count, inner].
#include "common.cuh"

// Launch: THREADS threads. If inner is 1, a warp computes one result: its threads' terms in order, then a
// fixed butterfly. Otherwise a thread computes one, and adjacent threads read adjacent elements. Floor: the
// array in once.
struct Sum {
    __device__ __forceinline__ static float start() { return 0.0f; }
    __device__ __forceinline__ static float join(float a, float b) { return a + b; }
    __device__ __forceinline__ static float over_warp(float x) { return warp_sum(x); }
};
struct Maximum {
    __device__ __forceinline__ static float start() { return __uint_as_float(0xff800000u); }
    __device__ __forceinline__ static float join(float a, float b) { return fmaxf(a, b); }
    __device__ __forceinline__ static float over_warp(float x) { return warp_max(x); }
};

template <typename R, typename T>
__device__ __forceinline__ void reduce(const T *x, T *out, u64 results, u64 count, u64 inner) {
    const u64 thread = u64(blockIdx.x) * THREADS + threadIdx.x;
    float found = R::start();
    if (inner == 1) {
        const u64 result = thread / WARP;
        if (result >= results) return;
        for (u64 i = threadIdx.x % WARP; i < count; i += WARP)
            found = R::join(found, to_f32(x[result * count + i]));
        found = R::over_warp(found);
        if (threadIdx.x % WARP == 0) out[result] = from_f32<T>(found);
        return;
    }
    if (thread >= results) return;
    const T *own = x + thread / inner * count * inner + thread % inner;
    for (u64 i = 0; i < count; i++) found = R::join(found, to_f32(own[i * inner]));
    out[thread] = from_f32<T>(found);
}

// dx = dy at the first of the largest terms, 0 at all others. Launch: a thread per result.
template <typename T>
__device__ __forceinline__ void to_largest(const T *dy, const T *x, const T *y, T *dx, u64 results, u64 count,
                                           u64 inner) {
    const u64 result = u64(blockIdx.x) * THREADS + threadIdx.x;
    if (result >= results) return;
    const u64 first = result / inner * count * inner + result % inner;
    const float largest = to_f32(y[result]);
    bool written = false;
    for (u64 i = 0; i < count; i++) {
        const u64 at = first + i * inner;
        const bool own = !written && to_f32(x[at]) == largest;
        written = written || own;
        dx[at] = own ? dy[result] : from_f32<T>(0.0f);
    }
}

#define FOR_TYPE(NAME, T)                                                                             \
    KERNEL sum_##NAME(const T *x, T *out, u64 results, u64 count, u64 inner) {                        \
        reduce<Sum>(x, out, results, count, inner);                                                   \
    }                                                                                                 \
    KERNEL maximum_##NAME(const T *x, T *out, u64 results, u64 count, u64 inner) {                    \
        reduce<Maximum>(x, out, results, count, inner);                                               \
    }                                                                                                 \
    KERNEL to_largest_##NAME(const T *dy, const T *x, const T *y, T *dx, u64 results, u64 count,      \
                             u64 inner) {                                                             \
        to_largest(dy, x, y, dx, results, count, inner);                                              \
    }

FOR_EACH_TYPE(FOR_TYPE)
