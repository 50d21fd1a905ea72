// Routing of rows to experts: scores, the best experts of each row and their weights, the order of rows by
// expert, and the gradient of the logits.
//
// Shapes: logits_te; weights_tp, choices_tp, slots_tp; sources_s; correction_e, loads_e. Letters as in
// CONTRIBUTING.md.
#include "common.cuh"

#define INFINITE __int_as_float(0x7f800000)
#define NONE 0xffffffffu
#define WARPS (THREADS / WARP)
// Added to the sum that weights are divided by, as in DeepSeek-V3.
#define EPSILON 1e-20f

extern __shared__ float shared_memory[];

// Writes a row's scores of experts: softmax over all of them, or the sigmoid of each.
__device__ __forceinline__ void write_scores(const float *logits, float *scores, u32 experts, bool sigmoid) {
    const u32 lane = threadIdx.x % WARP;
    if (sigmoid) {
        for (u32 e = lane; e < experts; e += WARP) scores[e] = 1.0f / (1.0f + expf(-logits[e]));
    } else {
        float most = -INFINITE, sum = 0.0f;
        for (u32 e = lane; e < experts; e += WARP) most = fmaxf(most, logits[e]);
        most = warp_max(most);
        for (u32 e = lane; e < experts; e += WARP) sum += expf(logits[e] - most);
        sum = warp_sum(sum);
        for (u32 e = lane; e < experts; e += WARP) scores[e] = expf(logits[e] - most) / sum;
    }
    __syncwarp();
}

// Index of the largest value, of equal ones the first; NONE if all are NaN.
__device__ __forceinline__ u32 largest(const float *values, u32 count) {
    float best = 0.0f;
    u32 index = NONE;
    for (u32 i = threadIdx.x % WARP; i < count; i += WARP)
        if (values[i] == values[i] && (index == NONE || values[i] > best)) best = values[i], index = i;
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, best, offset);
        const u32 at = __shfl_xor_sync(ALL_LANES, index, offset);
        const bool better = index == NONE || other > best || (other == best && at < index);
        if (at != NONE && better) best = other, index = at;
    }
    return index;
}

// Leaves only the experts of the groups whose two largest scores have the largest sums.
__device__ __forceinline__ void close_groups(float *ranks, float *of_groups, u32 experts, u32 groups,
                                             u32 groups_chosen) {
    const u32 lane = threadIdx.x % WARP, size = experts / groups;
    for (u32 group = lane; group < groups; group += WARP) {
        float first = -INFINITE, second = -INFINITE;
        for (u32 e = group * size; e < (group + 1) * size; e++) {
            const float rank = ranks[e];
            if (rank > first) second = first, first = rank;
            else second = fmaxf(second, rank);
        }
        of_groups[group] = second == -INFINITE ? first : first + second;
    }
    __syncwarp();
    // A chosen group has the sum NaN from then on.
    for (u32 number = 0; number < groups_chosen; number++) {
        const u32 best = largest(of_groups, groups);
        __syncwarp();
        if (lane == 0 && best != NONE) of_groups[best] = __int_as_float(0x7fffffff);
        __syncwarp();
    }
    for (u32 e = lane; e < experts; e += WARP)
        if (of_groups[e / size] == of_groups[e / size]) ranks[e] = -INFINITE;
    __syncwarp();
}

// Launch: a warp for each row, with 2 * experts + groups floats of shared memory each. `correction`: null, or
// a number added to each expert's score where experts are chosen.
KERNEL __launch_bounds__(THREADS)
    choose(const float *__restrict__ logits, const float *__restrict__ correction,
           float *__restrict__ weights, u32 *__restrict__ choices, u32 rows, u32 experts, u32 chosen,
           u32 sigmoid, u32 normalised, float least_sum, float scale, u32 groups, u32 groups_chosen) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x * WARPS + warp;
    if (row >= rows) return;
    float *scores = shared_memory + warp * (2 * experts + groups);
    float *ranks = scores + experts, *of_groups = ranks + experts;
    write_scores(logits + u64(row) * experts, scores, experts, sigmoid);
    for (u32 e = lane; e < experts; e += WARP) ranks[e] = scores[e] + (correction ? correction[e] : 0.0f);
    __syncwarp();
    if (groups > 1) close_groups(ranks, of_groups, experts, groups, groups_chosen);
    float sum = 0.0f;
    for (u32 number = 0; number < chosen; number++) {
        u32 best = largest(ranks, experts);
        // Scores that are not numbers: any expert.
        if (best == NONE) best = number;
        __syncwarp();
        if (lane == 0) {
            ranks[best] = __int_as_float(0x7fffffff);
            choices[u64(row) * chosen + number] = best;
        }
        sum += scores[best];
        __syncwarp();
    }
    const float divisor = normalised ? fmaxf(sum + EPSILON, least_sum) : 1.0f;
    for (u32 number = lane; number < chosen; number += WARP) {
        const u64 at = u64(row) * chosen + number;
        weights[at] = scores[choices[at]] / divisor * scale;
    }
}

