// The backward pass of attention in half precision: the kernels, around the tiles of the file that includes
// this one. Operands as in attention.cu.
#pragma once
#include "attention_tiles.cuh"

// 8 elements, of which unaligned operands are read one by one.
__device__ __forceinline__ Vector<Half, 8> piece(const Half *from, bool aligned) {
    if (aligned) return load<8>(from);
    Vector<Half, 8> values;
    for (int i = 0; i < 8; ++i) values.at[i] = from[i];
    return values;
}

// statistics[0][batch, head, time] = logsumexp in powers of two, [1][..] = delta, the sum over a row of dy *
// out. Grid [ceil(batch * time * heads / 32)], 256 threads: 8 threads per row, so that a warp reads 4
// consecutive rows. Floor: 4 * batch * time * width bytes at memory speed.
KERNEL __launch_bounds__(ROW_THREADS)
    OF_HALF(statistics)(float *__restrict__ statistics, const Half *__restrict__ dy,
                         const Half *__restrict__ out, const float *__restrict__ logsumexp, u32 batch,
                         u32 time, u32 heads,
                         u32 aligned PADDED_PARAMETERS(u32 head_width) VALUES_PARAMETERS) {
    constexpr u32 PART = D / 8;
    const u64 row = u64(blockIdx.x) * (ROW_THREADS / 8) + threadIdx.x / 8, rows = u64(batch) * time * heads;
    const u64 start = min(row, rows - 1) * VALUE_WIDTH + (IS_PADDED ? 0 : threadIdx.x % 8 * PART);
    constexpr int LANES = PART % 8 == 0 ? 8 : 4;
    float sum = 0.0f;
    if (IS_PADDED) {
        for (u32 column = threadIdx.x % 8 * 8; column < VALUE_WIDTH; column += 64) {
            const auto a = piece(dy + start + column, aligned), b = piece(out + start + column, aligned);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += to_f32(a.at[i]) * to_f32(b.at[i]);
        }
    } else if (aligned) {
#pragma unroll
        for (u32 part = 0; part < PART; part += LANES) {
            const auto a = load<LANES>(dy + start + part), b = load<LANES>(out + start + part);
#pragma unroll
            for (int i = 0; i < LANES; ++i) sum += to_f32(a.at[i]) * to_f32(b.at[i]);
        }
    } else {
        for (u32 i = 0; i < PART; ++i) sum += to_f32(dy[start + i]) * to_f32(out[start + i]);
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    const u64 position = row / heads, line = (position / time * heads + row % heads) * time + position % time;
    if (threadIdx.x % 8 == 0 && row < rows) {
        statistics[line] = logsumexp[line] * LOG2E;
        statistics[rows + line] = sum;
    }
}

// Operands of one head: the block owns rows of `rows` and loops over those of `columns`; [0] are queries or
// keys, [1] are dy or values.
struct Operands {
    const Half *rows[2], *columns[2];
    u64 row_stride[2], column_stride[2];
    const float *logsumexp, *delta;  // the first in powers of two
};

// Log-sum-exps (infinite past the end, so that weights are 0), deltas and first keys of a tile of queries.
template <u32 THREADS>
__device__ __forceinline__ void load_statistics(float *to, const Operands &from, u32 first, u32 time,
                                                const Masks &masks) {
    for (u32 index = threadIdx.x; index < BACKWARD_COLUMNS; index += THREADS) {
        const bool inside = first + index < time;
        to[index] = inside ? from.logsumexp[first + index] : INFINITE;
        to[BACKWARD_COLUMNS + index] = inside ? from.delta[first + index] : 0.0f;
        reinterpret_cast<u32 *>(to)[2 * BACKWARD_COLUMNS + index] =
            masks.first_key(blockIdx.z, first + index, time);
    }
}

// Gradients of the rows that a block owns, of which each thread has a part, Sum: acc[0] += ds * columns[0],
// and with KEYS, where rows are keys and columns queries, acc[1] += p * columns[1]. [0] are `width` wide, and
// [1] `other_width`.
template <bool KEYS>
__device__ __forceinline__ void backward(Sum (&acc)[KEYS ? 2 : 1], u8 *memory, const Operands &from,
                                         u32 first, u32 time, float scale, bool aligned, const Masks &masks,
                                         u32 line, u32 width, u32 other_width);
// Stores the sums of rows from `first` on, times a factor; returns as store_rows.
__device__ __forceinline__ u32 store_sum(Half *to, u64 stride, u32 first, u32 time, u32 width, const Sum &acc,
                                         float factor);

// Both: BACKWARD_WARPS warps, long blocks first. Floors: 4 matmuls for keys and values, 3 for queries, each
// batch * heads * time^2 * HEAD_DIM FLOP (the causal half). Cells: null, or where the largest magnitudes of
// the gradients go.
#define BACKWARD_OPERANDS                                                                                 \
    const Half *__restrict__ dy, const Half *__restrict__ q, const Half *__restrict__ k,                  \
        const Half *__restrict__ v, const float *__restrict__ statistics, u32 time, u32 heads, u32 group, \
        u32 q_stride, u32 kv_stride, float scale, u32 aligned, MASKS_PARAMETERS

// Grid [ceil((position + time) / BACKWARD_ROWS), heads / members, batch]: a block adds `members` query heads
// of a key and value head in their order. dk and dv have the layout of k and v, or if that is less than
// `group` of attention_parts.cu.
KERNEL __launch_bounds__(BACKWARD_WARPS *WARP, BACKWARD_BLOCKS)
    OF_HALF(backward_key_value)(Half *__restrict__ dk, Half *__restrict__ dv, u32 members,
                                BACKWARD_OPERANDS, u32 *dk_cells,
                                u32 *dv_cells PADDED_PARAMETERS(u32 head_width) VALUES_PARAMETERS) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 first = blockIdx.x * BACKWARD_ROWS, width = heads * VALUE_WIDTH;
    const u64 sequence = u64(blockIdx.z) * time;
    const u32 key_head = blockIdx.y * members / group;
    const u64 start = u64(blockIdx.z) * ROWS_OF_KEYS * kv_stride + key_head * WIDTH;
    const u64 v_start = u64(blockIdx.z) * ROWS_OF_KEYS * V_STRIDE + key_head * VALUE_WIDTH;
    Sum acc[2] = {};
    for (u32 member = 0; member < members; ++member) {
        const u32 head = blockIdx.y * members + member;
        const float *logsumexp = statistics + (u64(blockIdx.z) * heads + head) * time;
        const float *delta = logsumexp + u64(gridDim.z) * heads * time;
        const Operands from = {{k + start, v + v_start},
                               {q + sequence * q_stride + head * WIDTH,
                                dy + sequence * width + head * VALUE_WIDTH},
                               {kv_stride, V_STRIDE},
                               {q_stride, width},
                               logsumexp,
                               delta};
        // Other warps may still read the tiles of the previous head.
        if (member > 0) __syncthreads();
        backward<true>(acc, memory, from, first, time, scale, aligned, MASKS, blockIdx.z * heads + head,
                       WIDTH, VALUE_WIDTH);
    }
    const u32 limit = (IS_GENERAL ? position : 0) + time;
    const bool whole = members == group;
    const u64 part = u64(blockIdx.z) * limit * gridDim.y + blockIdx.y;
    const u32 most = store_sum(dk + (whole ? start : part * WIDTH), whole ? kv_stride : gridDim.y * WIDTH,
                               first, limit, WIDTH, acc[0], scale);
    if (dk_cells) record_pair(most, dk_cells);
    const u32 other = store_sum(dv + (whole ? v_start : part * VALUE_WIDTH),
                                whole ? V_STRIDE : gridDim.y * VALUE_WIDTH, first, limit, VALUE_WIDTH, acc[1],
                                1.0f);
    if (dv_cells) record_pair(other, dv_cells);
}

