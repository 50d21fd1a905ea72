// Updates of all parameters in one launch, by one of several rules. `begin_<rule>` computes a rule's
// coefficients, once for each update.
#include "optimizer_parameters.cuh"
#include "optimizer_quantised.cuh"
#include "optimizer_rules.cuh"
#include "philox.cuh"
#include "power.cuh"
#include "step_state.cuh"
#include "table.cuh"

// Stores four values of state `s`; bf16 is rounded stochastically, as in
// `crates/tensor/src/ops/optimizer/rounding.rs`.
__device__ __forceinline__ void put_state(float *to, const Parameter &, u64 at, u64 end, bool aligned,
                                          const Four &values, u32, u32) {
    put(to, at, end, aligned, values);
}
__device__ __forceinline__ void put_state(bf16 *to, const Parameter &parameter, u64 at, u64 end, bool aligned,
                                          const Four &values, u32 s, u32 update) {
    const u64 block = (u64(parameter.flags >> FIRST_CHUNK) * STREAM_CHUNK + at) / 4;
    const Words words = philox(parameter.stream, STREAM_KEY, u32(block), u32(block >> 32), update, s);
    Vector<bf16, 4> rounded;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 bits = __float_as_uint(values.at[i]);
        const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
        // NaN keeps a bit of its mantissa.
        const u32 kept = (bits & 0x007fffffu) && !finite ? bits | 0x00400000u : bits;
        rounded.at[i].bits = u16((finite ? bits + (words.at[i] & 0xffffu) : kept) >> 16);
    }
    put(to, at, end, aligned, rounded);
}

// Updates UNROLL vectors from `start` on: loads all of them before it stores one. S: the type of states.
template <typename Rule, typename G, typename S>
__device__ __forceinline__ void update(const Parameter &parameter, u64 start, const Rule &rule, u32 number) {
    const u64 end = parameter.elements;
    const bool aligned = parameter.flags & ALIGNED, decay = parameter.flags & DECAY;
    typename WrittenBy<Rule>::Type *weights =
        reinterpret_cast<typename WrittenBy<Rule>::Type *>(parameter.weight);
    S *arrays[MOST_STATES];
    Four weight[UNROLL], gradient[UNROLL], states[MOST_STATES][UNROLL];
#pragma unroll
    for (int s = 0; s < Rule::STATES; s++) arrays[s] = reinterpret_cast<S *>(parameter.states[s]);
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + i * THREADS * 4;
        gradient[i] = take(reinterpret_cast<const G *>(parameter.gradient), at, end, aligned);
        if constexpr (WrittenBy<Rule>::IS_READ) weight[i] = take(weights, at, end, aligned);
#pragma unroll
        for (int s = 0; s < Rule::STATES; s++) states[s][i] = take(arrays[s], at, end, aligned);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + i * THREADS * 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float kept[MOST_STATES];
#pragma unroll
            for (int s = 0; s < Rule::STATES; s++) kept[s] = states[s][i].at[j];
            rule.update(gradient[i].at[j], weight[i].at[j], kept, decay, i);
#pragma unroll
            for (int s = 0; s < Rule::STATES; s++) states[s][i].at[j] = kept[s];
        }
        put(weights, at, end, aligned, weight[i]);
#pragma unroll
        for (int s = 0; s < Rule::STATES; s++)
            put_state(arrays[s], parameter, at, end, aligned, states[s][i], s, number);
        if (parameter.compute) put_copy(parameter, at, end, aligned, weight[i]);
    }
}

// Updates this block's chunk, or, if the step is skipped, only rounds its weights.
template <typename Rule, typename G, typename S>
__device__ __forceinline__ void update_chunk(const Parameter *parameters, const StepState *state, u32 count) {
    const bool skip = skips(state);
    const Rule rule = *reinterpret_cast<const Rule *>(state->coefficients);
    const u32 *blocks = reinterpret_cast<const u32 *>(parameters + count);
    const u32 index = owner_of(blocks, count, blockIdx.x);
    const Parameter parameter = parameters[index];
    const u64 first = u64(blockIdx.x - blocks[index]) * CHUNK;
    if (skip) return copy_chunk(parameter, first);
#pragma unroll 1
    for (u32 piece = 0; piece < CHUNK; piece += THREADS * 4 * UNROLL) {
        update<Rule, G, S>(parameter, first + piece + threadIdx.x * 4, rule, state->updates);
    }
}

// The factor of every gradient: the clipping factor times the gradient scale.
__device__ __forceinline__ float factor_of(const StepState &state) {
    return __fmul_rn(state.clip_factor, state.gradient_scale);
}

