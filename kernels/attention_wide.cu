// Attention in half precision for heads wider than 128, on the tensor cores of any GPU from sm_80 on.
// Operands, algorithm and order of sums as in attention.cu with PADDED; HEAD_DIM is 192 or 256.
//
// The sums of 16 rows of a block would fill a warp's registers. So the forward pass reads its queries from
// shared memory for each tile, and the warps of the backward pass divide a tile twice: each computes the
// scores of some columns, which all warps of the same rows then multiply by their own columns of the head.
//
// Shapes: as in attention.cu. Letters as in CONTRIBUTING.md.
#include "attention_tiles.cuh"

#if __CUDA_ARCH__ >= 800

// Tiles by the shared memory of a block: 227 KiB, or 99 KiB.
#define SMALL
#if __CUDA_ARCH__ >= 900
#undef SMALL
#endif
#if __CUDA_ARCH__ >= 1200
#define SMALL
#endif
#ifdef SMALL
#define FORWARD_WARPS SMALL_FORWARD_WARPS
#define FORWARD_KEYS SMALL_FORWARD_KEYS
#define BACKWARD_WARPS SMALL_BACKWARD_WARPS
#define BACKWARD_ROWS SMALL_BACKWARD_ROWS
#define STAGES SMALL_STAGES
#else
#define FORWARD_WARPS LARGE_FORWARD_WARPS
#define FORWARD_KEYS LARGE_FORWARD_KEYS
#define BACKWARD_WARPS LARGE_BACKWARD_WARPS
#define BACKWARD_ROWS LARGE_BACKWARD_ROWS
#define STAGES LARGE_STAGES
#endif

#include "attention_forward.cuh"

#define BACKWARD_COLUMNS BACKWARD_ROWS
#define BACKWARD_BLOCKS 1
// Warps are ROW_GROUPS by COLUMN_GROUPS. A warp has ROW_TILES times 16 rows, and of them SCORE_TILES times 8
// columns of a tile of scores and SUM_TILES times 8 columns of the head.
#define ROW_GROUPS 2
#define COLUMN_GROUPS (BACKWARD_WARPS / ROW_GROUPS)
#define ROW_TILES (BACKWARD_ROWS / 16 / ROW_GROUPS)
#define SCORE_TILES (BACKWARD_COLUMNS / 8 / COLUMN_GROUPS)
#define SUM_TILES (D / 8 / COLUMN_GROUPS)
typedef float Sum[ROW_TILES][SUM_TILES][4];

#include "attention_backward.cuh"

static_assert(SCORE_TILES == 2 && SUM_TILES % 2 == 0, "pairs of tiles of 8 columns");

#define TILE (BACKWARD_COLUMNS * D * 2)                   // bytes of a tile of operands
#define SCORES (BACKWARD_ROWS * BACKWARD_COLUMNS * 2)     // ... of weights, and of gradients of scores
#define OWN (2 * BACKWARD_ROWS * D * 2)                   // ... of the block's rows
#define STATISTICS (3 * BACKWARD_COLUMNS)                 // numbers of a tile

// First row, among those of the block, and first columns of a warp.
struct Warp {
    u32 row, score_column, sum_column;
    __device__ __forceinline__ Warp() {
        const u32 warp = threadIdx.x / WARP, group = warp / ROW_GROUPS;
        row = warp % ROW_GROUPS * ROW_TILES * 16;
        score_column = group * SCORE_TILES * 8, sum_column = group * SUM_TILES * 8;
    }
};

// Scores of the warp's part of a tile: rows of own tile `own` times rows of `tile`, transposed.
__device__ __forceinline__ void scores_of(float (&s)[ROW_TILES][SCORE_TILES][4], u32 own, u32 tile, u32 k,
                                          const Warp &warp) {
    const u32 lane = threadIdx.x % WARP;
    u32 b[4];
    ldmatrix(b, tile + at(warp.score_column + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
        u32 a[4];
        left(a, own, warp.row + m * 16, k);
        mma(s[m][0], a, b[0], b[1]);
        mma(s[m][1], a, b[2], b[3]);
    }
}

// Writes the warp's part of a tile of scores to shared memory, in half precision.
__device__ __forceinline__ void share(u32 to, const float (&s)[ROW_TILES][SCORE_TILES][4], const Warp &warp) {
    const u32 row = warp.row + threadIdx.x % WARP / 4, offset = threadIdx.x % 4 * 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < SCORE_TILES; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 target = to + offset + at<BACKWARD_COLUMNS>(row + m * 16 + half * 8,
                                                                     warp.score_column / 8 + n);
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(target),
                             "r"(pack_half(s[m][n][half * 2], s[m][n][half * 2 + 1]))
                             : "memory");
            }
}

