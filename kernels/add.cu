// Sums of two tensors.
#include "elementwise.cuh"

struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

#define FOR_TYPE(NAME, T)                                                      \
    KERNEL add_##NAME(const T *a, const T *b, T *out, u64 count, u32 vector) { \
        binary(a, b, out, Sum{}, count, vector);                               \
    }

FOR_EACH_TYPE(FOR_TYPE)
