// Operands of FP8 matmuls: their formats, and what they are made of.
#pragma once
#include "activation.cuh"

// Conversions to FP8 are instructions from sm_89 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890

struct E4m3 {
    __device__ __forceinline__ static float largest() { return 448.0f; }
    __device__ __forceinline__ static u32 pair(float low, float high) {
        u16 codes;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
        return codes;
    }
};
struct E5m2 {
    __device__ __forceinline__ static float largest() { return 57344.0f; }
    __device__ __forceinline__ static u32 pair(float low, float high) {
        u16 codes;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
        return codes;
    }
};

// The factor that turns codes back: the largest magnitude becomes the format's largest value. 1 for zeros;
// not finite if an element is not.
template <typename Format> __device__ __forceinline__ float inverse(u32 bits) {
    const u32 tiny = 27u << 23; // 2^-100: its reciprocal times the largest value is finite
    return bits == 0 ? 1.0f : __uint_as_float(max(bits, tiny)) / Format::largest();
}

#define GROUP 8

// GROUP columns of one row of the operand, as loaded: 16 bytes of each part. Kernels load several of them
// before they compute with one, to have enough loads on their way.
template <int PARTS> struct Loaded {
    Vector<u32, GROUP / 2> part[PARTS];
};

template <typename T> __device__ __forceinline__ Floats<GROUP> floats(const Vector<u32, GROUP / 2> &words) {
    Floats<GROUP> values;
#pragma unroll
    for (int i = 0; i < GROUP / 2; i++) {
        values.at[2 * i] = Word<T>::first(words.at[i]);
        values.at[2 * i + 1] = Word<T>::last(words.at[i]);
    }
    return values;
}

// What a matmul's operand is made of: elements of x, an activation of them, or a gate of pairs. A row of x
// has PARTS times the operand's columns.
struct Plain {
    static const int PARTS = 1;
    template <typename T> __device__ __forceinline__ static Floats<GROUP> values(const Loaded<1> &x) {
        return floats<T>(x.part[0]);
    }
};
template <typename Function> struct Activated {
    static const int PARTS = 1;
    template <typename T> __device__ __forceinline__ static Floats<GROUP> values(const Loaded<1> &x) {
        Floats<GROUP> values = floats<T>(x.part[0]);
#pragma unroll
        for (int i = 0; i < GROUP; i++) values.at[i] = to_f32(from_f32<T>(Function::value(values.at[i])));
        return values;
    }
};
template <typename Function> struct Gated {
    static const int PARTS = 2;
    template <typename T> __device__ __forceinline__ static Floats<GROUP> values(const Loaded<2> &x) {
        const Floats<GROUP> gate = floats<T>(x.part[0]);
        Floats<GROUP> up = floats<T>(x.part[1]);
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            up.at[i] = to_f32(from_f32<T>(up.at[i] * Function::value(gate.at[i])));
        return up;
    }
};

// Loads the group at `column` of a row of the operand.
template <int PARTS, typename T>
__device__ __forceinline__ Loaded<PARTS> load_group(const T *x, u32 row, u32 column, u32 width, u32 vector) {
    static_assert(sizeof(T) == 2, "a word is of two elements");
    Loaded<PARTS> loaded;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const T *at = x + (u64(row) * PARTS + part) * width + column;
        if (vector) {
            loaded.part[part] = load<GROUP / 2>(reinterpret_cast<const u32 *>(at));
            continue;
        }
#pragma unroll
        for (int i = 0; i < GROUP / 2; i++)
            loaded.part[part].at[i] = u32(at[2 * i].bits) | u32(at[2 * i + 1].bits) << 16;
    }
    return loaded;
}

#endif
