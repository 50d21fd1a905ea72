// Element-wise operators.
#pragma once
#include "common.cuh"

// Launch: THREADS threads; a block owns THREADS * UNROLL vectors of N elements, so every thread has UNROLL
// loads of up to 16 bytes of each operand in flight before the first is used, and the grid covers the array
// once. `vector`: all pointers are 16-byte aligned; otherwise N is 1. Floor of all of these: every operand
// once through memory. Calls `op.load` for all of a thread's vectors, then `op.store`: the result may
// overwrite an operand. The last block processes the elements after the last whole vector.
template <int N, typename Op> __device__ __forceinline__ void each(const Op &op, u64 count) {
    const u64 vectors = count / N;
    const u64 first = u64(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
    typename Op::template Held<N> held[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 vector = first + i * THREADS;
        if (vector < vectors) held[i] = op.template load<N>(vector * N);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 vector = first + i * THREADS;
        if (vector < vectors) op.template store<N>(vector * N, held[i]);
    }
    if (N > 1 && blockIdx.x == gridDim.x - 1 && threadIdx.x < count - vectors * N) {
        const u64 at = vectors * N + threadIdx.x;
        op.template store<1>(at, op.template load<1>(at));
    }
}
template <int N, typename Op> __device__ __forceinline__ void run(const Op &op, u64 count, u32 vector) {
    if (vector)
        each<N>(op, count);
    else
        each<1>(op, count);
}

// out = map(a).
template <typename In, typename Out, typename Map> struct Unary {
    template <int N> using Held = Floats<N>;
    const In *a;
    Out *out;
    Map map;
    template <int N> __device__ __forceinline__ Held<N> load(u64 at) const { return read<N>(a + at); }
    template <int N> __device__ __forceinline__ void store(u64 at, const Held<N> &held) const {
        Floats<N> result;
#pragma unroll
        for (int i = 0; i < N; i++) result.at[i] = map(held.at[i]);
        write(out + at, result);
    }
};

// out = map(a, b).
template <typename T, typename Map> struct Binary {
    template <int N> struct Held {
        Floats<N> a, b;
    };
    const T *a;
    const T *b;
    T *out;
    Map map;
    template <int N> __device__ __forceinline__ Held<N> load(u64 at) const {
        return {read<N>(a + at), read<N>(b + at)};
    }
    template <int N> __device__ __forceinline__ void store(u64 at, const Held<N> &held) const {
        Floats<N> result;
#pragma unroll
        for (int i = 0; i < N; i++) result.at[i] = map(held.a.at[i], held.b.at[i]);
        write(out + at, result);
    }
};

#define LANES_OF(T) (16 / int(sizeof(T)))

template <typename T, typename Map>
__device__ __forceinline__ void unary(const T *a, T *out, Map map, u64 count, u32 vector) {
    run<LANES_OF(T)>(Unary<T, T, Map>{a, out, map}, count, vector);
}
template <typename T, typename Map>
__device__ __forceinline__ void binary(const T *a, const T *b, T *out, Map map, u64 count, u32 vector) {
    run<LANES_OF(T)>(Binary<T, Map>{a, b, out, map}, count, vector);
}
