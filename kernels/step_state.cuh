// The state of a training step, in one block of device memory; `crates/tensor/src/ops/step_state.rs` has the
// same words.
#pragma once
#include "common.cuh"

struct StepState {
    // Norm of the gradient before clipping, and the clipping factor.
    float norm, clip_factor;
    float learning_rate;
    // Factor of every gradient, 1 / loss scale.
    float gradient_scale;
    // Not 0: the update changes nothing and does not count. The same holds for a norm that is not finite.
    u32 skip;
    // Updates made, including the current one once it has begun.
    u32 updates;
    // Factor of the loss, and updates since it last changed; 0 without a loss scale.
    float loss_scale;
    u32 good_steps;
    // Targets and tokens of the step, by which its losses are divided where not all positions are targets or
    // tokens; a word that no kernel reads.
    u32 targets, tokens, unused;
    // Fraction of the distance to the weights by which the update moves their averages.
    float average_fraction;
    // Coefficients of the current update, in the order of its rule's fields.
    float coefficients[8];
};

// Returns whether the update is skipped.
__device__ __forceinline__ bool skips(const StepState *state) {
    return state->skip != 0 || !isfinite(state->norm);
}
