// Conversion between element types, by way of f32.
#include "elementwise.cuh"

struct Identity {
    __device__ float operator()(float x) const { return x; }
};

// Eight elements per thread: 16 bytes of one type, 32 of the other.
#define FOR_HALF(NAME, T)                                                       \
    KERNEL cast_f32_##NAME(const float *from, T *to, u64 count, u32 vector) {   \
        run<8>(Unary<float, T, Identity>{from, to, Identity{}}, count, vector); \
    }                                                                           \
    KERNEL cast_##NAME##_f32(const T *from, float *to, u64 count, u32 vector) { \
        run<8>(Unary<T, float, Identity>{from, to, Identity{}}, count, vector); \
    }

FOR_EACH_HALF(FOR_HALF)
