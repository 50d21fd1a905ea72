// Largest magnitudes of arrays, as bits: a comparison of integers that NaN wins and that needs no order.
#pragma once
#include "common.cuh"

// The largest magnitude is spread over CELLS words, zero at first, so that warps do not wait for each other.
#define INFINITE 0x7f800000u
struct Maximum {
    u32 bits = 0;
    __device__ __forceinline__ void add(float x) { bits = max(bits, __float_as_uint(fabsf(x))); }
    template <int N> __device__ __forceinline__ void add(const Floats<N> &values) {
#pragma unroll
        for (int i = 0; i < N; i++) add(values.at[i]);
    }
};

// The largest of a warp's lanes, in each of them; sm_75 has no instruction for it.
__device__ __forceinline__ u32 warp_maximum(u32 bits) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, offset));
    return bits;
}

// The largest of all cells, in every lane of a warp: each warp reads them, because a barrier would hold back
// the loads after it.
__device__ __forceinline__ u32 largest_of(const u32 *cells) {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < CELLS / WARP; i++) bits = max(bits, cells[i * WARP + threadIdx.x % WARP]);
    return warp_maximum(bits);
}

// The word as it was some time in this kernel, from the cache of the multiprocessor.
__device__ __forceinline__ u32 earlier(const u32 *word) {
    u32 value;
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

// Adds the bits of a magnitude, which each lane of a warp has, to one of the cells: neighbouring warps use
// others. A cell only grows, so that most warps see from its earlier value that they have nothing to add.
__device__ __forceinline__ void record_bits(u32 mine, u32 *cells) {
    const u32 bits = warp_maximum(mine);
    const u32 warp = (blockIdx.x + blockIdx.y + blockIdx.z) * (blockDim.x / WARP) + threadIdx.x / WARP;
    u32 *cell = cells + warp % CELLS;
    if (threadIdx.x % WARP == 0 && bits > earlier(cell)) atomicMax(cell, bits);
}

// Adds a warp's maximum, rounded to T: rounding keeps the order, so values are compared before it. All lanes
// of a warp call it; whole warps may be absent.
template <typename T> __device__ __forceinline__ void record(const Maximum &mine, u32 *cells) {
    record_bits(__float_as_uint(to_f32(from_f32<T>(__uint_as_float(mine.bits)))), cells);
}

// The larger magnitudes of two pairs of 16-bit floats; those of bf16 are the upper halves of their bits in
// f32.
__device__ __forceinline__ u32 larger_pair(u32 magnitudes, u32 pair) {
    return __vmaxu2(magnitudes, pair & 0x7fff7fff);
}

// Adds the larger of each lane's pair of magnitudes in bf16.
__device__ __forceinline__ void record_pair(u32 magnitudes, u32 *cells) {
    record_bits(max(magnitudes & 0xffff0000, magnitudes << 16), cells);
}
