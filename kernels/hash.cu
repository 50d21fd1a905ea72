// Hashes of tensors.
#include "common.cuh"

// SplitMix64 of an element's bits and index, as on the host.
__device__ __forceinline__ u64 mixed(u64 index, u64 value) {
    u64 x = value + (index + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// sum += the mixtures of all elements, modulo 2^64. Sums of integers do not depend on their order. Launch:
// blocks of THREADS threads.
template <typename T> __device__ __forceinline__ void add(const T *elements, u64 *sum, u64 count) {
    u64 own = 0;
    for (u64 at = u64(blockIdx.x) * THREADS + threadIdx.x; at < count; at += u64(gridDim.x) * THREADS) {
        own += mixed(at, u64(elements[at]));
    }
    for (u32 half = WARP / 2; half > 0; half /= 2) own += __shfl_xor_sync(0xffffffffu, own, half);
    __shared__ u64 sums[THREADS / WARP];
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = own;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 warp = 1; warp < THREADS / WARP; warp++) own += sums[warp];
    atomicAdd((unsigned long long *)sum, (unsigned long long)own);
}

#define FOR_SIZE(BYTES, T)                                                                                 \
    KERNEL __launch_bounds__(THREADS) add_##BYTES(const T *__restrict__ elements, u64 *sum, u64 count) {   \
        add<T>(elements, sum, count);                                                                      \
    }

FOR_SIZE(1, u8)
FOR_SIZE(2, u16)
FOR_SIZE(4, u32)
