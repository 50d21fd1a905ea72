// Arrays of up to four dimensions with strided elements.
#pragma once
#include "common.cuh"

// The index of each element in memory: offset + sum of index * stride.
struct Layout {
    u64 offset, stride0, stride1, stride2, stride3;
    // Returns the index of element number `linear` in row-major order; sizes without the first.
    __device__ __forceinline__ u64 index(u64 linear, u32 size1, u32 size2, u32 size3) const {
        const u64 i3 = linear % size3, rest = linear / size3;
        const u64 i2 = rest % size2, outer = rest / size2;
        const u64 i1 = outer % size1, i0 = outer / size1;
        return offset + i0 * stride0 + i1 * stride1 + i2 * stride2 + i3 * stride3;
    }
};

#define LAYOUT(x) u64 x##_offset, u64 x##_0, u64 x##_1, u64 x##_2, u64 x##_3
#define LAYOUT_OF(x) \
    Layout { x##_offset, x##_0, x##_1, x##_2, x##_3 }
