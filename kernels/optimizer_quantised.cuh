// Updates of parameters whose states are in 8 bits, a block of elements by a warp.
#pragma once
#include "optimizer_parameters.cuh"
#include "optimizer_rules.cuh"
#include "step_state.cuh"
#include "table.cuh"

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
    put(to, at, end, aligned, rounded);
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
    typename WrittenBy<Rule>::Type *weights =
        reinterpret_cast<typename WrittenBy<Rule>::Type *>(parameter.weight);
    Four weight[UNROLL], gradient[UNROLL], states[MOST_STATES][UNROLL];
    float *maxima[MOST_STATES];
#pragma unroll
    for (int s = 0; s < Rule::STATES; s++)
        maxima[s] = reinterpret_cast<float *>(parameter.maxima[s]) + start / BLOCK;
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u64 at = start + (i * WARP + lane) * 4;
        gradient[i] = take(reinterpret_cast<const G *>(parameter.gradient), at, end, aligned);
        if constexpr (WrittenBy<Rule>::IS_READ) weight[i] = take(weights, at, end, aligned);
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

// Updates this thread block's chunk of parameters with states in 8 bits, or, if the step is skipped, only
// rounds its weights.
template <typename Rule, typename G>
__device__ __forceinline__ void update_blocks(const Quantised *parameters, const StepState *state,
                                              u32 count) {
    __shared__ Codes codes;
    const bool skip = skips(state);
    const Rule rule = *reinterpret_cast<const Rule *>(state->coefficients);
    const u32 *blocks = reinterpret_cast<const u32 *>(parameters + count);
    const float *fractions = reinterpret_cast<const float *>(blocks + count + 1);
    const u32 index = owner_of(blocks, count, blockIdx.x);
    const u64 first = u64(blockIdx.x - blocks[index]) * CHUNK;
    if (skip) return copy_chunk(parameters[index], first);
    for (u32 code = threadIdx.x; code < 2 * CODES; code += THREADS) {
        const u32 next = code % CODES == CODES - 1 ? code : code + 1;
        codes.fractions[code / CODES][code % CODES] = fractions[code];
        codes.borders[code / CODES][code % CODES] = 0.5f * (fractions[code] + fractions[next]);
    }
    __syncthreads();
    const Quantised parameter = parameters[index];
#pragma unroll 1
    for (u32 piece = threadIdx.x / WARP * BLOCK; piece < CHUNK; piece += THREADS / WARP * BLOCK) {
        if (first + piece < parameter.elements) update_block<Rule, G>(parameter, first + piece, rule, codes);
    }
}
