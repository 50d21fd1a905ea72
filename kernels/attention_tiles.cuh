// Tiles of attention in half precision: copies to shared memory, tensor-core matmuls, and dropout of weights.
#pragma once
#include "attention_masks.cuh"
#include "maximum.cuh"
#include "tensor_cores.cuh"

#define D HEAD_DIM
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define CHUNKS (D / 8)  // pieces of 16 bytes in a row
#define INFINITE __int_as_float(0x7f800000)

// With PADDED, HEAD_DIM is the width of tiles, and columns from the head width, a multiple of 8, up to it are
// zeros in shared memory. Without, WIDTH is a constant, and kernels have no parameter for it.
#ifdef PADDED
constexpr bool IS_PADDED = true;
#define WIDTH head_width
#define PADDED_PARAMETERS(...) , __VA_ARGS__
#else
constexpr bool IS_PADDED = false;
#define WIDTH u32(D)
#define PADDED_PARAMETERS(...)
#endif

// With VALUES, heads of values and of the output are VALUE_WIDTH wide, at most HEAD_DIM, and rows of values
// are V_STRIDE elements apart; there are kernels with PADDED only.
#ifdef VALUES
#define VALUE_WIDTH value_width
#define V_STRIDE v_stride
#define VALUES_PARAMETERS , u32 value_width, u32 v_stride
#else
#define VALUE_WIDTH WIDTH
#define V_STRIDE kv_stride
#define VALUES_PARAMETERS
#endif

// Offset of piece `chunk` of `row` in a tile of COLUMNS columns, a multiple of 16: permuted within 128 bytes
// so that 8 rows of one chunk hit all banks.
template <int COLUMNS = D> __device__ __forceinline__ u32 at(u32 row, u32 chunk) {
    const u32 turn = COLUMNS % 64 == 0 ? row & 7 : COLUMNS % 32 == 0 ? (row >> 1) & 3 : (row >> 2) & 1;
    return row * (COLUMNS * 2) + ((chunk ^ turn) << 4);
}

// Starts the copy of `ROWS` rows from `first` on; rows past the end, and columns past `width`, are zeros.
// Unaligned operands are copied by 4 bytes.
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_tile(u32 tile, const Half *from, u64 stride, u32 first, u32 time,
                                          bool aligned, u32 width) {
    constexpr u32 PIECES = ROWS * CHUNKS;
#pragma unroll
    for (u32 step = 0; step < (PIECES + THREADS - 1) / THREADS; ++step) {
        const u32 index = step * THREADS + threadIdx.x, row = index / CHUNKS, chunk = index % CHUNKS;
        if (PIECES % THREADS != 0 && index >= PIECES) break;
        const bool inside = first + row < time && (!IS_PADDED || chunk * 8 < width);
        const Half *source = from + (inside ? u64(first + row) * stride : 0) + chunk * 8;
        const u32 target = tile + at(row, chunk), bytes = inside ? 16 : 0;
        if (aligned) {
            copy_async<16>(target, source, bytes);
        } else {
            for (u32 word = 0; word < 4; ++word)
                copy_async<4>(target + word * 4, source + word * 2, bytes / 4);
        }
    }
}

// Rows `row`..+16 of a tile as the left operand of a matmul over columns 16 * k..+16.
__device__ __forceinline__ void left(u32 (&a)[4], u32 tile, u32 row, u32 k) {
    const u32 lane = threadIdx.x % WARP;
    ldmatrix(a, tile + at(row + lane % 16, 2 * k + lane / 16));
}

// acc[16, 8 * N] = a[16, D] * rows `row`.. of tile [.., D], transposed.
template <int N>
__device__ __forceinline__ void times_transposed(float (&acc)[N][4], const u32 (&a)[D / 16][4], u32 tile,
                                                 u32 row) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            ldmatrix(b, tile + at(row + n * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            mma(acc[n], a[k], b[0], b[1]);
            mma(acc[n + 1], a[k], b[2], b[3]);
        }
}

// acc[16, D] += a[16, 8 * N] * rows `row`.. of tile [.., D]; a is packed from accumulators.
template <int N>
__device__ __forceinline__ void times(float (&acc)[D / 8][4], const u32 (&a)[N / 2][4], u32 tile, u32 row) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < N / 2; ++k)
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            u32 b[4];
            ldmatrix_transposed(b, tile + at(row + k * 16 + lane % 16, n + lane / 16));
            mma(acc[n], a[k], b[0], b[1]);
            mma(acc[n + 1], a[k], b[2], b[3]);
        }
}

// Packs the accumulators of a matmul as the left operand of the next.
template <int N> __device__ __forceinline__ void pack(u32 (&a)[N / 2][4], const float (&x)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
        a[n / 2][n % 2 * 2] = pack_half(x[n][0], x[n][1]);
        a[n / 2][n % 2 * 2 + 1] = pack_half(x[n][2], x[n][3]);
    }
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// Stores rows row and row + 8 of the 16 rows of a warp, each times a factor: the columns before `width`.
// Returns the largest magnitudes of the stored elements, a pair in half precision.
template <int N>
__device__ __forceinline__ u32 store_rows(Half *to, u64 stride, u32 row, u32 time, u32 width,
                                          const float (&acc)[N][4], float factor0, float factor1) {
    const u32 column = threadIdx.x % 4 * 2;
    u32 largest = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row + half * 8 >= time) continue;
        Half *line = to + u64(row + half * 8) * stride + column;
        const float factor = half == 0 ? factor0 : factor1;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            if (IS_PADDED && n * 8 >= width) continue;
            const u32 pair = pack_half(acc[n][half * 2] * factor, acc[n][half * 2 + 1] * factor);
            *reinterpret_cast<u32 *>(line + n * 8) = pair;
            largest = larger_pair(largest, pair);
        }
    }
    return largest;
}

// Calls f(n, i, factor of dropout) for the accumulators [n][i] of a tile of weights. Rows are queries and
// columns keys; with KEYS, rows are keys and columns queries.
template <int N, bool KEYS, typename F>
__device__ __forceinline__ void for_weights(const Masks &masks, u32 line, u32 row, u32 column, F f) {
#pragma unroll
    for (int n = 0; n < N; n += 2)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const u32 c = column + n * 8 + threadIdx.x % 4 * 2 + odd;
            const Floats<4> factors = KEYS ? masks.factors(line, c, row) : masks.factors(line, row, c);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int far_row = i / 2, far_column = i % 2;
                f(n + far_column, far_row * 2 + odd,
                  factors.at[KEYS ? far_column * 2 + far_row : far_row * 2 + far_column]);
            }
        }
}
