// Causal attention in half precision on the tensor cores of any GPU (mma.sync, ldmatrix).
//
// Online softmax after Milakov and Gimelshein (2018); tiles after FlashAttention (Dao and others, 2022). The
// matrix of scores exists in registers only. The backward pass computes each tile twice, once in the block
// that owns its keys (dK, dV) and once in the block that owns its queries (dQ): 7 matmuls instead of 5, but
// no two blocks write to the same memory, so results repeat to the bit without waiting.
//
// HEAD_DIM is 32, 64, 96 or 128. Queries have batch * time rows, and keys and values batch * rows_of_keys,
// q_stride or kv_stride elements apart: three arrays, or column ranges of one or two. Query head h is
// columns h * HEAD_DIM.. of a row, and reads key and value head h / group. Gradients have the layout of
// their operands.
#include "attention_tiles.cuh"

// bf16 exists from sm_80 on.
#if __CUDA_ARCH__ >= 800 || defined(HALF_IS_F16)
#include "attention_forward.cuh"

// statistics[0][batch, head, time] = logsumexp in powers of two, [1][..] = delta, the sum over a row of dy *
// out. Grid [ceil(batch * time * heads / 32)], 256 threads: 8 threads per row, so that a warp reads 4
// consecutive rows. Floor: 4 * batch * time * width bytes at memory speed.
KERNEL __launch_bounds__(ROW_THREADS)
    OF_HALF(statistics)(float *__restrict__ statistics, const Half *__restrict__ dy,
                         const Half *__restrict__ out, const float *__restrict__ logsumexp, u32 batch,
                         u32 time, u32 heads, u32 aligned) {
    constexpr u32 PART = D / 8;
    const u64 row = u64(blockIdx.x) * (ROW_THREADS / 8) + threadIdx.x / 8, rows = u64(batch) * time * heads;
    const u64 start = min(row, rows - 1) * D + threadIdx.x % 8 * PART;
    constexpr int LANES = PART % 8 == 0 ? 8 : 4;
    float sum = 0.0f;
    if (aligned) {
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

#define BACKWARD_ROWS (16 * BACKWARD_WARPS)
#define BACKWARD_PART (D >= 96 ? 32 : 64)  // columns worked on at a time

// Operands of one head: the block owns rows of `rows` and loops over those of `columns`; [0] are queries or
// keys, [1] are dy or values.
struct Operands {
    const Half *rows[2], *columns[2];
    u64 row_stride[2], column_stride[2];
    const float *logsumexp, *delta;  // the first in powers of two
};

// Adds one tile. KEYS: rows are keys, columns queries; acc[0] += ds * columns[0], and with KEYS acc[1] += p *
// columns[1].
template <bool KEYS>
__device__ __forceinline__ void backward_tile(float (&acc)[KEYS ? 2 : 1][D / 8][4],
                                              const u32 (&a)[2][D / 16][4], u32 tile, const float *statistics,
                                              const float (&own)[2][2], const u32 (&visible)[2], u32 row,
                                              u32 column, bool masked, float scale, const Masks &masks,
                                              u32 line) {
    constexpr int N = BACKWARD_PART / 8;
    constexpr u32 SIZE = BACKWARD_COLUMNS * D * 2;
    const u32 *documents = reinterpret_cast<const u32 *>(statistics + 2 * BACKWARD_COLUMNS);
#pragma unroll
    for (u32 part = 0; part < BACKWARD_COLUMNS; part += BACKWARD_PART) {
        float p[N][4] = {}, ds[N][4] = {};
        times_transposed<N>(p, a[0], tile, part);
        times_transposed<N>(ds, a[1], tile + SIZE, part);
        if (masks.dropout.threshold)
            for_weights<N, KEYS>(masks, line, row, column + part,
                                 [&](int n, int i, float factor) { ds[n][i] *= factor; });
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const u32 local = part + n * 8 + threadIdx.x % 4 * 2;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float logsumexp = KEYS ? statistics[local + i % 2] : own[i / 2][0];
                const float delta = KEYS ? statistics[BACKWARD_COLUMNS + local + i % 2] : own[i / 2][1];
                const u32 r = row + i / 2 * 8, c = column + local + i % 2;
                bool hidden =
                    masked && (KEYS ? r > c + masks.position : c > r + masks.position);
                if (masks.has_first_keys()) {
                    const u32 first_key = KEYS ? documents[local + i % 2] : visible[i / 2];
                    hidden |= (KEYS ? r : c) < first_key;
                }
                if (masks.has_cap()) p[n][i] = masks.capped(p[n][i], scale * LN2);
                const float slope = masks.has_cap() ? masks.slope(p[n][i] * (scale * LN2)) : 1.0f;
                p[n][i] = hidden ? 0.0f : exp2_fast(fmaf(p[n][i], scale, -logsumexp));
                ds[n][i] = p[n][i] * (ds[n][i] - delta);
                if (masks.has_cap()) ds[n][i] *= slope;
            }
        }
        u32 packed[N / 2][4];
        if constexpr (KEYS) {
            if (masks.dropout.threshold)
                for_weights<N, KEYS>(masks, line, row, column + part,
                                     [&](int n, int i, float factor) { p[n][i] *= factor; });
            pack<N>(packed, p);
            times<N>(acc[1], packed, tile + SIZE, part);
        }
        pack<N>(packed, ds);
        times<N>(acc[0], packed, tile, part);
    }
}

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

