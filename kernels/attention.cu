// Causal attention in half precision on the tensor cores of any GPU (mma.sync, ldmatrix).
//
// Online softmax after Milakov and Gimelshein (2018); tiles after FlashAttention (Dao and others, 2022). The
// matrix of scores exists in registers only. The backward pass computes each tile twice, once in the block
// that owns its keys (dK, dV) and once in the block that owns its queries (dQ): 7 matmuls instead of 5, but
// no two blocks write to the same memory, so results repeat to the bit without waiting.
//
// HEAD_DIM is 32, 64, 96 or 128, or with PADDED the width of tiles, a multiple of 16 up to 128 that holds a
// narrower head. Queries have batch * time rows, and keys and values batch * rows_of_keys, q_stride or
// kv_stride elements apart: three arrays, or column ranges of one or two. Query head h is columns h * width..
// of a row, and reads key and value head h / group. Gradients have the layout of their operands.
//
// Shapes: queries, keys and values are columns of blc arrays; out_blc, logsumexp_bhl, delta_bhl,
// documents_bl. Letters as in CONTRIBUTING.md.
#include "attention_tiles.cuh"

// bf16 exists from sm_80 on.
#if __CUDA_ARCH__ >= 800 || defined(HALF_IS_F16)
#include "attention_forward.cuh"

#define BACKWARD_ROWS (16 * BACKWARD_WARPS)
#define BACKWARD_BLOCKS 2                  // that share a multiprocessor
#define BACKWARD_PART (D >= 80 ? 32 : 64)  // columns worked on at a time
typedef float Sum[D / 8][4];

#include "attention_backward.cuh"

// Adds one tile. KEYS: rows are keys, columns queries; acc[0] += ds * columns[0], and with KEYS acc[1] += p *
// columns[1].
template <bool KEYS>
__device__ __forceinline__ void backward_tile(Sum (&acc)[KEYS ? 2 : 1], const u32 (&a)[2][D / 16][4],
                                              u32 tile, const float *statistics, const float (&own)[2][2],
                                              const u32 (&visible)[2], u32 row,
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

// Shared memory: (2 * 64 + 4 * 64) rows and 1.5 KiB. Tiles of 64 by 64 let two blocks share a multiprocessor
// with all accumulators and the block's own operands in registers.
template <bool KEYS>
__device__ __forceinline__ void backward(Sum (&acc)[KEYS ? 2 : 1], u8 *memory, const Operands &from,
                                         u32 first, u32 time, float scale, bool aligned, const Masks &masks,
                                         u32 line, u32 width, u32 other_width) {
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
                                                 column_limit, aligned, i == 0 ? width : other_width);
        if (KEYS)
            load_statistics<THREADS>(statistics + tile % 2 * 3 * BACKWARD_COLUMNS, from,
                                     tile * BACKWARD_COLUMNS, time, masks);
    };
    for (u32 i = 0; i < 2; ++i)
        load_tile<BACKWARD_ROWS, THREADS>(own_tiles + i * BACKWARD_ROWS * D * 2, from.rows[i],
                                          from.row_stride[i], first, own_limit, aligned,
                                          i == 0 ? width : other_width);
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

__device__ __forceinline__ u32 store_sum(Half *to, u64 stride, u32 first, u32 time, u32 width, const Sum &acc,
                                         float factor) {
    const u32 row = first + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    return store_rows(to, stride, row, time, width, acc, factor, factor);
}

#endif
