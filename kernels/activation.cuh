// Functions of one element, and their derivatives, in Exact or Fast arithmetic. From 0 on each grows at least
// as fast as x; below 0 its magnitude is at most below_zero().
#pragma once
#include "common.cuh"

// Accurate to a unit or two in the last digit of f32.
struct Exact {
    __device__ __forceinline__ static float exponential(float x) { return expf(x); }
    __device__ __forceinline__ static float quotient(float a, float b) { return a / b; }
};
// The hardware's approximations, within 2^-20 if x is at most 87 and b at most 2^126: far more accurate than
// a half-precision result. Numbers below 2^-126 become 0; keeping them would take twice the instructions.
struct Fast {
    __device__ __forceinline__ static float exponential(float x) { return exp2_fast(x * 1.442695041f); }
    __device__ __forceinline__ static float quotient(float a, float b) {
        float reciprocal;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
        return a * reciprocal;
    }
};

// Exact arithmetic would take longer than memory for elements of 2 bytes.
template <typename T> struct MathFor {
    typedef Fast Math;
};
template <> struct MathFor<float> {
    typedef Exact Math;
};

template <typename Math> struct Identity {
    __device__ static float below_zero() { return __uint_as_float(0x7f800000u); }
    __device__ static float value(float x) { return x; }
    __device__ static float gradient(float dy, float) { return dy; }
};

// NaN for NaN.
template <typename Math> struct Relu {
    __device__ static float below_zero() { return 0.0f; }
    __device__ static float value(float x) { return x < 0.0f ? 0.0f : x; }
    // `x` may also be the output: both have the same sign.
    __device__ static float gradient(float dy, float x) { return x > 0.0f ? dy : 0.0f; }
};

template <typename Math> struct ReluSquared {
    __device__ static float below_zero() { return 0.0f; }
    __device__ static float value(float x) { return x < 0.0f ? 0.0f : x * x; }
    __device__ static float gradient(float dy, float x) { return x < 0.0f ? 0.0f : dy * 2.0f * x; }
};

// e^-x, limited far above every value that affects a result, so that no multiplication by it overflows.
template <typename Math> __device__ __forceinline__ float decay(float x) {
    return Math::exponential(-x > 87.0f ? 87.0f : -x);
}

template <typename Math> struct Silu {
    __device__ static float below_zero() { return 0.2785f; }
    __device__ static float value(float x) { return Math::quotient(x, 1.0f + decay<Math>(x)); }
    // sigma + x * sigma * (1 - sigma), with 1 - sigma as e^-x * sigma so that nothing cancels.
    __device__ static float gradient(float dy, float x) {
        const float steep = decay<Math>(x);
        const float sigma = Math::quotient(1.0f, 1.0f + steep);
        return dy * fmaf(steep * sigma * sigma, x, sigma);
    }
};

// GELU's sigmoid form: x * sigma(1.702 x).
#define QUICK 1.702f
template <typename Math> struct QuickGelu {
    __device__ static float below_zero() { return 0.1637f; }
    __device__ static float value(float x) { return Math::quotient(x, 1.0f + decay<Math>(QUICK * x)); }
    // As Silu's.
    __device__ static float gradient(float dy, float x) {
        const float steep = decay<Math>(QUICK * x);
        const float sigma = Math::quotient(1.0f, 1.0f + steep);
        return dy * fmaf(steep * sigma * sigma, QUICK * x, sigma);
    }
};

// GELU's tanh form as x * sigma(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): the same, and accurate where tanh u
// is near -1.
#define TWICE_ROOT 1.595769f
#define CUBIC 0.044715f
template <typename Math> struct Gelu {
    __device__ static float below_zero() { return 0.1701f; }
    __device__ static float steepness(float x) {
        return decay<Math>(TWICE_ROOT * x * fmaf(CUBIC * x, x, 1.0f));
    }
    __device__ static float value(float x) { return Math::quotient(x, 1.0f + steepness(x)); }
    // sigma + x * sigma * (1 - sigma) * 2u', with 1 - sigma as e^-2u * sigma so that nothing cancels.
    __device__ static float gradient(float dy, float x) {
        const float steep = steepness(x);
        const float sigma = Math::quotient(1.0f, 1.0f + steep);
        const float slope = TWICE_ROOT * fmaf(3.0f * CUBIC * x, x, 1.0f);
        return dy * fmaf(steep * sigma * sigma * x, slope, sigma);
    }
};

// GELU by definition: x times the normal distribution's probability of less than x.
template <typename Math> struct GeluErf {
    __device__ static float below_zero() { return 0.1701f; }
    __device__ static float value(float x) { return x * normcdff(x); }
    __device__ static float gradient(float dy, float x) {
        return dy * fmaf(x * 0.39894228f, Math::exponential(-0.5f * x * x), normcdff(x));
    }
};

#define FOR_EACH_ACTIVATION(KERNELS, NAME, T)   \
    KERNELS(identity, Identity, NAME, T)        \
    KERNELS(relu, Relu, NAME, T)                \
    KERNELS(relu_squared, ReluSquared, NAME, T) \
    KERNELS(silu, Silu, NAME, T)                \
    KERNELS(gelu, Gelu, NAME, T)                \
    KERNELS(gelu_erf, GeluErf, NAME, T)         \
    KERNELS(quick_gelu, QuickGelu, NAME, T)
