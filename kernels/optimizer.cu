// Updates of all parameters in one launch, by one of several rules. A rule is a struct: the coefficients that
// all elements share, the number of states of a parameter, and the update of one element. `begin_<rule>`
// computes the coefficients, once for each update.
#include "common.cuh"
#include "philox.cuh"
#include "power.cuh"
#include "step_state.cuh"

// A table on the device lists the parameters, then for each (and one past the last) the first block that
// works on it. A block finds its parameter by bisection and owns CHUNK elements of it. Launch: THREADS
// threads, a block for every chunk of every parameter; every thread has UNROLL vectors of each array in
// flight. Floor: AdamW reads gradient, weight and both moments and writes all but the gradient, 28 bytes an
// element (30 with a copy in half precision); SGD 12, with momentum 20. A gradient in half precision saves 2.
#define UNROLL 2

// Absent tensors have the address 0.
struct Parameter {
    u64 weight, gradient, states[MOST_STATES], compute;
    u64 elements;
    // DECAY: weight decay applies. ALIGNED: every address is a multiple of 16. COPY_IN_F16: the copy is in
    // f16, else in bf16.
    // Above FIRST_CHUNK: the index of the first element in the whole parameter, in units of STREAM_CHUNK.
    u32 flags;
    // The stream of random numbers that round states in bf16.
    u32 stream;
};
#define DECAY 1u
#define ALIGNED 2u
#define COPY_IN_F16 4u
#define FIRST_CHUNK 8
#define STREAM_KEY 0x73746174u

// Returns the last parameter that begins at or before this block.
__device__ __forceinline__ u32 parameter_of(const u32 *blocks, u32 count, u32 block) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (blocks[middle] <= block) low = middle;
        else high = middle;
    }
    return low;
}

struct Four { float at[4]; };

// Four elements from `at` on; those at or past `end` are 0.
template <typename T> __device__ __forceinline__ Four take(const T *from, u64 at, u64 end, bool aligned) {
    Four values;
    if (aligned && at + 4 <= end) {
        const Vector<T, 4> loaded = load<4>(from + at);
#pragma unroll
        for (int i = 0; i < 4; i++) values.at[i] = to_f32(loaded.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) values.at[i] = at + i < end ? to_f32(from[at + i]) : 0.0f;
    }
    return values;
}
template <typename T>
__device__ __forceinline__ void put(T *to, u64 at, u64 end, bool aligned, const Four &values) {
    if (aligned && at + 4 <= end) {
        Vector<T, 4> rounded;
#pragma unroll
        for (int i = 0; i < 4; i++) rounded.at[i] = from_f32<T>(values.at[i]);
        store<4>(to + at, rounded);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (at + i < end) to[at + i] = from_f32<T>(values.at[i]);
        }
    }
}

// Rounds weights into the copy for computing.
__device__ __forceinline__ void put_copy(const Parameter &parameter, u64 at, u64 end, bool aligned,
                                         const Four &weights) {
#if __CUDA_ARCH__ >= 800
    if (!(parameter.flags & COPY_IN_F16)) {
        put(reinterpret_cast<bf16 *>(parameter.compute), at, end, aligned, weights);
        return;
    }
#endif
    put(reinterpret_cast<f16 *>(parameter.compute), at, end, aligned, weights);
}

// AdamW, as in `crates/tensor/src/ops/optimizer/adamw.rs`.
struct alignas(16) AdamW {
    static constexpr int STATES = 2;
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

// SGD, as in `crates/tensor/src/ops/optimizer/sgd.rs`; with momentum, it keeps a velocity.
template <bool MOMENTUM> struct alignas(16) Sgd {
    static constexpr int STATES = MOMENTUM ? 1 : 0;
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
    if (aligned && at + 4 <= end) {
        store<4>(to + at, rounded);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (at + i < end) to[at + i] = rounded.at[i];
        }
    }
}

// Updates UNROLL vectors from `start` on: loads all of them before it stores one. S: the type of states.
template <typename Rule, typename G, typename S>
__device__ __forceinline__ void update(const Parameter &parameter, u64 start, const Rule &rule, u32 number) {
    const u64 end = parameter.elements;
    const bool aligned = parameter.flags & ALIGNED, decay = parameter.flags & DECAY;
    float *weights = reinterpret_cast<float *>(parameter.weight);
    S *arrays[MOST_STATES];
    Four weight[UNROLL], gradient[UNROLL], states[MOST_STATES][UNROLL];
#pragma unroll
    for (int s = 0; s < Rule::STATES; s++) arrays[s] = reinterpret_cast<S *>(parameter.states[s]);
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + i * THREADS * 4;
        gradient[i] = take(reinterpret_cast<const G *>(parameter.gradient), at, end, aligned);
        weight[i] = take(weights, at, end, aligned);
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

// Updates this block's chunk, unless the step is skipped.
template <typename Rule, typename G, typename S>
__device__ __forceinline__ void update_chunk(const Parameter *parameters, const StepState *state, u32 count) {
    const bool skip = skips(state);
    const Rule rule = *reinterpret_cast<const Rule *>(state->coefficients);
    const u32 *blocks = reinterpret_cast<const u32 *>(parameters + count);
    const u32 index = parameter_of(blocks, count, blockIdx.x);
    if (skip) return;
    const Parameter parameter = parameters[index];
    const u64 first = u64(blockIdx.x - blocks[index]) * CHUNK;
#pragma unroll 1
    for (u32 piece = 0; piece < CHUNK; piece += THREADS * 4 * UNROLL) {
        update<Rule, G, S>(parameter, first + piece + threadIdx.x * 4, rule, state->updates);
    }
}

// The factor of every gradient: the clipping factor times the gradient scale.
__device__ __forceinline__ float factor_of(const StepState &state) {
    return __fmul_rn(state.clip_factor, state.gradient_scale);
}

// Counts an update and computes its coefficients, unless the step is skipped. Launch: one thread.
KERNEL begin_adamw(StepState *state, float beta1, float beta2, float epsilon, float weight_decay) {
    if (skips(state)) return;
    state->updates += 1;
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

KERNEL begin_sgd(StepState *state, float momentum, float weight_decay) {
    if (skips(state)) return;
    state->updates += 1;
    const float first = state->updates == 1 ? 1.0f : 0.0f;
    const Sgd<true> rule = {factor_of(*state), state->learning_rate, momentum, weight_decay, first};
    for (float &number : state->coefficients) number = 0.0f;
    *reinterpret_cast<Sgd<true> *>(state->coefficients) = rule;
}

#define UPDATE(NAME, RULE, G, S)                                                                             \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        NAME(const Parameter *__restrict__ parameters, const StepState *__restrict__ state, u32 count) {     \
        update_chunk<RULE, G, S>(parameters, state, count);                                                  \
    }

// By the type of the gradients.
#define FOR_TYPE(NAME, G)                                                                                    \
    UPDATE(adamw_##NAME, AdamW, G, float)                                                                    \
    UPDATE(adamw_rounded_##NAME, AdamW, G, bf16)                                                             \
    UPDATE(sgd_##NAME, Sgd<false>, G, float)                                                                 \
    UPDATE(sgd_momentum_##NAME, Sgd<true>, G, float)                                                         \
    UPDATE(sgd_momentum_rounded_##NAME, Sgd<true>, G, bf16)

FOR_EACH_TYPE(FOR_TYPE)
