// x · Wᵀ + b of the first few rows of x, and zeros after them, by reading W once at the bandwidth. What an
// output is does not depend on the other rows, nor on their number.
#include "mma.cuh"

// Inputs of a step of a warp: 4 lanes share a row, and each has SHARE of its inputs.
#define SHARE 16
#define STEP (4 * SHARE)
#define WARPS (THREADS / WARP)
// Rows of W and of x in a tile.
#define TILE_OUTPUTS 16
#define TILE_ROWS 8

// A lane's share of a step of one row.
struct Share {
    uint4 low, high;
    template <typename T> __device__ __forceinline__ void read(const T *from) {
        low = *reinterpret_cast<const uint4 *>(from);
        high = *reinterpret_cast<const uint4 *>(from + SHARE / 2);
    }
    __device__ __forceinline__ u32 word(int i) const {
        const uint4 &half = i < 4 ? low : high;
        return i % 4 == 0 ? half.x : i % 4 == 1 ? half.y : i % 4 == 2 ? half.z : half.w;
    }
};

// Launch: a block of THREADS for TILES * TILE_OUTPUTS outputs of all rows, at most GROUPS * TILE_ROWS. Each
// warp takes every WARPS-th step, of which DEPTH are read ahead; the warps' sums are added in their order.
// Inputs are permuted within a step, equally in both operands. Floor: W, once.
template <typename T, int TILES, int GROUPS, int DEPTH>
__device__ __forceinline__ void multiply(const T *x, const T *weight, const T *bias, T *out, u32 rows,
                                         u32 all, u32 inputs, u32 outputs) {
    __shared__ float parts[WARPS][TILE_ROWS][TILES * TILE_OUTPUTS];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, quad = lane / 4, steps = inputs / STEP;
    const u32 first = blockIdx.x * (TILES * TILE_OUTPUTS), column = lane % 4 * SHARE;
    const T *from[TILES][2], *row_from[GROUPS];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 output = min(first + tile * TILE_OUTPUTS + half * 8 + quad, outputs - 1);
            from[tile][half] = weight + u64(output) * inputs + column;
        }
#pragma unroll
    for (int group = 0; group < GROUPS; group++)
        row_from[group] = x + u64(min(group * TILE_ROWS + quad, rows - 1)) * inputs + column;
    float sums[TILES][GROUPS][4] = {};
    // Rows are read ahead too where they are few.
    Share weights[DEPTH][TILES][2], first_rows[DEPTH];
    const auto read_ahead = [&](int ahead, u32 step) {
        if (step >= steps) return;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                weights[ahead][tile][half].read(from[tile][half] + step * STEP);
        if (GROUPS == 1) first_rows[ahead].read(row_from[0] + step * STEP);
    };
#pragma unroll
    for (int ahead = 0; ahead < DEPTH; ahead++) read_ahead(ahead, warp + ahead * WARPS);
    for (u32 start = warp; start < steps; start += DEPTH * WARPS) {
#pragma unroll
        for (int ahead = 0; ahead < DEPTH; ahead++) {
            const u32 step = start + ahead * WARPS;
            if (step >= steps) break;
            const Share(&own)[TILES][2] = weights[ahead];
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                Share row = first_rows[ahead];
                if (GROUPS > 1) row.read(row_from[group] + step * STEP);
#pragma unroll
                for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                    for (int i = 0; i < SHARE / 2; i += 2) {
                        const Share &upper = own[tile][0], &lower = own[tile][1];
                        const u32 a[4] = {upper.word(i), lower.word(i), upper.word(i + 1), lower.word(i + 1)};
                        multiply_tile<T>(sums[tile][group], a, row.word(i), row.word(i + 1));
                    }
            }
            read_ahead(ahead, step + DEPTH * WARPS);
        }
    }
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 row = lane % 4 * 2 + i % 2, own = tile * TILE_OUTPUTS + i / 2 * 8 + quad;
                parts[warp][row][own] = sums[tile][group][i];
            }
        __syncthreads();
        for (u32 at = threadIdx.x; at < TILE_ROWS * TILES * TILE_OUTPUTS; at += THREADS) {
            const u32 row = at / (TILES * TILE_OUTPUTS), own = at % (TILES * TILE_OUTPUTS);
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; i++) sum += parts[i][row][own];
            const u32 to = group * TILE_ROWS + row, output = first + own;
            if (to < rows && output < outputs) {
                if (bias) sum += to_f32(bias[output]);
                out[u64(to) * outputs + output] = from_f32<T>(sum);
            }
        }
        if (group + 1 < GROUPS) __syncthreads();
    }
    for (u32 at = threadIdx.x; at < (all - rows) * TILES * TILE_OUTPUTS; at += THREADS) {
        const u32 output = first + at % (TILES * TILE_OUTPUTS), row = rows + at / (TILES * TILE_OUTPUTS);
        if (output < outputs) out[u64(row) * outputs + output] = from_f32<T>(0.0f);
    }
}

#define FOR_SHAPE(NAME, T, SIZE, TILES, GROUPS, DEPTH, BLOCKS)                                              \
    KERNEL __launch_bounds__(THREADS, BLOCKS)                                                               \
        SIZE##_##GROUPS##_##NAME(const T *__restrict__ x, const T *__restrict__ weight,                     \
                                 const T *__restrict__ bias, T *__restrict__ out, u32 rows, u32 all,        \
                                 u32 inputs, u32 outputs) {                                                 \
        multiply<T, TILES, GROUPS, DEPTH>(x, weight, bias, out, rows, all, inputs, outputs);                \
    }
// Blocks of few outputs, of which there are enough for all multiprocessors, and of many, which read x less
// often.
#define FOR_TYPE(NAME, T)                                                                                   \
    FOR_SHAPE(NAME, T, few, 1, 1, 4, 2)                                                                     \
    FOR_SHAPE(NAME, T, few, 1, 2, 4, 2)                                                                     \
    FOR_SHAPE(NAME, T, few, 1, 4, 4, 2)                                                                     \
    FOR_SHAPE(NAME, T, few, 1, 8, 3, 1)                                                                     \
    FOR_SHAPE(NAME, T, many, 2, 1, 2, 2)                                                                    \
    FOR_SHAPE(NAME, T, many, 2, 2, 2, 2)                                                                    \
    FOR_SHAPE(NAME, T, many, 2, 4, 2, 1)                                                                    \
    FOR_SHAPE(NAME, T, many, 2, 8, 2, 1)

FOR_EACH_HALF(FOR_TYPE)
