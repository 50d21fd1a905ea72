// The state of a training step, in one block of device memory; `crates/tensor/src/ops/step_state.rs` has the
// same words.
#pragma once
#include "common.cuh"

struct StepState {
    // Norm of the gradient before clipping, and the factor that clips it.
    float norm, clip_factor;
    float learning_rate;
    // Multiplies every gradient: 1 / loss scale.
    float gradient_scale;
    // Not 0: the update changes nothing and does not count; so also where the norm is not finite.
    u32 skip;
    // Updates made, the current one included once it has begun.
    u32 updates;
    u32 unused[2];
    // Numbers of the current update that all elements share, in the order of its rule's fields.
    float coefficients[8];
};

// Returns whether the update leaves everything as it is.
__device__ __forceinline__ bool skips(const StepState *state) {
    return state->skip != 0 || !isfinite(state->norm);
}
