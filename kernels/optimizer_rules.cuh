// The rules of updates. A rule is a struct: the coefficients that all elements share, the number of states
// of a parameter, and the update of one element.
#pragma once
#include "common.cuh"

// AdamW, as in `crates/tensor/src/ops/optimizer/adamw.rs`.
struct alignas(16) AdamW {
    static constexpr int STATES = 2;
    // The state that is never negative.
    static constexpr int UNSIGNED = 1;
    float factor, keep, take1, beta2, take2, root_correction, epsilon, step_size;

    __device__ __forceinline__ void update(float gradient, float &weight, float (&states)[MOST_STATES],
                                           bool decay, int vector) const {
        const float g = gradient * factor;
        const float m = states[0] + take1 * (g - states[0]);
        const float v = beta2 * states[1] + take2 * g * g;
        const float root = sqrtf(v) / root_correction + epsilon;
        const float kept = decay ? keep : 1.0f, direction = m / root;
        // Explicit, because the compiler would fuse different operations for different vectors of a thread.
        weight = vector == 0 ? __fmaf_rn(-direction, step_size, __fmul_rn(weight, kept))
                             : __fmaf_rn(weight, kept, -__fmul_rn(direction, step_size));
        states[0] = m;
        states[1] = v;
    }
};

// Lion, as in `crates/tensor/src/ops/optimizer/lion.rs`.
struct alignas(16) Lion {
    static constexpr int STATES = 1;
    // None is never negative.
    static constexpr int UNSIGNED = -1;
    float factor, keep, learning_rate, beta1, take1, beta2, take2, unused;

    __device__ __forceinline__ void update(float gradient, float &weight, float (&states)[MOST_STATES],
                                           bool decay, int) const {
        const float g = gradient * factor, m = states[0];
        // Explicit, because the compiler may fuse different operations for different vectors of a thread.
        const float direction = __fmaf_rn(take1, g, __fmul_rn(beta1, m));
        // NaN stays NaN.
        const bool is_signed = direction > 0.0f || direction < 0.0f;
        const float sign = is_signed ? copysignf(1.0f, direction) : direction;
        weight = __fmaf_rn(-learning_rate, sign, __fmul_rn(weight, decay ? keep : 1.0f));
        states[0] = __fmaf_rn(take2, g, __fmul_rn(beta2, m));
    }
};

// First half of Muon, as in `crates/tensor/src/ops/optimizer/muon.rs`: writes the direction over `weight`.
struct alignas(16) MuonMomentum {
    static constexpr int STATES = 1;
    // None is never negative.
    static constexpr int UNSIGNED = -1;
    float factor, momentum, take, unused[5];

    __device__ __forceinline__ void update(float gradient, float &direction, float (&states)[MOST_STATES],
                                           bool, int) const {
        const float taken = __fmul_rn(take, __fmul_rn(gradient, factor));
        states[0] = __fadd_rn(__fmul_rn(momentum, states[0]), taken);
        direction = __fadd_rn(__fmul_rn(momentum, states[0]), taken);
    }
};

// Second half of Muon: the gradient is the orthogonalised direction.
struct alignas(16) MuonStep {
    static constexpr int STATES = 0;
    static constexpr int UNSIGNED = -1;
    float keep, learning_rate, unused[6];

    __device__ __forceinline__ void update(float direction, float &weight, float (&)[MOST_STATES], bool decay,
                                           int) const {
        weight = __fmaf_rn(-learning_rate, direction, __fmul_rn(weight, decay ? keep : 1.0f));
    }
};

// The type of what a rule writes: weights, which it also reads, or directions.
template <typename Rule> struct WrittenBy {
    using Type = float;
    static constexpr bool IS_READ = true;
};
#if __CUDA_ARCH__ >= 800
template <> struct WrittenBy<MuonMomentum> {
    using Type = bf16;
    static constexpr bool IS_READ = false;
};
#endif

// SGD, as in `crates/tensor/src/ops/optimizer/sgd.rs`; with momentum, it keeps a velocity.
template <bool MOMENTUM> struct alignas(16) Sgd {
    static constexpr int STATES = MOMENTUM ? 1 : 0;
    // None is never negative.
    static constexpr int UNSIGNED = -1;
    // `first`: 1 at the first update, where the velocity becomes the gradient, else 0.
    float factor, learning_rate, momentum, weight_decay, first;

    __device__ __forceinline__ void update(float gradient, float &weight, float (&states)[MOST_STATES],
                                           bool decay, int) const {
        float step = gradient * factor + (decay ? weight_decay : 0.0f) * weight;
        if (MOMENTUM) {
            if (first == 0.0f) step = momentum * states[0] + step;
            states[0] = step;
        }
        weight -= learning_rate * step;
    }
};
