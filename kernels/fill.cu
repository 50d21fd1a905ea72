// Constant values.
#include "elementwise.cuh"

template <typename T> struct Fill {
    template <int N> struct Held {};
    T *out;
    float value;
    template <int N> __device__ __forceinline__ Held<N> load(u64) const { return {}; }
    template <int N> __device__ __forceinline__ void store(u64 at, const Held<N> &) const {
        Floats<N> result;
#pragma unroll
        for (int i = 0; i < N; i++) result.at[i] = value;
        write(out + at, result);
    }
};

#define FOR_TYPE(NAME, T)                                                \
    KERNEL constant_##NAME(T *out, float value, u64 count, u32 vector) { \
        run<LANES_OF(T)>(Fill<T>{out, value}, count, vector);            \
    }

FOR_EACH_TYPE(FOR_TYPE)