// Grid [ceil(time / BACKWARD_ROWS), heads, batch].
KERNEL __launch_bounds__(BACKWARD_WARPS *WARP, BACKWARD_BLOCKS)
    OF_HALF(backward_query)(Half *__restrict__ dq, BACKWARD_OPERANDS,
                            u32 *cells PADDED_PARAMETERS(u32 head_width) VALUES_PARAMETERS) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 head = blockIdx.y, first = (gridDim.x - 1 - blockIdx.x) * BACKWARD_ROWS,
              width = heads * VALUE_WIDTH;
    const u64 sequence = u64(blockIdx.z) * time;
    const u64 start = sequence * q_stride + head * WIDTH;
    const u64 kv_start = u64(blockIdx.z) * ROWS_OF_KEYS * kv_stride + head / group * WIDTH;
    const u64 v_start = u64(blockIdx.z) * ROWS_OF_KEYS * V_STRIDE + head / group * VALUE_WIDTH;
    const float *logsumexp = statistics + (u64(blockIdx.z) * heads + head) * time;
    const float *delta = logsumexp + u64(gridDim.z) * heads * time;
    const Operands from = {{q + start, dy + sequence * width + head * VALUE_WIDTH},
                           {k + kv_start, v + v_start},
                           {q_stride, width},
                           {kv_stride, V_STRIDE},
                           logsumexp,
                           delta};
    Sum acc[1] = {};
    backward<false>(acc, memory, from, first, time, scale, aligned, MASKS, blockIdx.z * heads + head, WIDTH,
                    VALUE_WIDTH);
    const u32 most = store_sum(dq + start, q_stride, first, time, WIDTH, acc[0], scale);
    if (cells) record_pair(most, cells);
}

