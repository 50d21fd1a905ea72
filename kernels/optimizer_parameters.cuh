// The parameters of an update, and vectors of four of their elements.
#pragma once
#include "common.cuh"

// A table on the device lists the parameters, then for each (and one past the last) the first block that
// works on it. A block finds its parameter by bisection and owns CHUNK elements of it. Launch: THREADS
// threads, a block for every chunk of every parameter; every thread has UNROLL vectors of each array in
// flight. Floor: AdamW reads gradient, weight and both moments and writes all but the gradient, 28 bytes an
// element (30 with a copy in half precision); SGD 12, with momentum 20. A gradient in half precision saves 2.
#define UNROLL 2

// Absent tensors have the address 0.
struct Parameter {
    u64 weight, gradient, states[MOST_STATES], compute;
    u64 elements;
    // DECAY: weight decay applies. ALIGNED: every address is a multiple of 16. COPY_IN_F16: the copy is in
    // f16, else in bf16.
    // Above FIRST_CHUNK: the index of the first element in the whole parameter, in units of STREAM_CHUNK.
    u32 flags;
    // The stream of random numbers that round states in bf16.
    u32 stream;
};
#define DECAY 1u
#define ALIGNED 2u
#define COPY_IN_F16 4u
#define FIRST_CHUNK 8
#define STREAM_KEY 0x73746174u

struct Four { float at[4]; };

// Four elements from `at` on; those at or past `end` are 0.
template <typename T> __device__ __forceinline__ Four take(const T *from, u64 at, u64 end, bool aligned) {
    Four values;
    if (aligned && at + 4 <= end) {
        const Vector<T, 4> loaded = load<4>(from + at);
#pragma unroll
        for (int i = 0; i < 4; i++) values.at[i] = to_f32(loaded.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) values.at[i] = at + i < end ? to_f32(from[at + i]) : 0.0f;
    }
    return values;
}
// Stores four elements from `at` on, but none at or past `end`.
template <typename T>
__device__ __forceinline__ void put(T *to, u64 at, u64 end, bool aligned, const Vector<T, 4> &elements) {
    if (aligned && at + 4 <= end) {
        store<4>(to + at, elements);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (at + i < end) to[at + i] = elements.at[i];
        }
    }
}
// Stores four values likewise, rounded to T.
template <typename T>
__device__ __forceinline__ void put(T *to, u64 at, u64 end, bool aligned, const Four &values) {
    if (aligned && at + 4 <= end) {
        Vector<T, 4> rounded;
#pragma unroll
        for (int i = 0; i < 4; i++) rounded.at[i] = from_f32<T>(values.at[i]);
        store<4>(to + at, rounded);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (at + i < end) to[at + i] = from_f32<T>(values.at[i]);
        }
    }
}

// Rounds weights into the copy for computing.
__device__ __forceinline__ void put_copy(const Parameter &parameter, u64 at, u64 end, bool aligned,
                                         const Four &weights) {
#if __CUDA_ARCH__ >= 800
    if (!(parameter.flags & COPY_IN_F16)) {
        put(reinterpret_cast<bf16 *>(parameter.compute), at, end, aligned, weights);
        return;
    }
#endif
    put(reinterpret_cast<f16 *>(parameter.compute), at, end, aligned, weights);
}

// Rounds a chunk's weights into the copy for computing. A skipped step does this too: the copy may be in a
// buffer that is stored afterwards, and holds other elements until then. Launch notes as above.
__device__ __forceinline__ void copy_chunk(const Parameter &parameter, u64 first) {
    if (!parameter.compute) return;
    const u64 end = parameter.elements;
    const bool aligned = parameter.flags & ALIGNED;
    const float *weights = reinterpret_cast<const float *>(parameter.weight);
#pragma unroll 1
    for (u64 at = first + threadIdx.x * 4; at < first + CHUNK; at += THREADS * 4) {
        put_copy(parameter, at, end, aligned, take(weights, at, end, aligned));
    }
}