// sum += rows of a tile of scores * the warp's columns of a tile of operands.
__device__ __forceinline__ void times(Sum &sum, u32 scores, u32 tile, const Warp &warp) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < BACKWARD_COLUMNS / 16; ++k) {
        u32 a[ROW_TILES][4];
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
            ldmatrix(a[m],
                     scores + at<BACKWARD_COLUMNS>(warp.row + m * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < SUM_TILES; n += 2) {
            u32 b[4];
            ldmatrix_transposed(b, tile + at(k * 16 + lane % 16, warp.sum_column / 8 + n + lane / 16));
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                mma(sum[m][n], a[m], b[0], b[1]);
                mma(sum[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Log-sum-exps, deltas and first keys of a thread's rows.
struct OwnRows {
    float logsumexp[ROW_TILES][2], delta[ROW_TILES][2];
    u32 first_key[ROW_TILES][2];
};

// Turns scores into weights, and gradients of weights into gradients of scores. `row` and `column`: positions
// of the first.
template <bool KEYS>
__device__ __forceinline__ void weigh(float (&p)[SCORE_TILES][4], float (&ds)[SCORE_TILES][4],
                                      const float *statistics, const OwnRows &own, int m, u32 local, u32 row,
                                      u32 column, bool masked, float scale, const Masks &masks) {
    const u32 *documents = reinterpret_cast<const u32 *>(statistics + 2 * BACKWARD_COLUMNS);
#pragma unroll
    for (int n = 0; n < SCORE_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 at = local + n * 8 + i % 2, r = row + i / 2 * 8, c = column + n * 8 + i % 2;
            const float logsumexp = KEYS ? statistics[at] : own.logsumexp[m][i / 2];
            const float delta = KEYS ? statistics[BACKWARD_COLUMNS + at] : own.delta[m][i / 2];
            bool hidden = masked && (KEYS ? r > c + masks.position : c > r + masks.position);
            if (masks.has_first_keys())
                hidden |= (KEYS ? r : c) < (KEYS ? documents[at] : own.first_key[m][i / 2]);
            if (masks.has_cap()) p[n][i] = masks.capped(p[n][i], scale * LN2);
            const float slope = masks.has_cap() ? masks.slope(p[n][i] * (scale * LN2)) : 1.0f;
            p[n][i] = hidden ? 0.0f : exp2_fast(fmaf(p[n][i], scale, -logsumexp));
            ds[n][i] = p[n][i] * (ds[n][i] - delta);
            if (masks.has_cap()) ds[n][i] *= slope;
        }
}

// Adds one tile, whose first row and column are at the positions `row` and `column`.
template <bool KEYS>
__device__ __forceinline__ void backward_tile(Sum (&acc)[KEYS ? 2 : 1], u32 own_tiles, u32 tile, u32 scores,
                                              const float *statistics, const OwnRows &own, const Warp &warp,
                                              u32 row, u32 column, bool masked, float scale,
                                              const Masks &masks, u32 line) {
    float p[ROW_TILES][SCORE_TILES][4] = {}, ds[ROW_TILES][SCORE_TILES][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        scores_of(p, own_tiles, tile, k, warp);
        scores_of(ds, own_tiles + OWN / 2, tile + TILE, k, warp);
    }
    row += warp.row + threadIdx.x % WARP / 4, column += warp.score_column;
    const u32 pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
        if (masks.dropout.threshold)
            for_weights<SCORE_TILES, KEYS>(masks, line, row + m * 16, column,
                                           [&](int n, int i, float factor) { ds[m][n][i] *= factor; });
        weigh<KEYS>(p[m], ds[m], statistics, own, m, warp.score_column + pair, row + m * 16, column + pair,
                    masked, scale, masks);
        if (KEYS && masks.dropout.threshold)
            for_weights<SCORE_TILES, KEYS>(masks, line, row + m * 16, column,
                                           [&](int n, int i, float factor) { p[m][n][i] *= factor; });
    }
    share(scores, ds, warp);
    if (KEYS) share(scores + SCORES, p, warp);
    __syncthreads();
    times(acc[0], scores, tile, warp);
    if constexpr (KEYS) times(acc[1], scores + SCORES, tile + TILE, warp);
}

// Shared memory: own rows, STAGES times two tiles, scores, STAGES times log-sum-exps, deltas and first keys.
template <bool KEYS>
__device__ __forceinline__ void backward(Sum (&acc)[KEYS ? 2 : 1], u8 *memory, const Operands &from,
                                         u32 first, u32 time, float scale, bool aligned, const Masks &masks,
                                         u32 line, u32 width, u32 other_width) {
    constexpr u32 THREADS = BACKWARD_WARPS * WARP;
    const u32 own_tiles = shared_address(memory), stages = own_tiles + OWN;
    const u32 scores = stages + STAGES * 2 * TILE;
    float *statistics = reinterpret_cast<float *>(memory + OWN + STAGES * 2 * TILE + 2 * SCORES);
    const Warp warp;
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
            load_tile<BACKWARD_COLUMNS, THREADS>(stages + (tile % STAGES * 2 + i) * TILE, from.columns[i],
                                                 from.column_stride[i], tile * BACKWARD_COLUMNS, column_limit,
                                                 aligned, i == 0 ? width : other_width);
        if (KEYS)
            load_statistics<THREADS>(statistics + tile % STAGES * STATISTICS, from, tile * BACKWARD_COLUMNS,
                                     time, masks);
    };
    for (u32 i = 0; i < 2; ++i)
        load_tile<BACKWARD_ROWS, THREADS>(own_tiles + i * (OWN / 2), from.rows[i], from.row_stride[i], first,
                                          own_limit, aligned, i == 0 ? width : other_width);
    start_tile(begin);
    commit_copies();
    OwnRows own = {};
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; ++i) {
        const u32 row = first + warp.row + threadIdx.x % WARP / 4 + i * 8;
        if (!KEYS) {
            own.logsumexp[i / 2][i % 2] = row < time ? from.logsumexp[row] : INFINITE;
            own.delta[i / 2][i % 2] = row < time ? from.delta[row] : 0.0f;
            own.first_key[i / 2][i % 2] = masks.first_key(blockIdx.z, row, time);
        }
    }
    for (u32 tile = begin; tile < tiles; ++tile) {
        wait_copies<0>();
        __syncthreads();
        if (STAGES > 1 && tile + 1 < tiles) start_tile(tile + 1);
        commit_copies();
        const u32 column = tile * BACKWARD_COLUMNS;
        // Whether some query of the tile does not see all keys.
        const bool masked = KEYS ? first + BACKWARD_ROWS > column + position + 1
                                 : column + BACKWARD_COLUMNS > first + position + 1;
        backward_tile<KEYS>(acc, own_tiles, stages + tile % STAGES * 2 * TILE, scores,
                            statistics + tile % STAGES * STATISTICS, own, warp, first, column, masked,
                            scale * LOG2E, masks, line);
        if (STAGES == 1 && tile + 1 < tiles) {
            __syncthreads();
            start_tile(tile + 1);
            commit_copies();
        }
    }
}

__device__ __forceinline__ u32 store_sum(Half *to, u64 stride, u32 first, u32 time, u32 width, const Sum &acc,
                                         float factor) {
    const Warp warp;
    const u32 row = first + warp.row + threadIdx.x % WARP / 4;
    const u32 left = width > warp.sum_column ? width - warp.sum_column : 0;
    u32 largest = 0;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
        largest = larger_pair(largest, store_rows(to + warp.sum_column, stride, row + m * 16, time, left,
                                                  acc[m], factor, factor));
    return largest;
}

#endif
