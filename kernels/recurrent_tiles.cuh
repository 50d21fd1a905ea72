// Tiles of operators with a state over the sequence, in half precision: copies to shared memory, and matmuls
// on tensor cores.
//
// A tile has CHUNK rows in panels of 64 columns; the last columns of narrow operands are zeros. Accumulators
// of a warp have 16 rows: a thread has element [n * 4 + i] of row lane / 4 + i / 2 * 8 and column
// n * 8 + lane % 4 * 2 + i % 2.
#pragma once
#include "recurrent_chunk.cuh"
#include "hopper.cuh"
#include "tensor_cores.cuh"

#define LOG2E 1.4426950408889634f
#define PANEL (CHUNK * 128)              // bytes of 64 columns of a tile
#define TILE (WIDTH / 64 * PANEL)        // bytes of a tile of queries or keys
#define STRIP_TILE (STRIP / 64 * PANEL)  // bytes of a tile of values
#define KEY_STEPS (WIDTH / 16)
#define SLICE (WIDTH < 128 ? WIDTH : 128)  // columns of keys of one matmul
#define SLICES (WIDTH / SLICE)
#define SLICE_TILE (SLICE / 64 * PANEL)
#define SLICE_STEPS (SLICE / 16)
#define TOKEN_STEPS (CHUNK / 16)

extern __shared__ u8 shared_memory[];

// Index of a chunk of a value head among all.
__device__ __forceinline__ u64 index_chunk(const Chunk &own) {
    return (u64(own.batch) * own.sizes.value + own.head) * own.sizes.chunks + own.chunk;
}

__device__ __forceinline__ float decay_between(float earlier, float later) {
    return exp2_fast((later - earlier) * LOG2E);
}

// Offset of the 16 bytes of a tile with columns 8 * chunk.. of a row, permuted so that 8 rows of one chunk
// hit all banks.
__device__ __forceinline__ u32 at(u32 row, u32 chunk) {
    return chunk / 8 * PANEL + row * 128 + ((chunk % 8 ^ row % 8) << 4);
}

// Starts the copy of `rows` rows of `columns` columns, a multiple of 8, to a tile of COLUMNS, by BLOCK
// threads; the rest become zeros. A thread's rows are a multiple of 8 apart, so that its chunks have one
// permutation.
template <int COLUMNS, int BLOCK>
__device__ __forceinline__ void copy_rows(u32 tile, const Half *from, u64 stride, u32 rows, u32 columns) {
    constexpr u32 EACH = COLUMNS / 8, STEP = BLOCK / EACH;
    static_assert(BLOCK % EACH == 0 && STEP % 8 == 0, "rows of one permutation");
    const u32 row = threadIdx.x / EACH, chunk = threadIdx.x % EACH, to = tile + at(row, chunk);
    const Half *own = from + row * stride + chunk * 8;
    if (rows == CHUNK && columns >= COLUMNS) {
#pragma unroll
        for (u32 i = 0; i < CHUNK / STEP; i++, own += STEP * stride) copy_async<16>(to + i * STEP * 128, own);
        return;
    }
    const u32 own_rows = chunk * 8 < columns ? rows : 0;
#pragma unroll 1
    for (u32 i = 0; i < CHUNK / STEP; i++, own += STEP * stride) {
        const bool inside = row + i * STEP < own_rows;
        copy_async<16>(to + i * STEP * 128, inside ? own : from, inside ? 16 : 0);
    }
}

// Starts the copy of queries or keys, by BLOCK threads.
template <int BLOCK>
__device__ __forceinline__ void copy_tile(u32 tile, const Half *from, u64 stride, u32 rows, u32 columns) {
#pragma unroll
    for (u32 i = 0; i < SLICES; i++)
        copy_rows<SLICE, BLOCK>(tile + i * SLICE_TILE, from + i * SLICE, stride, rows, columns - i * SLICE);
}

