// Element-wise activations and their gradients.
#include "elementwise.cuh"

// NaN for NaN.
struct Relu {
    __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};
// The saved tensor is ReLU's output.
struct ReluGradient {
    __device__ float operator()(float dy, float y) const { return y > 0.0f ? dy : 0.0f; }
};

// GELU's tanh form as x * sigma(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): the same, and accurate where tanh u
// is near -1.
#define TWICE_ROOT 1.595769f
#define CUBIC 0.044715f
// e^-2u, limited far above every value that affects a result, so that no multiplication by it overflows.
__device__ __forceinline__ float decay(float x) {
    const float exponent = -TWICE_ROOT * x * fmaf(CUBIC * x, x, 1.0f);
    return expf(exponent > 87.0f ? 87.0f : exponent);
}
struct Gelu {
    __device__ float operator()(float x) const { return x / (1.0f + decay(x)); }
};
// sigma + x * sigma * (1 - sigma) * 2u', with 1 - sigma as e^-2u * sigma so that nothing cancels.
struct GeluGradient {
    __device__ float operator()(float dy, float x) const {
        const float steep = decay(x);
        const float sigma = 1.0f / (1.0f + steep);
        const float slope = TWICE_ROOT * fmaf(3.0f * CUBIC * x, x, 1.0f);
        return dy * fmaf(steep * sigma * sigma * x, slope, sigma);
    }
};

#define FOR_TYPE(NAME, T)                                                                                   \
    KERNEL relu_##NAME(const T *x, T *out, u64 count, u32 vector) { unary(x, out, Relu{}, count, vector); } \
    KERNEL gelu_##NAME(const T *x, T *out, u64 count, u32 vector) { unary(x, out, Gelu{}, count, vector); } \
    KERNEL relu_gradient_##NAME(const T *dy, const T *saved, T *out, u64 count, u32 vector) {               \
        binary(dy, saved, out, ReluGradient{}, count, vector);                                              \
    }                                                                                                       \
    KERNEL gelu_gradient_##NAME(const T *dy, const T *saved, T *out, u64 count, u32 vector) {               \
        binary(dy, saved, out, GeluGradient{}, count, vector);                                              \
    }

FOR_EACH_TYPE(FOR_TYPE)
