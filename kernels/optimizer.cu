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

// A parameter whose states are in 8 bits, with the largest magnitude of every block of each.
struct Quantised : Parameter {
    u64 maxima[MOST_STATES];
};

// The fractions that codes stand for, in increasing order, and the borders between neighbours: of states with
// a sign, and of states that are never negative, as in `crates/tensor/src/ops/optimizer/quantised.rs`.
struct Codes {
    float fractions[2][CODES], borders[2][CODES];
};

// Returns the code nearest to a fraction, the lower of two as near; a positive state that is never negative
// does not become 0.
__device__ __forceinline__ u32 nearest(const Codes &codes, int table, float fraction) {
    u32 code = 0;
#pragma unroll
    for (u32 step = CODES / 2; step > 0; step /= 2) {
        if (codes.borders[table][code + step - 1] < fraction) code += step;
    }
    return table == 1 && code == 0 && fraction > 0.0f ? 1u : code;
}

// Four codes from `at` on as values; those at or past `end` are 0.
__device__ __forceinline__ Four take_codes(const Codes &codes, int table, const u8 *from, float maximum,
                                           u64 at, u64 end, bool aligned) {
    Four values;
    if (aligned && at + 4 <= end) {
        const Vector<u8, 4> loaded = load<4>(from + at);
#pragma unroll
        for (int i = 0; i < 4; i++) values.at[i] = codes.fractions[table][loaded.at[i]] * maximum;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            values.at[i] = at + i < end ? codes.fractions[table][from[at + i]] * maximum : 0.0f;
    }
    return values;
}
__device__ __forceinline__ void put_codes(const Codes &codes, int table, u8 *to, float maximum, u64 at,
                                          u64 end, bool aligned, const Four &values) {
    Vector<u8, 4> rounded;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float fraction = maximum > 0.0f ? __fdiv_rn(values.at[i], maximum) : 0.0f;
        rounded.at[i] = u8(nearest(codes, table, fraction));
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

// The largest magnitude of the values of all lanes.
__device__ __forceinline__ float largest(const Four (&values)[UNROLL]) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) most = fmaxf(most, fabsf(values[i].at[j]));
    }
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, lane));
    return most;
}

// A warp updates the block of BLOCK = UNROLL * 4 * WARP elements from `start` on, a multiple of BLOCK.
template <typename Rule, typename G>
__device__ __forceinline__ void update_block(const Quantised &parameter, u64 start, const Rule &rule,
                                             const Codes &codes) {
    static_assert(BLOCK == UNROLL * 4 * WARP, "a warp's vectors are a block");
    const u64 end = parameter.elements;
    const bool aligned = parameter.flags & ALIGNED, decay = parameter.flags & DECAY;
    const u32 lane = threadIdx.x % WARP;
    float *weights = reinterpret_cast<float *>(parameter.weight);
    Four weight[UNROLL], gradient[UNROLL], states[MOST_STATES][UNROLL];
    float *maxima[MOST_STATES];
#pragma unroll
    for (int s = 0; s < Rule::STATES; s++)
        maxima[s] = reinterpret_cast<float *>(parameter.maxima[s]) + start / BLOCK;
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + (i * WARP + lane) * 4;
        gradient[i] = take(reinterpret_cast<const G *>(parameter.gradient), at, end, aligned);
        weight[i] = take(weights, at, end, aligned);
#pragma unroll
        for (int s = 0; s < Rule::STATES; s++) {
            const u8 *own = reinterpret_cast<const u8 *>(parameter.states[s]);
            states[s][i] = take_codes(codes, s == Rule::UNSIGNED, own, *maxima[s], at, end, aligned);
        }
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + (i * WARP + lane) * 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float kept[MOST_STATES];
#pragma unroll
            for (int s = 0; s < Rule::STATES; s++) kept[s] = states[s][i].at[j];
            rule.update(gradient[i].at[j], weight[i].at[j], kept, decay, 0);
#pragma unroll
            for (int s = 0; s < Rule::STATES; s++) states[s][i].at[j] = kept[s];
        }
        put(weights, at, end, aligned, weight[i]);
        if (parameter.compute) put_copy(parameter, at, end, aligned, weight[i]);
    }
#pragma unroll
    for (int s = 0; s < Rule::STATES; s++) {
        u8 *own = reinterpret_cast<u8 *>(parameter.states[s]);
        const float maximum = largest(states[s]);
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const u64 at = start + (i * WARP + lane) * 4;
            put_codes(codes, s == Rule::UNSIGNED, own, maximum, at, end, aligned, states[s][i]);
        }
        // All lanes have read the former one.
        __syncwarp();
        if (lane == 0) *maxima[s] = maximum;
    }
}

// Updates this thread block's chunk of parameters with states in 8 bits, unless the step is skipped.
template <typename Rule, typename G>
__device__ __forceinline__ void update_blocks(const Quantised *parameters, const StepState *state,
                                              u32 count) {
    __shared__ Codes codes;
    const bool skip = skips(state);
    const Rule rule = *reinterpret_cast<const Rule *>(state->coefficients);
    const u32 *blocks = reinterpret_cast<const u32 *>(parameters + count);
    const float *fractions = reinterpret_cast<const float *>(blocks + count + 1);
    const u32 index = parameter_of(blocks, count, blockIdx.x);
    if (skip) return;
    for (u32 code = threadIdx.x; code < 2 * CODES; code += THREADS) {
        const u32 next = code % CODES == CODES - 1 ? code : code + 1;
        codes.fractions[code / CODES][code % CODES] = fractions[code];
        codes.borders[code / CODES][code % CODES] = 0.5f * (fractions[code] + fractions[next]);
    }
    __syncthreads();
    const Quantised parameter = parameters[index];
    const u64 first = u64(blockIdx.x - blocks[index]) * CHUNK;
#pragma unroll 1
    for (u32 piece = threadIdx.x / WARP * BLOCK; piece < CHUNK; piece += THREADS / WARP * BLOCK) {
        if (first + piece < parameter.elements) update_block<Rule, G>(parameter, first + piece, rule, codes);
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
    UPDATE(sgd_##NAME, Sgd<false>, G, float)                                                                 \
    UPDATE(sgd_momentum_##NAME, Sgd<true>, G, float)                                                         \
    UPDATE(sgd_momentum_rounded_##NAME, Sgd<true>, G, bf16)                                                  \
    UPDATE_QUANTISED(sgd_momentum_quantised_##NAME, Sgd<true>, G)

FOR_EACH_TYPE(FOR_TYPE)