// The same in a block with a strip of values, and for the strip.
__device__ __forceinline__ void load_tile(u32 tile, const Half *from, u64 stride, u32 rows, u32 columns) {
    if (blockDim.x == 2 * STRIP)
        copy_tile<2 * STRIP>(tile, from, stride, rows, columns);
    else
        copy_tile<STRIP>(tile, from, stride, rows, columns);
}
__device__ __forceinline__ void load_strip(u32 tile, const Half *from, u64 stride, u32 rows, u32 columns) {
    if (blockDim.x == 2 * STRIP)
        copy_rows<STRIP, 2 * STRIP>(tile, from, stride, rows, columns);
    else
        copy_rows<STRIP / 2, STRIP>(tile, from, stride, rows, columns);
}

// Starts the copy of a matrix of pairs of a chunk's tokens: the 8 columns of each 16 bytes up to the
// diagonal's.
__device__ __forceinline__ void load_pairs(u32 tile, const Half *from) {
    const u32 row = threadIdx.x / (CHUNK / 8), chunk = threadIdx.x % (CHUNK / 8), to = tile + at(row, chunk);
    const Half *own = from + threadIdx.x * 8;
    const u32 step = blockDim.x / (CHUNK / 8);
    for (u32 skipped = 0; row + skipped < CHUNK; skipped += step)
        if (chunk <= (row + skipped) / 8) copy_async<16>(to + skipped * 128, own + skipped * CHUNK);
}

// Sets those beyond the diagonal's to 0, which no copy changes.
__device__ __forceinline__ void clear_pairs(u32 tile) {
    for (u32 index = threadIdx.x; index < CHUNK * CHUNK / 8; index += blockDim.x) {
        const u32 row = index / (CHUNK / 8), chunk = index % (CHUNK / 8);
        if (chunk <= row / 8) continue;
#pragma unroll
        for (u32 word = 0; word < 4; word++) store_shared(tile + at(row, chunk) + word * 4, 0);
    }
}

// Starts the copy of `words` f32, a multiple of 4.
__device__ __forceinline__ void load_words(u32 to, const float *from, u32 words) {
    for (u32 index = threadIdx.x * 4; index < words; index += blockDim.x * 4)
        copy_async<16>(to + index * 4, from + index);
}

// Waits for all threads' stores to tiles.
__device__ __forceinline__ void finish_stores() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    publish_stores();
#endif
    __syncthreads();
}

// Waits for all copies but those of the last PENDING groups, of all threads.
template <int PENDING> __device__ __forceinline__ void finish_copies() {
    wait_copies<PENDING>();
    finish_stores();
}

// Rows `row`..+16 of a tile as the left operand.
template <int K> __device__ __forceinline__ void left(u32 (&a)[K][4], u32 tile, u32 row) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < K; k++) ldmatrix(a[k], tile + at(row + lane % 16, 2 * k + lane / 16));
}

// Columns 8 * chunk..+16 of a tile as the rows of the left operand.
template <int K> __device__ __forceinline__ void left_transposed(u32 (&a)[K][4], u32 tile, u32 chunk) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < K; k++)
        ldmatrix_transposed(a[k], tile + at(k * 16 + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}

// Packs accumulators as the left operand of the next matmul.
template <int N> __device__ __forceinline__ void pack(u32 (&a)[N / 2][4], const float (&x)[4 * N]) {
#pragma unroll
    for (int i = 0; i < 2 * N; i++) a[i / 4][i % 4] = pack_half(x[2 * i], x[2 * i + 1]);
}

// The elements of a left operand in the order of accumulators.
template <int N> __device__ __forceinline__ void unpack(float (&x)[4 * N], const u32 (&a)[N / 2][4]) {
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        x[2 * i] = Word<Half>::first(a[i / 4][i % 4]);
        x[2 * i + 1] = Word<Half>::last(a[i / 4][i % 4]);
    }
}

template <int N> __device__ __forceinline__ void clear(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = 0.0f;
}

// Multiplies accumulators of which columns are tokens by numbers of the tokens.
template <int N> __device__ __forceinline__ void scale_columns(float (&x)[4 * N], const float *numbers) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const Vector<float, 2> pair = load<2>(numbers + n * 8 + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; i++) x[n * 4 + i] *= pair.at[i % 2];
    }
}