// Numbers of the choices of each block of THREADS that are each expert, `[blocks, experts]`. Launch: a thread
// for each choice, `experts` words of shared memory.
KERNEL __launch_bounds__(THREADS)
    count(const u32 *__restrict__ choices, u32 *__restrict__ counts, u32 total, u32 experts) {
    u32 *own = reinterpret_cast<u32 *>(shared_memory);
    for (u32 e = threadIdx.x; e < experts; e += THREADS) own[e] = 0;
    __syncthreads();
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    // Sums of integers do not depend on their order.
    if (at < total) atomicAdd(own + choices[at], 1u);
    __syncthreads();
    for (u32 e = threadIdx.x; e < experts; e += THREADS) counts[u64(blockIdx.x) * experts + e] = own[e];
}

// Replaces counts by those of the blocks before, writes the first row of each expert, a multiple of
// `alignment`, its number of choices and the sources of rows of zeros, and adds to its load. Launch: one
// block, `experts` words of shared memory.
KERNEL __launch_bounds__(THREADS)
    offsets(u32 *__restrict__ counts, u32 *__restrict__ offsets, u32 *__restrict__ of_experts,
            u32 *__restrict__ sources, u32 *__restrict__ loads, u32 blocks, u32 experts, u32 alignment,
            u32 rows) {
    u32 *sums = reinterpret_cast<u32 *>(shared_memory);
    for (u32 e = threadIdx.x; e < experts; e += THREADS) {
        u32 before = 0;
        for (u32 block = 0; block < blocks; block++) {
            u32 *at = counts + u64(block) * experts + e;
            const u32 own = *at;
            *at = before;
            before += own;
        }
        sums[e] = before;
        of_experts[e] = before;
        if (loads) loads[e] += before;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 before = 0;
        for (u32 e = 0; e < experts; e++) {
            offsets[e] = before;
            before += (sums[e] + alignment - 1) / alignment * alignment;
        }
        offsets[experts] = rows;
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < experts; e += THREADS)
        for (u32 row = offsets[e] + sums[e]; row < offsets[e + 1]; row++) sources[row] = NONE;
}

// The row of experts of each choice, in the order of choices within an expert. Launch as `count`, with
// THREADS words of shared memory.
KERNEL __launch_bounds__(THREADS)
    order(const u32 *__restrict__ choices, const u32 *__restrict__ counts, const u32 *__restrict__ offsets,
          u32 *__restrict__ slots, u32 *__restrict__ sources, u32 total, u32 experts) {
    u32 *own = reinterpret_cast<u32 *>(shared_memory);
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    own[threadIdx.x] = at < total ? choices[at] : NONE;
    __syncthreads();
    if (at >= total) return;
    const u32 expert = own[threadIdx.x];
    u32 before = 0;
    for (u32 i = 0; i < threadIdx.x; i++) before += own[i] == expert;
    const u32 slot = offsets[expert] + counts[u64(blockIdx.x) * experts + expert] + before;
    slots[at] = slot;
    sources[slot] = at;
}

// Replaces the gradient of a row's scores by that of its logits.
__device__ __forceinline__ void through_scores(const float *scores, float *gradient, u32 experts,
                                               bool sigmoid) {
    const u32 lane = threadIdx.x % WARP;
    float all = 0.0f;
    if (!sigmoid) {
        for (u32 e = lane; e < experts; e += WARP) all += gradient[e] * scores[e];
        all = warp_sum(all);
    }
    for (u32 e = lane; e < experts; e += WARP)
        gradient[e] = scores[e] * (sigmoid ? gradient[e] * (1.0f - scores[e]) : gradient[e] - all);
    __syncwarp();
}

// Numbers of the choices of rows that are tokens, of each expert and of all, which it adds to the experts'
// loads. Launch: one block, `experts` words of shared memory.
KERNEL __launch_bounds__(THREADS)
    count_tokens(const u32 *__restrict__ choices, const u32 *__restrict__ mask, u32 *__restrict__ counts,
                 u32 *__restrict__ loads, u32 rows, u32 experts, u32 chosen) {
    u32 *own = reinterpret_cast<u32 *>(shared_memory);
    for (u32 e = threadIdx.x; e < experts; e += THREADS) own[e] = 0;
    __syncthreads();
    // Sums of integers do not depend on their order.
    for (u32 at = threadIdx.x; at < rows * chosen; at += THREADS)
        if (mask[at / chosen]) atomicAdd(own + choices[at], 1u);
    __syncthreads();
    for (u32 e = threadIdx.x; e < experts; e += THREADS) {
        counts[e] = own[e];
        if (loads) loads[e] += own[e];
    }
    if (threadIdx.x != 0) return;
    u32 all = 0;
    for (u32 e = 0; e < experts; e++) all += own[e];
    counts[experts] = all;
}

