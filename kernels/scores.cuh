// Rows of scores, one for each class: access by vectors, exponentials, and sums over a block.
#pragma once
#include "common.cuh"

// The loss of an ignored row; no other loss is negative.
#define NO_LOSS -1.0f

// e^x for x up to 0, by the type of the scores: the library's for f32, the hardware's power of two (within
// 2^-22) for half types.
__device__ __forceinline__ float exponential(float x, float) { return expf(x); }
template <typename T> __device__ __forceinline__ float exponential(float x, T) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
    return power;
}

// 16 bytes of scores.
template <typename T> struct Wide {
    static const u32 N = 16 / sizeof(T);
    Vector<u32, 4> words;

    __device__ __forceinline__ explicit Wide(const T *from)
        : words(load<4>(reinterpret_cast<const u32 *>(from))) {}
    __device__ __forceinline__ float at(u32 i) const {
        const u32 word = words.at[i / Word<T>::N];
        return i % Word<T>::N == 0 ? Word<T>::first(word) : Word<T>::last(word);
    }
    __device__ __forceinline__ float largest() const {
        const u32 low = Word<T>::larger(words.at[0], words.at[1]),
                  high = Word<T>::larger(words.at[2], words.at[3]);
        const u32 word = Word<T>::larger(low, high);
        return Word<T>::N == 1 ? Word<T>::first(word) : fmaxf(Word<T>::first(word), Word<T>::last(word));
    }
    __device__ __forceinline__ void write(T *to, const float (&values)[N]) {
        constexpr u32 EACH = Word<T>::N;
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            words.at[i] = Word<T>::round(values[EACH * i], values[EACH * i + EACH - 1]);
        store<4>(reinterpret_cast<u32 *>(to), words);
    }
};

// A row cut at 16-byte boundaries: `head` scores, then `vectors` of N, then a tail up to `vocab`.
template <typename T> struct Cut {
    static const u32 N = Wide<T>::N;
    u32 head, vectors, vocab;
    __device__ __forceinline__ Cut(const T *row, u32 columns) : vocab(columns) {
        const u32 past = u32(reinterpret_cast<u64>(row) / sizeof(T)) % N;
        head = min(columns, (N - past) % N);
        vectors = (columns - head) / N;
    }
    __device__ __forceinline__ u32 tail() const { return head + vectors * N; }
    // Calls `vector(first score)` for whole vectors and `single(score)` for the rest; a thread's order
    // depends on the cut alone.
    template <typename Whole, typename Single>
    __device__ __forceinline__ void for_each(const Whole &whole, const Single &single) const {
        if (threadIdx.x < head) single(threadIdx.x);
#pragma unroll 2
        for (u32 vector = threadIdx.x; vector < vectors; vector += blockDim.x) whole(head + vector * N);
        if (tail() + threadIdx.x < vocab) single(tail() + threadIdx.x);
    }
};

// Maximum and sum over the block, warps joined in order; every thread has the result.
__device__ __forceinline__ float block_max(float x, float *shared) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    float result = shared[0];
    for (u32 warp = 1; warp < blockDim.x / WARP; warp++) result = fmaxf(result, shared[warp]);
    return result;
}
__device__ __forceinline__ float block_sum(float x, float *shared) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    float result = 0.0f;
    for (u32 warp = 0; warp < blockDim.x / WARP; warp++) result += shared[warp];
    return result;
}