// Columns 8 * n.. of acc += a[16, 16] * b[16, 8].
template <int N>
__device__ __forceinline__ void accumulate(float (&acc)[N], int n, const u32 (&a)[4], u32 b0, u32 b1) {
    float part[4] = {acc[n * 4], acc[n * 4 + 1], acc[n * 4 + 2], acc[n * 4 + 3]};
    mma(part, a, b0, b1);
#pragma unroll
    for (int i = 0; i < 4; i++) acc[n * 4 + i] = part[i];
}

// Whether the four warps of a group multiply by 8 * N columns together, on Hopper.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int N> constexpr bool IS_GROUPED = N == 8 || N == 16;
#else
template <int N> constexpr bool IS_GROUPED = false;
#endif

// Begins acc[16, 8 * N] += a[16, 16 * K] * columns 8 * chunk.. of the first 16 * K rows of a tile. Neither
// acc nor a may be used before `finish_product`. With FRESH, acc is written, whatever it was.
template <int K, int N, bool FRESH = false>
__device__ __forceinline__ void times(float (&acc)[4 * N], const u32 (&a)[K][4], u32 tile, u32 chunk = 0) {
    if constexpr (IS_GROUPED<N>) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        const u32 b = descriptor(tile + chunk / 8 * PANEL, CHUNK);
        products_begin();
#pragma unroll
        for (int k = 0; k < K; k++) register_product<true>(acc, a[k], b + AT(k * 16 * 128), !FRESH || k > 0);
        products_commit();
#endif
        return;
    }
    if (FRESH) clear(acc);
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            ldmatrix_transposed(b, tile + at(k * 16 + lane % 16, chunk + n + lane / 16));
            accumulate(acc, n, a[k], b[0], b[1]);
            accumulate(acc, n + 1, a[k], b[2], b[3]);
        }
}

// Begins acc[16, 8 * N] += a[16, 16 * K] * the first 8 * N rows of a tile, transposed.
template <int K, int N, bool FRESH = false>
__device__ __forceinline__ void times_transposed(float (&acc)[4 * N], const u32 (&a)[K][4], u32 tile) {
    if constexpr (IS_GROUPED<N>) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        const u32 b = descriptor(tile, CHUNK);
        products_begin();
#pragma unroll
        for (int k = 0; k < K; k++)
            register_product<false>(acc, a[k], b + AT(k / 4 * PANEL + k % 4 * 32), !FRESH || k > 0);
        products_commit();
#endif
        return;
    }
    if (FRESH) clear(acc);
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            ldmatrix(b, tile + at(n * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            accumulate(acc, n, a[k], b[0], b[1]);
            accumulate(acc, n + 1, a[k], b[2], b[3]);
        }
}

// Waits for all products but the last PENDING ones, of which `acc` and `a` are the last operands.
template <int PENDING, int K, int N>
__device__ __forceinline__ void finish_product(float (&acc)[N], const u32 (&a)[K][4]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (IS_GROUPED<N / 4>) {
        products_wait<PENDING>();
        pin(acc);
        // The operand stays in its registers until here.
#pragma unroll
        for (int k = 0; k < K; k++) asm volatile("" ::"r"(a[k][0]), "r"(a[k][1]), "r"(a[k][2]), "r"(a[k][3]));
    }
#endif
}

// Stores rows row and row + 8 of a warp's accumulators, the columns before `columns`; `to` is the element of
// row 0 and column 0. With TRIANGLE, columns in the diagonal's 8 are the last.
template <int N, bool TRIANGLE = false>
__device__ __forceinline__ void store_rows(Half *to, u64 stride, u32 row, u32 rows, u32 columns,
                                           const float (&acc)[4 * N]) {
    const u32 quad = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            u32 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int from = (n + i) * 4 + half * 2;
                x[i] = pack_half(acc[from], acc[from + 1]);
            }
            transpose_quad(x);
            const u32 column = (n + quad) * 8, line = row + half * 8;
            if (line < rows && column < columns && (!TRIANGLE || column <= line))
                store_words(to + line * stride + column, Vector<u32, 4>{{x[0], x[1], x[2], x[3]}});
        }
}