// Counts `count` updates, 1 or 0, and computes the coefficients of the current one, unless the step is
// skipped. Launch: one thread.
KERNEL begin_adamw(StepState *state, u32 count, float beta1, float beta2, float epsilon, float weight_decay) {
    if (skips(state)) return;
    state->updates += count;
    const Exact one = {1.0}, rate = {state->learning_rate}, decay1 = {beta1}, decay2 = {beta2};
    AdamW rule;
    rule.factor = factor_of(*state);
    rule.keep = __double2float_rn((one - rate * Exact{weight_decay}).value);
    rule.take1 = __double2float_rn((one - decay1).value);
    rule.beta2 = beta2;
    rule.take2 = __double2float_rn((one - decay2).value);
    rule.root_correction = __double2float_rn(__dsqrt_rn((one - power(decay2, state->updates)).value));
    rule.epsilon = epsilon;
    rule.step_size = __double2float_rn((rate / (one - power(decay1, state->updates))).value);
    *reinterpret_cast<AdamW *>(state->coefficients) = rule;
}

KERNEL begin_lion(StepState *state, u32 count, float beta1, float beta2, float weight_decay) {
    if (skips(state)) return;
    state->updates += count;
    const Exact one = {1.0}, rate = {state->learning_rate};
    const float keep = __double2float_rn((one - rate * Exact{weight_decay}).value);
    const float take1 = __double2float_rn((one - Exact{beta1}).value);
    const float take2 = __double2float_rn((one - Exact{beta2}).value);
    *reinterpret_cast<Lion *>(state->coefficients) = {
        factor_of(*state), keep, state->learning_rate, beta1, take1, beta2, take2, 0.0f};
}

KERNEL begin_sgd(StepState *state, u32 count, float momentum, float weight_decay) {
    if (skips(state)) return;
    state->updates += count;
    const float first = state->updates == 1 ? 1.0f : 0.0f;
    const Sgd<true> rule = {factor_of(*state), state->learning_rate, momentum, weight_decay, first};
    for (float &number : state->coefficients) number = 0.0f;
    *reinterpret_cast<Sgd<true> *>(state->coefficients) = rule;
}

KERNEL begin_muon(StepState *state, u32 count, float momentum) {
    if (skips(state)) return;
    state->updates += count;
    const float take = __double2float_rn((Exact{1.0} - Exact{momentum}).value);
    *reinterpret_cast<MuonMomentum *>(state->coefficients) = {factor_of(*state), momentum, take, {}};
}

KERNEL begin_muon_step(StepState *state, u32 count, float weight_decay) {
    if (skips(state)) return;
    state->updates += count;
    const Exact rate = {state->learning_rate};
    const float keep = __double2float_rn((Exact{1.0} - rate * Exact{weight_decay}).value);
    *reinterpret_cast<MuonStep *>(state->coefficients) = {keep, state->learning_rate, {}};
}

#define UPDATE(NAME, RULE, G, S)                                                                             \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        NAME(const Parameter *__restrict__ parameters, const StepState *__restrict__ state, u32 count) {     \
        update_chunk<RULE, G, S>(parameters, state, count);                                                  \
    }

#define UPDATE_QUANTISED(NAME, RULE, G)                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        NAME(const Quantised *__restrict__ parameters, const StepState *__restrict__ state, u32 count) {     \
        update_blocks<RULE, G>(parameters, state, count);                                                    \
    }

// By the type of the gradients.
#define FOR_TYPE(NAME, G)                                                                                    \
    UPDATE(adamw_##NAME, AdamW, G, float)                                                                    \
    UPDATE(adamw_rounded_##NAME, AdamW, G, bf16)                                                             \
    UPDATE_QUANTISED(adamw_quantised_##NAME, AdamW, G)                                                       \
    UPDATE(lion_##NAME, Lion, G, float)                                                                      \
    UPDATE(lion_rounded_##NAME, Lion, G, bf16)                                                               \
    UPDATE_QUANTISED(lion_quantised_##NAME, Lion, G)                                                         \
    UPDATE(sgd_##NAME, Sgd<false>, G, float)                                                                 \
    UPDATE(sgd_momentum_##NAME, Sgd<true>, G, float)                                                         \
    UPDATE(sgd_momentum_rounded_##NAME, Sgd<true>, G, bf16)                                                  \
    UPDATE_QUANTISED(sgd_momentum_quantised_##NAME, Sgd<true>, G)

FOR_EACH_TYPE(FOR_TYPE)

// Directions are in bf16.
#if __CUDA_ARCH__ >= 800
#define FOR_TYPE_OF_MUON(NAME, G)                                                                            \
    UPDATE(muon_##NAME, MuonMomentum, G, float)                                                              \
    UPDATE(muon_rounded_##NAME, MuonMomentum, G, bf16)                                                       \
    UPDATE_QUANTISED(muon_quantised_##NAME, MuonMomentum, G)

FOR_EACH_TYPE(FOR_TYPE_OF_MUON)
UPDATE(muon_step_bf16, MuonStep, bf16, float)
#endif
