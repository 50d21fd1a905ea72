// Copies between layouts.
#include "layout.cuh"

// Launch: THREADS threads, one element each. Floor: every element in and out once; strides beyond a sector
// transfer whole sectors.
#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL copy_##NAME(const T *x, T *out, u32 size1, u32 size2, u32 size3, LAYOUT(x), LAYOUT(out),        \
                       u64 count) {                                                                        \
        const u64 linear = u64(blockIdx.x) * THREADS + threadIdx.x;                                        \
        if (linear < count)                                                                                \
            out[LAYOUT_OF(out).index(linear, size1, size2, size3)] =                                       \
                x[LAYOUT_OF(x).index(linear, size1, size2, size3)];                                        \
    }

FOR_EACH_TYPE(FOR_TYPE)
