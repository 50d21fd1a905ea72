// Definitions shared by all kernel families. The run-time compiler compiles this text and the family's own
// files, and no CUDA header. Everything here works from sm_75 on, bf16 from sm_80.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define WARP 32
#define ALL_LANES 0xffffffffu

// The element types that kernels are instantiated for: KERNELS(name, T) for each, where `name` is the host's
// name of the type. A new type is an entry in FOR_EACH_HALF, its conversions to_f32 and from_f32, and its
// Word.
#if __CUDA_ARCH__ >= 800
#define FOR_EACH_HALF(KERNELS) KERNELS(bf16, bf16) KERNELS(f16, f16)
#else
#define FOR_EACH_HALF(KERNELS) KERNELS(f16, f16)
#endif
#define FOR_EACH_TYPE(KERNELS) KERNELS(f32, float) FOR_EACH_HALF(KERNELS)

// bfloat16 and IEEE half precision in memory; arithmetic is in f32.
struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
__device__ __forceinline__ float to_f32(f16 x) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
}

// Rounds to nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ __forceinline__ u16 round_f16(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ __forceinline__ u32 pack_f16(float low, float high) {
    return u32(round_f16(low)) | u32(round_f16(high)) << 16;
}
template <typename T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x) {
    return bf16{u16(pack_bf16(x, 0.0f) & 0xffffu)};
}
template <> __device__ __forceinline__ f16 from_f32<f16>(float x) { return f16{round_f16(x)}; }

// The elements of T in a 32-bit word, N of them, the first in the lowest bits.
template <typename T> struct Word;
template <> struct Word<float> {
    static const int N = 1;
    __device__ __forceinline__ static float first(u32 word) { return __uint_as_float(word); }
    __device__ __forceinline__ static float last(u32 word) { return __uint_as_float(word); }
    // Rounds the element or elements.
    __device__ __forceinline__ static u32 round(float first, float) { return __float_as_uint(first); }
    // The larger elements of two words.
    __device__ __forceinline__ static u32 larger(u32 a, u32 b) {
        return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
    }
};
template <> struct Word<bf16> {
    static const int N = 2;
    __device__ __forceinline__ static float first(u32 word) { return __uint_as_float(word << 16); }
    __device__ __forceinline__ static float last(u32 word) { return __uint_as_float(word & 0xffff0000u); }
    __device__ __forceinline__ static u32 round(float first, float last) { return pack_bf16(first, last); }
    __device__ __forceinline__ static u32 larger(u32 a, u32 b) {
        u32 result;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
        return result;
    }
};

template <> struct Word<f16> {
    static const int N = 2;
    __device__ __forceinline__ static float first(u32 word) { return to_f32(f16{u16(word & 0xffffu)}); }
    __device__ __forceinline__ static float last(u32 word) { return to_f32(f16{u16(word >> 16)}); }
    __device__ __forceinline__ static u32 round(float first, float last) { return pack_f16(first, last); }
    __device__ __forceinline__ static u32 larger(u32 a, u32 b) {
        return pack_f16(fmaxf(first(a), first(b)), fmaxf(last(a), last(b)));
    }
};

// N elements that are loaded and stored as one access; N * sizeof(T) is at most 16 bytes.
template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
    T at[N];
};

template <int N, typename T> __device__ __forceinline__ Vector<T, N> load(const T *from) {
    return *reinterpret_cast<const Vector<T, N> *>(from);
}
template <int N, typename T> __device__ __forceinline__ void store(T *to, const Vector<T, N> &values) {
    *reinterpret_cast<Vector<T, N> *>(to) = values;
}

// N values to compute with.
template <int N> struct Floats {
    float at[N];
};

// N elements as f32, in accesses of at most 16 bytes.
template <int N, typename T> __device__ __forceinline__ Floats<N> read(const T *from) {
    constexpr int PIECE = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
    Floats<N> values;
#pragma unroll
    for (int piece = 0; piece < N; piece += PIECE) {
        const Vector<T, PIECE> loaded = load<PIECE>(from + piece);
#pragma unroll
        for (int i = 0; i < PIECE; i++) values.at[piece + i] = to_f32(loaded.at[i]);
    }
    return values;
}
template <int N, typename T> __device__ __forceinline__ void write(T *to, const Floats<N> &values) {
    constexpr int PIECE = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
#pragma unroll
    for (int piece = 0; piece < N; piece += PIECE) {
        Vector<T, PIECE> rounded;
#pragma unroll
        for (int i = 0; i < PIECE; i++) rounded.at[i] = from_f32<T>(values.at[piece + i]);
        store<PIECE>(to + piece, rounded);
    }
}

// Sums and maxima over a warp in a fixed butterfly: every thread has the same result.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}
__device__ __forceinline__ u32 warp_sum_u32(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(ALL_LANES, x);
#else
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
#endif
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

__device__ __forceinline__ u32 shared_address(const void *p) { return u32(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Transposes 4 by 4 words among the threads of a quad, in two rounds.
__device__ __forceinline__ void transpose_quad(u32 (&x)[4]) {
    const u32 quad = threadIdx.x % 4;
    const u32 a = __shfl_xor_sync(ALL_LANES, quad & 1 ? x[0] : x[1], 1);
    const u32 b = __shfl_xor_sync(ALL_LANES, quad & 1 ? x[2] : x[3], 1);
    x[0] = quad & 1 ? a : x[0], x[1] = quad & 1 ? x[1] : a, x[2] = quad & 1 ? b : x[2];
    x[3] = quad & 1 ? x[3] : b;
    const u32 c = __shfl_xor_sync(ALL_LANES, quad & 2 ? x[0] : x[2], 2);
    const u32 d = __shfl_xor_sync(ALL_LANES, quad & 2 ? x[1] : x[3], 2);
    x[0] = quad & 2 ? c : x[0], x[1] = quad & 2 ? d : x[1], x[2] = quad & 2 ? x[2] : c;
    x[3] = quad & 2 ? x[3] : d;
}

// Copies of 4 or 16 bytes to shared memory, asynchronous from sm_80 on; of the source's bytes, those past
// `bytes` are not read and become 0.
template <int SIZE>
__device__ __forceinline__ void copy_async(u32 shared, const void *global, u32 bytes = SIZE) {
#if __CUDA_ARCH__ >= 800
    if constexpr (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                     : "memory");
#else
    const u32 *words = static_cast<const u32 *>(global);
#pragma unroll
    for (u32 word = 0; word < SIZE / 4; word++) {
        const u32 value = word * 4 < bytes ? words[word] : 0;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + word * 4), "r"(value) : "memory");
    }
#endif
}
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most PENDING groups of copies are on their way.
template <int PENDING> __device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// The half type of kernels that are compiled for one: f16 with HALF_IS_F16, else bf16.
#ifdef HALF_IS_F16
typedef f16 Half;
#define HALF_TYPE "f16"
#define OF_HALF(NAME) NAME##_f16
__device__ __forceinline__ u32 pack_half(float low, float high) { return pack_f16(low, high); }
#else
typedef bf16 Half;
#define HALF_TYPE "bf16"
#define OF_HALF(NAME) NAME##_bf16
__device__ __forceinline__ u32 pack_half(float low, float high) { return pack_bf16(low, high); }
#endif