template <bool KEYS>
__device__ __forceinline__ void backward(float (&acc)[KEYS ? 2 : 1][D / 8][4], u8 *memory,
                                         const Operands &from, u32 first, u32 time, float scale,
                                         bool aligned, const Masks &masks, u32 line) {
    constexpr u32 THREADS = BACKWARD_WARPS * WARP, SIZE = BACKWARD_COLUMNS * D * 2;
    const u32 own_tiles = shared_address(memory), stages = own_tiles + 2 * BACKWARD_ROWS * D * 2;
    float *statistics = reinterpret_cast<float *>(memory + 2 * BACKWARD_ROWS * D * 2 + 4 * SIZE);
    const u32 warp_first = first + threadIdx.x / WARP * 16, row = warp_first + threadIdx.x % WARP / 4;
    const u32 position = masks.position, limit = position + time;
    const u32 own_limit = KEYS ? limit : time, column_limit = KEYS ? time : limit;
    const u32 end = min(first + BACKWARD_ROWS, own_limit);
    // The first query that sees a key of the block, or the first key that a query of the block sees.
    const u32 first_column =
        KEYS ? max(first, position) - position : masks.first_key(blockIdx.z, first, time);
    const u32 begin = first_column / BACKWARD_COLUMNS;
    const u32 tiles = KEYS ? masks.end_tile(blockIdx.z, begin, BACKWARD_COLUMNS, end, time)
                           : (position + end + BACKWARD_COLUMNS - 1) / BACKWARD_COLUMNS;
    auto start_tile = [&](u32 tile) {
        for (u32 i = 0; i < 2; ++i)
            load_tile<BACKWARD_COLUMNS, THREADS>(stages + (tile % 2 * 2 + i) * SIZE, from.columns[i],
                                                 from.column_stride[i], tile * BACKWARD_COLUMNS,
                                                 column_limit, aligned);
        if (KEYS)
            load_statistics<THREADS>(statistics + tile % 2 * 3 * BACKWARD_COLUMNS, from,
                                     tile * BACKWARD_COLUMNS, time, masks);
    };
    for (u32 i = 0; i < 2; ++i)
        load_tile<BACKWARD_ROWS, THREADS>(own_tiles + i * BACKWARD_ROWS * D * 2, from.rows[i],
                                          from.row_stride[i], first, own_limit, aligned);
    start_tile(begin);
    commit_copies();
    float own[2][2] = {};
    if (!KEYS)
        for (u32 half = 0; half < 2; ++half) {
            const bool inside = row + half * 8 < time;
            own[half][0] = inside ? from.logsumexp[row + half * 8] : INFINITE;
            own[half][1] = inside ? from.delta[row + half * 8] : 0.0f;
        }
    const u32 visible[2] = {masks.first_key(blockIdx.z, row, time),
                            masks.first_key(blockIdx.z, row + 8, time)};
    u32 a[2][D / 16][4];
    for (u32 tile = begin; tile < tiles; ++tile) {
        wait_copies<0>();
        __syncthreads();
        if (tile + 1 < tiles) start_tile(tile + 1);
        commit_copies();
        if (tile == begin) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int k = 0; k < D / 16; ++k)
                    left(a[i][k], own_tiles + i * BACKWARD_ROWS * D * 2, threadIdx.x / WARP * 16, k);
        }
        const u32 column = tile * BACKWARD_COLUMNS;
        // Whether some query of the tile does not see all keys.
        const bool masked = KEYS ? first + BACKWARD_ROWS > column + position + 1
                                 : column + BACKWARD_COLUMNS > first + position + 1;
        backward_tile<KEYS>(acc, a, stages + tile % 2 * 2 * SIZE,
                            statistics + tile % 2 * 3 * BACKWARD_COLUMNS, own, visible, row, column,
                            masked, scale * LOG2E, masks, line);
    }
}