// Launch: a warp for each row, with 2 * experts floats of shared memory each. `loss_scale`: null, or a factor
// of the balancing losses; `load_factor` is multiplied by the rows of each expert, `log_factor` by a row's
// log-sum-exp. `mask`: null, or 0 for rows of which the balancing losses have no part; the others' are
// divided by `tokens`, and loads by the sum of all counts, which follows them.
KERNEL __launch_bounds__(THREADS)
    logits_gradient(const float *__restrict__ dw, const float *__restrict__ logits,
                    const u32 *__restrict__ choices, const u32 *__restrict__ counts,
                    const float *__restrict__ loss_scale, const u32 *__restrict__ mask,
                    const u32 *__restrict__ tokens, float *__restrict__ gradient, u32 rows, u32 experts, u32 chosen,
                    u32 sigmoid, u32 normalised, float least_sum, float scale, float load_factor,
                    float log_factor) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x * WARPS + warp;
    if (row >= rows) return;
    float *scores = shared_memory + warp * 2 * experts, *own = scores + experts;
    logits += u64(row) * experts, gradient += u64(row) * experts;
    dw += u64(row) * chosen, choices += u64(row) * chosen;
    write_scores(logits, scores, experts, sigmoid);
    for (u32 e = lane; e < experts; e += WARP) own[e] = 0.0f;
    __syncwarp();
    float sum = 1.0f, mean = 0.0f;
    if (normalised) {
        sum = EPSILON;
        for (u32 number = 0; number < chosen; number++) sum += scores[choices[number]];
        if (sum < least_sum) {
            sum = least_sum;
        } else {
            for (u32 number = 0; number < chosen; number++)
                mean += dw[number] * (scores[choices[number]] / sum);
        }
    }
    for (u32 number = lane; number < chosen; number += WARP)
        own[choices[number]] = (dw[number] - mean) / sum * scale;
    __syncwarp();
    through_scores(scores, own, experts, sigmoid);
    for (u32 e = lane; e < experts; e += WARP) gradient[e] = own[e];
    const float factor = loss_scale ? *loss_scale : 1.0f;
    if (mask) {
        if (!mask[row]) return;
        const float all = __uint2float_rn(*tokens);
        load_factor = load_factor / all / __uint2float_rn(counts[experts]);
        log_factor = log_factor / all;
    }
    if (load_factor != 0.0f) {
        float all = 1.0f, of_all = 0.0f;
        if (sigmoid) {
            all = 0.0f;
            for (u32 e = lane; e < experts; e += WARP) all += scores[e];
            all = warp_sum(all) + EPSILON;
        }
        const float each = load_factor * factor;
        if (sigmoid) {
            for (u32 e = lane; e < experts; e += WARP)
                of_all += each * float(counts[e]) * (scores[e] / all);
            of_all = warp_sum(of_all);
        }
        for (u32 e = lane; e < experts; e += WARP)
            own[e] = (each * float(counts[e]) - of_all) / all;
        __syncwarp();
        through_scores(scores, own, experts, sigmoid);
        for (u32 e = lane; e < experts; e += WARP) gradient[e] += own[e];
    }
    if (log_factor != 0.0f) {
        float most = -INFINITE, exponentials = 0.0f;
        for (u32 e = lane; e < experts; e += WARP) most = fmaxf(most, logits[e]);
        most = warp_max(most);
        for (u32 e = lane; e < experts; e += WARP) exponentials += expf(logits[e] - most);
        exponentials = warp_sum(exponentials);
        const float log_sum = most + logf(exponentials);
        for (u32 e = lane; e < experts; e += WARP)
            gradient[e] += log_factor * factor * log_sum * (expf(logits[e] - most) / exponentials);
    }
}

// sums[e] = the sum over ranks of counts[rank, e]. Launch: a thread for each element.
KERNEL __launch_bounds__(THREADS)
    sum_loads(const u32 *__restrict__ counts, u32 *__restrict__ sums, u32 ranks, u32 width) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= width) return;
    u64 sum = 0;
    for (u32 rank = 0; rank < ranks; rank++) sum += counts[u64(rank) * width + at];
    sums[at] = sum > 0xffffffffull ? 0xffffffffu : u32(sum);
}

// Moves each correction by `rate` towards equal loads. Launch: one warp.
KERNEL __launch_bounds__(WARP)
    move_correction(float *__restrict__ correction, const u32 *__restrict__ loads, u32 experts, float rate) {
    u64 sum = 0;
    for (u32 e = 0; e < experts; e++) sum += loads[e];
    for (u32 e = threadIdx.x; e < experts; e += WARP) {
        const u64 own = u64(loads[e]) * experts;
        correction[e] += own < sum ? rate : own > sum ? -rate : 0.0f;
    }
}
