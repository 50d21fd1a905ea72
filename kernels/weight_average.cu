// Exponential averages of weights over updates.
#include "common.cuh"
#include "step_state.cuh"
#include "table.cuh"

// Four elements that a thread reads and writes at once.
typedef Vector<float, 4> Quad;

__device__ __forceinline__ bool is_aligned(const void *a, const void *b) {
    return (reinterpret_cast<u64>(a) | reinterpret_cast<u64>(b)) % sizeof(Quad) == 0;
}

// Moves an average towards its weight; a fraction of 1 copies the weight exactly. As
// `crates/tensor/src/ops/weight_average.rs` computes it.
__device__ __forceinline__ float moved(float average, float weight, float fraction) {
    return fraction == 1.0f ? weight : __fmaf_rn(fraction, __fsub_rn(weight, average), average);
}

// A table on the device lists the items, then for each (and one past the last) its first block.
struct Averaged { u64 weight, average, elements; };

// Launch: THREADS threads, a block for every CHUNK elements of every item. Floor: weights once in,
// averages in and out, 12 bytes an element; nothing if averages stay as they are.
KERNEL __launch_bounds__(THREADS)
    update(const Averaged *__restrict__ items, const StepState *__restrict__ state, u32 count) {
    const float fraction = state->average_fraction;
    if (fraction == 0.0f || skips(state)) return;
    const u32 *blocks = reinterpret_cast<const u32 *>(items + count);
    const u32 index = owner_of(blocks, count, blockIdx.x);
    const Averaged item = items[index];
    const float *weights = reinterpret_cast<const float *>(item.weight);
    float *averages = reinterpret_cast<float *>(item.average);
    const u64 first = u64(blockIdx.x - blocks[index]) * CHUNK;
    const u64 end = min(first + CHUNK, item.elements);
    const bool aligned = is_aligned(weights, averages);
#pragma unroll 4
    for (u64 at = first + threadIdx.x * 4; at < end; at += THREADS * 4) {
        if (aligned && at + 4 <= end) {
            const Quad weight = load<4>(weights + at);
            Quad average = load<4>(static_cast<const float *>(averages) + at);
#pragma unroll
            for (int i = 0; i < 4; i++) average.at[i] = moved(average.at[i], weight.at[i], fraction);
            store<4>(averages + at, average);
        } else {
            for (u64 i = at; i < min(at + 4, end); i++) {
                averages[i] = moved(averages[i], weights[i], fraction);
            }
        }
    }
}

// Exchanges the elements of two arrays. Launch: as above. Floor: both in and out, 16 bytes an element.
KERNEL __launch_bounds__(THREADS) exchange(float *__restrict__ one, float *__restrict__ other, u64 elements) {
    const u64 first = u64(blockIdx.x) * CHUNK;
    const u64 end = min(first + CHUNK, elements);
    const bool aligned = is_aligned(one, other);
#pragma unroll 4
    for (u64 at = first + threadIdx.x * 4; at < end; at += THREADS * 4) {
        if (aligned && at + 4 <= end) {
            const Quad from_one = load<4>(static_cast<const float *>(one) + at);
            const Quad from_other = load<4>(static_cast<const float *>(other) + at);
            store<4>(one + at, from_other);
            store<4>(other + at, from_one);
        } else {
            for (u64 i = at; i < min(at + 4, end); i++) {
                const float kept = one[i];
                one[i] = other[i];
                other[i] = kept;
            }
        }
    }
}
