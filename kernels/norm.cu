// Sums of squares over fixed chunks of many tensors, and their norm with the factor that clips it.
#include "common.cuh"
#include "step_state.cuh"
#include "table.cuh"

// Launch: a warp for a chunk of CHUNK elements counted from its tensor's start, 8 chunks a block. Lane l adds
// the squares of elements 4(32 i + l)..+4 in f64, whatever their alignment, so that a part of a tensor that
// begins on a chunk has the sums of the whole. Floor: every element once through memory.
#define CHUNKS_PER_BLOCK (THREADS / WARP)

__device__ __forceinline__ double warp_sum_f64(double x) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

template <typename T> __device__ __forceinline__ float chunk_sum(const T *x, u64 elements, u64 chunk) {
    const T *from = x + chunk * CHUNK;
    const u32 length = u32(min(elements - chunk * CHUNK, u64(CHUNK)));
    const bool aligned = reinterpret_cast<u64>(from) % (4 * sizeof(T)) == 0;
    const u32 lane = threadIdx.x % WARP;
    double sums[4] = {};
    if (aligned && length == CHUNK) {
#pragma unroll 8
        for (u32 at = lane * 4; at < CHUNK; at += WARP * 4) {
            const Vector<T, 4> values = load<4>(from + at);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const double value = to_f32(values.at[i]);
                sums[i] = fma(value, value, sums[i]);
            }
        }
    } else {
        for (u32 at = lane * 4; at < length; at += WARP * 4) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const double value = at + i < length ? to_f32(from[at + i]) : 0.0f;
                sums[i] = fma(value, value, sums[i]);
            }
        }
    }
    return float(warp_sum_f64((sums[0] + sums[1]) + (sums[2] + sums[3])));
}

// Writes the norm, sqrt(sum of sums) times the gradient scale, added in f64 in an order that depends on their
// number only, and the factor, min(1, max_norm / (norm + 1e-6)), 1 if max_norm is 0, NaN if the norm is. Sets
// the skip flag to whether the norm is above skip_above, unless that is 0. For a whole block. The sums may
// have been written by other blocks of this launch: they are read from L2.
__device__ __forceinline__ void join(const float *sums, u32 count, float max_norm, float skip_above,
                                     StepState *state) {
    __shared__ double partial[THREADS];
    double total = 0.0;
#pragma unroll 8
    for (u32 i = threadIdx.x; i < count; i += THREADS) total += double(__ldcg(sums + i));
    partial[threadIdx.x] = total;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x != 0) return;
    const double norm = __dmul_rn(sqrt(partial[0]), state->gradient_scale);
    const double factor = max_norm == 0.0f ? 1.0 : double(max_norm) / (norm + 1e-6);
    state->norm = float(norm);
    state->clip_factor = factor >= 1.0 ? 1.0f : float(factor);
    if (skip_above != 0.0f) state->skip = float(norm) > skip_above;
}

KERNEL __launch_bounds__(THREADS) finish(const float *__restrict__ sums, StepState *__restrict__ state,
                                         u32 count, float max_norm, float skip_above) {
    join(sums, count, max_norm, skip_above, state);
}

// Writes the norm of the sums of each group: sqrt of their sum, added in f64, times the gradient scale.
// Launch: a block for each group; thread t adds the sums t, t + THREADS, and so on whose group it is. Floor:
// groups times the sums through L2.
KERNEL __launch_bounds__(THREADS)
    group_norms(const float *__restrict__ sums, const u32 *__restrict__ groups,
                const StepState *__restrict__ state, float *__restrict__ norms, u32 count) {
    __shared__ double partial[THREADS];
    double total = 0.0;
#pragma unroll 8
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        total += groups[i] == blockIdx.x ? double(sums[i]) : 0.0;
    }
    partial[threadIdx.x] = total;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) norms[blockIdx.x] = float(__dmul_rn(sqrt(partial[0]), state->gradient_scale));
}

struct Gradient { u64 address, elements; };

// Measures all tensors of a table in one launch. The last block to finish, determined by an integer counter,
// adds all sums; results do not depend on which block it is. The table: the tensors, then for each (and one
// past the last) its first chunk, then the counter, 0 between launches.
template <typename T>
__device__ __forceinline__ void measure(Gradient *table, float *sums, StepState *state, u32 count,
                                        u32 chunks, float max_norm, float skip_above) {
    __shared__ bool last;
    const u32 *firsts = reinterpret_cast<const u32 *>(table + count);
    u32 *counter = reinterpret_cast<u32 *>(table + count) + count + 1;
    const u32 chunk = blockIdx.x * CHUNKS_PER_BLOCK + threadIdx.x / WARP;
    if (chunk < chunks) {
        const u32 index = owner_of(firsts, count, chunk);
        const Gradient gradient = table[index];
        const T *elements = reinterpret_cast<const T *>(gradient.address);
        const float sum = chunk_sum(elements, gradient.elements, chunk - firsts[index]);
        if (threadIdx.x % WARP == 0) sums[chunk] = sum;
    }
    __threadfence();
    __syncthreads();
    // Wraps to 0 after the last block, for the next launch.
    if (threadIdx.x == 0) last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    join(sums, chunks, max_norm, skip_above, state);
}

// Computes only the sums, of tensors that are parts of longer ones, each from its own index on. The table:
// the tensors, then for each (and one past the last) its first chunk, then the indices of the parts' sums.
template <typename T>
__device__ __forceinline__ void part_sums(const Gradient *table, float *sums, u32 count, u32 chunks) {
    const u32 *firsts = reinterpret_cast<const u32 *>(table + count);
    const u32 *positions = firsts + count + 1;
    const u32 chunk = blockIdx.x * CHUNKS_PER_BLOCK + threadIdx.x / WARP;
    if (chunk >= chunks) return;
    const u32 index = owner_of(firsts, count, chunk);
    const u32 inside = chunk - firsts[index];
    const Gradient part = table[index];
    const float sum = chunk_sum(reinterpret_cast<const T *>(part.address), part.elements, inside);
    if (threadIdx.x % WARP == 0) sums[positions[index] + inside] = sum;
}

#define FOR_TYPE(NAME, T)                                                                                    \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        chunk_sums_##NAME(const T *__restrict__ x, float *__restrict__ sums, u64 elements, u32 chunks) {     \
        const u32 chunk = blockIdx.x * CHUNKS_PER_BLOCK + threadIdx.x / WARP;                                \
        if (chunk >= chunks) return;                                                                         \
        const float sum = chunk_sum(x, elements, chunk);                                                     \
        if (threadIdx.x % WARP == 0) sums[chunk] = sum;                                                      \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        measure_##NAME(Gradient *table, float *sums, StepState *state, u32 count, u32 chunks,                \
                       float max_norm, float skip_above) {                                                   \
        measure<T>(table, sums, state, count, chunks, max_norm, skip_above);                                 \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        part_sums_##NAME(const Gradient *__restrict__ table, float *__restrict__ sums, u32 count,            \
                         u32 chunks) {                                                                       \
        part_sums<T>(table, sums, count, chunks);                                                            \
    }

FOR_EACH_TYPE(FOR_TYPE)
