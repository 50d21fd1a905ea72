// Kernels that hold rows in registers: layer norm and RMS norm.
#pragma once
#include "common.cuh"

// Launch: a row belongs to a group of GROUP threads (a warp, or a block of 256) that holds it in registers,
// HELD vectors of 16 bytes a thread, so that it is read once and all its loads are in flight together; warps
// keep rows of up to 32 * 8 vectors free of barriers. Blocks have 256 threads, so 8 rows or 1; the grid has
// one group for every row. Rows of any other width or alignment go to the `any` kernels: a block for a row,
// re-read from the caches.

// Sums over a group in a fixed order; every thread of the group has the result.
template <int GROUP> __device__ __forceinline__ float group_sum(float x) {
    x = warp_sum(x);
    if (GROUP == WARP) return x;
    // The barrier before the write lets all threads read the previous sum.
    __shared__ float partial[THREADS / WARP];
    __syncthreads();
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / WARP; i++) total += partial[i];
    return total;
}

// 16 bytes of a row, unconverted.
template <typename T> struct Wide {
    static const int N = 16 / sizeof(T);
    Vector<u32, 4> words;

    __device__ __forceinline__ void read(const T *from) {
        words = load<4>(reinterpret_cast<const u32 *>(from));
    }
    __device__ __forceinline__ void write(T *to) const { store<4>(reinterpret_cast<u32 *>(to), words); }
    // Makes the compiler assume that the words have changed: otherwise it would keep their f32 values, which
    // take twice the registers.
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+r"(words.at[i]));
    }
    __device__ __forceinline__ Floats<N> floats() const {
        Floats<N> values;
        constexpr int EACH = Word<T>::N;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            values.at[EACH * i] = Word<T>::first(words.at[i]);
            if (EACH == 2) values.at[EACH * i + EACH - 1] = Word<T>::last(words.at[i]);
        }
        return values;
    }
    __device__ __forceinline__ void round(const Floats<N> &values) {
        constexpr int EACH = Word<T>::N;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words.at[i] = Word<T>::round(values.at[EACH * i], values.at[EACH * i + EACH - 1]);
        }
    }
};

// A thread's vectors of a row: vector lane + i * GROUP of the row is vector i of the thread.
template <typename T, int GROUP, int HELD> struct Row {
    static const int N = Wide<T>::N;
    Wide<T> held[HELD];

    __device__ __forceinline__ void read(const T *row, u32 vectors, u32 lane) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            if (lane + i * GROUP < vectors) held[i].read(row + (lane + i * GROUP) * N);
        }
    }
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int i = 0; i < HELD; i++) held[i].forget();
    }
};

// A thread's row, its lane in the row's group, and the row's start and number of vectors.
template <typename T, int GROUP> struct RowPosition {
    u32 lane, row, vectors;
    u64 start;
    __device__ __forceinline__ explicit RowPosition(u32 width)
        : lane(threadIdx.x % GROUP),
          row(blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP),
          vectors(width / Wide<T>::N),
          start(u64(row) * width) {}
};

// Adds the rows of `branch` to `row`, rounds, and writes the sum.
template <typename T, int GROUP, int HELD>
__device__ __forceinline__ void add_branch(Row<T, GROUP, HELD> &row, const RowPosition<T, GROUP> &position,
                                           const T *branch, T *sum) {
    constexpr int N = Wide<T>::N;
    Row<T, GROUP, HELD> other;
    other.read(branch + position.start, position.vectors, position.lane);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 vector = position.lane + i * GROUP;
        if (vector < position.vectors) {
            Floats<N> a = row.held[i].floats();
            const Floats<N> b = other.held[i].floats();
#pragma unroll
            for (int j = 0; j < N; j++) a.at[j] += b.at[j];
            row.held[i].round(a);
            row.held[i].write(sum + position.start + vector * N);
        }
    }
}

// The kernels of every form. The including file defines `forward`, `backward`, `forward_any` and
// `backward_any`, the ARGUMENTS of its kernels, and the OPERANDS that they pass on before the sizes.
#define HELD_ROWS(NAME, T, PLACE, GROUP, HELD)                                                 \
    KERNEL __launch_bounds__(THREADS) forward_##PLACE##HELD##_##NAME(FORWARD_ARGUMENTS(T)) {   \
        forward<T, GROUP, HELD>(FORWARD_OPERANDS, rows, width, epsilon, cells);                \
    }                                                                                          \
    KERNEL __launch_bounds__(THREADS) backward_##PLACE##HELD##_##NAME(BACKWARD_ARGUMENTS(T)) { \
        backward<T, GROUP, HELD>(BACKWARD_OPERANDS, rows, width, cells);                       \
    }
#define HELD_AND_OTHER_ROWS(NAME, T)                                               \
    HELD_ROWS(NAME, T, warp, WARP, 1)                                              \
    HELD_ROWS(NAME, T, warp, WARP, 2)                                              \
    HELD_ROWS(NAME, T, warp, WARP, 4)                                              \
    HELD_ROWS(NAME, T, warp, WARP, 8)                                              \
    HELD_ROWS(NAME, T, block, THREADS, 2)                                          \
    HELD_ROWS(NAME, T, block, THREADS, 4)                                          \
    HELD_ROWS(NAME, T, block, THREADS, 8)                                          \
    KERNEL __launch_bounds__(THREADS) forward_any_##NAME(FORWARD_ARGUMENTS(T)) {   \
        forward_any(FORWARD_OPERANDS, width, epsilon, cells);                      \
    }                                                                              \
    KERNEL __launch_bounds__(THREADS) backward_any_##NAME(BACKWARD_ARGUMENTS(T)) { \
        backward_any(BACKWARD_OPERANDS, width, cells);                             \
    }