// Stores 16 columns of values, of which `a` has the transpose, to `rows` rows: first to columns 8 * chunk..
// of a tile, which only this warp uses, then to `to`, the element of row 0 and the warp's first column.
__device__ __forceinline__ void store_transposed(u32 tile, u32 chunk, Half *to, u64 stride, u32 rows,
                                                 u32 columns, const u32 (&a)[TOKEN_STEPS][4]) {
    const u32 lane = threadIdx.x % WARP;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < TOKEN_STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_shared(tile + at(k * 16 + i / 2 * 8 + lane / 4, chunk + i % 2) + lane % 4 * 4,
                         transpose_matrix(a[k][i]));
    __syncwarp();
#pragma unroll
    for (u32 index = lane; index < CHUNK * 2; index += WARP) {
        const u32 row = index / 2, part = index % 2;
        if (row < rows && part * 8 < columns)
            store_words(to + row * stride + part * 8, load_shared(tile + at(row, chunk + part)));
    }
}

// The products of a row of a tile from 16 bytes `chunk` on with accumulators of a thread's quad.
template <int N>
__device__ __forceinline__ float multiply_rows(u32 tile, u32 row, u32 chunk, int half,
                                               const float (&acc)[N]) {
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        const u32 pair = load_shared_word(tile + at(row, chunk + n) + threadIdx.x % 4 * 4);
        sum = fmaf(Word<Half>::first(pair), acc[n * 4 + half * 2], sum);
        sum = fmaf(Word<Half>::last(pair), acc[n * 4 + half * 2 + 1], sum);
    }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 2);
}

// Sums of the products of elements of two tiles of BYTES, by a block of BLOCK threads: a thread's part.
template <int BYTES, int BLOCK>
__device__ __forceinline__ float multiply_tiles(u32 left, u32 right, float sum) {
    for (u32 index = threadIdx.x * 16; index < BYTES; index += BLOCK * 16) {
        const Vector<u32, 4> a = load_shared(left + index), b = load_shared(right + index);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum = fmaf(Word<Half>::first(a.at[i]), Word<Half>::first(b.at[i]), sum);
            sum = fmaf(Word<Half>::last(a.at[i]), Word<Half>::last(b.at[i]), sum);
        }
    }
    return sum;
}

// Sums of the logarithms of a chunk's decays up to tokens 2 * lane and the next, in a fixed tree over a warp,
// from those of both tokens.
__device__ __forceinline__ Vector<float, 2> sum_decays(float first, float second) {
    const u32 lane = threadIdx.x % WARP;
    float until = first + second;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
        const float before = __shfl_up_sync(ALL_LANES, until, distance);
        if (lane >= distance) until += before;
    }
    const float before = __shfl_up_sync(ALL_LANES, until, 1);
    return Vector<float, 2>{{(lane > 0 ? before : 0.0f) + first, until}};
}

// Calls write(t, gradient) with the gradients of the logarithms of a chunk's decays from its tokens' terms
// and from `end`: sums from the last token back to each, which restart where a document begins. One warp, of
// which a lane has two tokens.
template <typename Terms, typename Begins, typename Write>
__device__ __forceinline__ void sum_back(u32 count, Terms terms, float end, Begins begins, Write write) {
    const u32 lane = threadIdx.x % WARP;
    const u32 tokens[2] = {CHUNK - 1 - 2 * lane, CHUNK - 2 - 2 * lane};
    float sums[2];
    bool stops[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        stops[i] = tokens[i] < count && begins(tokens[i]);
        sums[i] = tokens[i] < count && !stops[i] ? terms(tokens[i]) : 0.0f;
    }
    float sum = stops[1] ? 0.0f : sums[0] + sums[1];
    u32 stopped = stops[0] || stops[1];
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
        const float before = __shfl_up_sync(ALL_LANES, sum, distance);
        const u32 had_stopped = __shfl_up_sync(ALL_LANES, stopped, distance);
        if (lane >= distance) {
            if (!stopped) sum += before;
            stopped |= had_stopped;
        }
    }
    float carried = __shfl_up_sync(ALL_LANES, sum, 1);
    const u32 had_stopped = __shfl_up_sync(ALL_LANES, stopped, 1);
    if (lane == 0) carried = 0.0f;
    if (lane == 0 || !had_stopped) carried += end;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        carried = stops[i] ? 0.0f : carried + sums[i];
        if (tokens[i] < count) write(tokens[i], carried);
    }
}
