// Multiplication of a tensor by a number, set at launch or read from the device.
#include "elementwise.cuh"

struct Multiply {
    float factor;
    __device__ float operator()(float x) const { return x * factor; }
};

#define FOR_TYPE(NAME, T)                                                \
    KERNEL in_place_##NAME(T *x, float factor, u64 count, u32 vector) {  \
        unary(x, x, Multiply{factor}, count, vector);                    \
    }                                                                    \
    KERNEL by_##NAME(const float *factor, T *x, u64 count, u32 vector) { \
        unary(x, x, Multiply{*factor}, count, vector);                   \
    }

FOR_EACH_TYPE(FOR_TYPE)
