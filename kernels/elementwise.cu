// Operators that look at one element at a time: fill, scale, add, cast, activations, the gradient of a mean square.
#include "common.cuh"

// Launch: THREADS threads; a block owns THREADS * UNROLL vectors of N elements, so every thread has UNROLL loads of up to
// 16 bytes of each operand in flight before the first is used, and the grid covers the array once. `vector` says that all
// pointers are 16-byte aligned; without it N is 1. Floor of all of these: every operand once through memory.
#define THREADS 256
#define UNROLL 4

// Runs `op.load` for all of a thread's vectors, then `op.store`: an operand may be the result's own memory. The elements
// after the last whole vector are the last block's.
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
    if (vector) each<N>(op, count);
    else each<1>(op, count);
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
    template <int N> struct Held { Floats<N> a, b; };
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

struct Identity { __device__ float operator()(float x) const { return x; } };
struct Multiply { float factor; __device__ float operator()(float x) const { return x * factor; } };
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };
struct Difference { float factor; __device__ float operator()(float a, float b) const { return factor * (a - b); } };
// NaN for NaN.
struct Relu { __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; } };
// The saved tensor is ReLU's output.
struct ReluGradient { __device__ float operator()(float dy, float y) const { return y > 0.0f ? dy : 0.0f; } };

// GELU's tanh form as x * sigma(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): the same, and accurate where tanh u is near -1.
#define TWICE_ROOT 1.595769f
#define CUBIC 0.044715f
// e^-2u, cut off far beyond where it decides anything so that no product with it overflows.
__device__ __forceinline__ float decay(float x) {
    const float exponent = -TWICE_ROOT * x * fmaf(CUBIC * x, x, 1.0f);
    return expf(exponent > 87.0f ? 87.0f : exponent);
}
struct Gelu { __device__ float operator()(float x) const { return x / (1.0f + decay(x)); } };
// sigma + x * sigma * (1 - sigma) * 2u', with 1 - sigma as e^-2u * sigma so that nothing cancels.
struct GeluGradient {
    __device__ float operator()(float dy, float x) const {
        const float steep = decay(x);
        const float sigma = 1.0f / (1.0f + steep);
        const float slope = TWICE_ROOT * fmaf(3.0f * CUBIC * x, x, 1.0f);
        return dy * fmaf(steep * sigma * sigma * x, slope, sigma);
    }
};

#define LANES_OF(T) (16 / int(sizeof(T)))

template <typename T> struct Fill {
    template <int N> struct Held {};
    T *out;
    float value;
    template <int N> __device__ __forceinline__ Held<N> load(u64) const { return {}; }
    template <int N> __device__ __forceinline__ void store(u64 at, const Held<N> &) const {
        Floats<N> result;
#pragma unroll
        for (int i = 0; i < N; i++) result.at[i] = value;
        write(out + at, result);
    }
};

template <typename T, typename Map>
__device__ __forceinline__ void unary(const T *a, T *out, Map map, u64 count, u32 vector) {
    run<LANES_OF(T)>(Unary<T, T, Map>{a, out, map}, count, vector);
}
template <typename T, typename Map>
__device__ __forceinline__ void binary(const T *a, const T *b, T *out, Map map, u64 count, u32 vector) {
    run<LANES_OF(T)>(Binary<T, Map>{a, b, out, map}, count, vector);
}

#define FOR_TYPE(NAME, T)                                                                                              \
    KERNEL fill_##NAME(T *out, float value, u64 count, u32 vector) {                                                   \
        run<LANES_OF(T)>(Fill<T>{out, value}, count, vector);                                                          \
    }                                                                                                                  \
    KERNEL scale_##NAME(T *x, float factor, u64 count, u32 vector) { unary(x, x, Multiply{factor}, count, vector); }   \
    KERNEL scale_by_##NAME(const float *factor, T *x, u64 count, u32 vector) {                                         \
        unary(x, x, Multiply{*factor}, count, vector);                                                                 \
    }                                                                                                                  \
    KERNEL add_##NAME(const T *a, const T *b, T *out, u64 count, u32 vector) {                                         \
        binary(a, b, out, Sum{}, count, vector);                                                                       \
    }                                                                                                                  \
    KERNEL mse_backward_##NAME(const T *a, const T *b, T *out, float factor, u64 count, u32 vector) {                  \
        binary(a, b, out, Difference{factor}, count, vector);                                                          \
    }                                                                                                                  \
    KERNEL relu_##NAME(const T *x, T *out, u64 count, u32 vector) { unary(x, out, Relu{}, count, vector); }            \
    KERNEL gelu_##NAME(const T *x, T *out, u64 count, u32 vector) { unary(x, out, Gelu{}, count, vector); }            \
    KERNEL relu_gradient_##NAME(const T *dy, const T *saved, T *out, u64 count, u32 vector) {                          \
        binary(dy, saved, out, ReluGradient{}, count, vector);                                                         \
    }                                                                                                                  \
    KERNEL gelu_gradient_##NAME(const T *dy, const T *saved, T *out, u64 count, u32 vector) {                          \
        binary(dy, saved, out, GeluGradient{}, count, vector);                                                         \
    }

FOR_TYPE(f32, float)
FOR_TYPE(bf16, bf16)

// Eight elements a thread: 16 bytes of the one, 32 of the other.
KERNEL cast_to_bf16(const float *from, bf16 *to, u64 count, u32 vector) {
    run<8>(Unary<float, bf16, Identity>{from, to, Identity{}}, count, vector);
}
KERNEL cast_to_f32(const bf16 *from, float *to, u64 count, u32 vector) {
    run<8>(Unary<bf16, float, Identity>{from, to, Identity{}}, count, vector);
}
