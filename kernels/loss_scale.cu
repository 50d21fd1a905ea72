// The dynamic loss scale of half-precision training, as PyTorch's GradScaler adapts it.
#include "step_state.cuh"

// After an update: a skipped one (the norm is not finite) multiplies the scale by `backoff`; `interval`
// others in a row multiply it by `growth`, unless the result is not finite. As in
// `crates/tensor/src/ops/loss_scale.rs`. Launch: one thread.
KERNEL adapt(StepState *state, float growth, float backoff, u32 interval) {
    float scale = state->loss_scale;
    if (!isfinite(state->norm)) {
        scale = __fmul_rn(scale, backoff);
        state->good_steps = 0;
    } else if (++state->good_steps == interval) {
        const float grown = __fmul_rn(scale, growth);
        if (isfinite(grown)) scale = grown;
        state->good_steps = 0;
    }
    state->loss_scale = scale;
    state->gradient_scale = __fdiv_rn(1.0f, scale);
}