// Both: 128 threads, shared (2 * 64 + 4 * 64) rows and 1.5 KiB. Tiles of 64 by 64 let two blocks share a
// multiprocessor with all accumulators and the block's own operands in registers. Long blocks start first.
// Floors: 4 matmuls for keys and values, 3 for queries, each batch * heads * time^2 * HEAD_DIM FLOP (the
// causal half). Cells: null, or where the largest magnitudes of the gradients go.
#define BACKWARD_OPERANDS                                                                                 \
    const Half *__restrict__ dy, const Half *__restrict__ q, const Half *__restrict__ k,                  \
        const Half *__restrict__ v, const float *__restrict__ statistics, u32 time, u32 heads, u32 group, \
        u32 q_stride, u32 kv_stride, float scale, u32 aligned, MASKS_PARAMETERS

// Grid [ceil((position + time) / 64), heads / group, batch]: a block adds the query heads of its key and
// value head in their order.
KERNEL __launch_bounds__(BACKWARD_WARPS *WARP, 2)
    OF_HALF(backward_key_value)(Half *__restrict__ dk, Half *__restrict__ dv, BACKWARD_OPERANDS,
                                u32 *dk_cells, u32 *dv_cells) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 first = blockIdx.x * BACKWARD_ROWS, width = heads * D;
    const u64 sequence = u64(blockIdx.z) * time;
    const u64 start = u64(blockIdx.z) * ROWS_OF_KEYS * kv_stride + blockIdx.y * D;
    float acc[2][D / 8][4] = {};
    for (u32 member = 0; member < group; ++member) {
        const u32 head = blockIdx.y * group + member;
        const float *logsumexp = statistics + (u64(blockIdx.z) * heads + head) * time;
        const float *delta = logsumexp + u64(gridDim.z) * heads * time;
        const Operands from = {{k + start, v + start},
                               {q + sequence * q_stride + head * D, dy + sequence * width + head * D},
                               {kv_stride, kv_stride},
                               {q_stride, width},
                               logsumexp,
                               delta};
        // Other warps may still read the tiles of the previous head.
        if (member > 0) __syncthreads();
        backward<true>(acc, memory, from, first, time, scale, aligned, MASKS, blockIdx.z * heads + head);
    }
    const u32 row = first + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    const u32 limit = (IS_GENERAL ? position : 0) + time;
    const u32 most = store_rows(dk + start, kv_stride, row, limit, acc[0], scale, scale);
    if (dk_cells) record_pair(most, dk_cells);
    const u32 other = store_rows(dv + start, kv_stride, row, limit, acc[1], 1.0f, 1.0f);
    if (dv_cells) record_pair(other, dv_cells);
}

// Grid [ceil(time / 64), heads, batch].
KERNEL __launch_bounds__(BACKWARD_WARPS *WARP, 2)
    OF_HALF(backward_query)(Half *__restrict__ dq, BACKWARD_OPERANDS, u32 *cells) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 head = blockIdx.y, first = (gridDim.x - 1 - blockIdx.x) * BACKWARD_ROWS, width = heads * D;
    const u64 sequence = u64(blockIdx.z) * time;
    const u64 start = sequence * q_stride + head * D;
    const u64 kv_start = u64(blockIdx.z) * ROWS_OF_KEYS * kv_stride + head / group * D;
    const float *logsumexp = statistics + (u64(blockIdx.z) * heads + head) * time;
    const float *delta = logsumexp + u64(gridDim.z) * heads * time;
    const Operands from = {{q + start, dy + sequence * width + head * D},
                           {k + kv_start, v + kv_start},
                           {q_stride, width},
                           {kv_stride, kv_stride},
                           logsumexp,
                           delta};
    float acc[1][D / 8][4] = {};
    backward<false>(acc, memory, from, first, time, scale, aligned, MASKS, blockIdx.z * heads + head);
    const u32 row = first + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    const u32 most = store_rows(dq + start, q_stride, row, time, acc[0], scale, scale);
    if (cells) record_pair(most, cells);
}

#endif
