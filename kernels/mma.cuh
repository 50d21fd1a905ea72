// The matmul of a warp's tile on the tensor cores of any GPU that has them (mma.sync).
#pragma once
#include "common.cuh"

#define MMA(SHAPE, TYPE) "mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE ".f32 "

// c [16, 8] += a [16, 16] b [16, 8], in the fragments of the PTX manual.
template <typename T>
__device__ __forceinline__ void multiply_tile(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);

#if __CUDA_ARCH__ >= 800
#define FOR_TYPE(NAME, T)                                                                                   \
    template <>                                                                                             \
    __device__ __forceinline__ void multiply_tile<T>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {    \
        asm volatile(MMA("m16n8k16", #NAME) "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"         \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                       \
    }
FOR_EACH_HALF(FOR_TYPE)
#undef FOR_TYPE
#else
template <>
__device__ __forceinline__ void multiply_tile<f16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const u32 b[2] = {b0, b1};
#pragma unroll
    for (int k = 0; k < 2; ++k)
        asm volatile(MMA("m16n8k8", "f16") "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
}
#endif
