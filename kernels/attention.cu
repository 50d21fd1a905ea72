// Causal attention in bf16 on the tensor cores of any GPU from sm_80 on (mma.sync, ldmatrix, cp.async).
//
// Online softmax after Milakov and Gimelshein (2018); tiles after FlashAttention (Dao and others, 2022). The
// matrix of scores exists in registers only. The backward pass computes each tile twice, once in the block
// that owns its keys (dK, dV) and once in the block that owns its queries (dQ): 7 matmuls instead of 5, but
// no two blocks write to the same memory, so results repeat to the bit without waiting.
//
// HEAD_DIM is 32, 64, 96 or 128. Queries, keys and values have batch * time rows each, q_stride or kv_stride
// elements apart: three arrays, or column ranges of one. Query head h is columns h * HEAD_DIM.. of a row, and
// reads key and value head h / group. Gradients have the layout of their operands.
#include "attention_masks.cuh"

#define D HEAD_DIM
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define CHUNKS (D / 8)  // pieces of 16 bytes in a row
#define INFINITE __int_as_float(0x7f800000)

__device__ __forceinline__ u32 shared_address(const void *p) { return u32(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void ldmatrix(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// Offset of piece `chunk` of `row` in a tile: permuted within 128 bytes so that 8 rows of one chunk hit all
// banks.
__device__ __forceinline__ u32 at(u32 row, u32 chunk) {
    const u32 turn = D == 32 || D == 96 ? (row >> 1) & 3 : row & 7;
    return row * (D * 2) + ((chunk ^ turn) << 4);
}

// Starts the copy of `ROWS` rows from `first` on; rows past the end are zeros. Unaligned operands are copied
// by 4 bytes.
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_tile(u32 tile, const bf16 *from, u64 stride, u32 first, u32 time,
                                          bool aligned) {
#pragma unroll
    for (u32 step = 0; step < ROWS * CHUNKS / THREADS; ++step) {
        const u32 index = step * THREADS + threadIdx.x, row = index / CHUNKS, chunk = index % CHUNKS;
        const bool inside = first + row < time;
        const bf16 *source = from + (inside ? u64(first + row) * stride : 0) + chunk * 8;
        const u32 target = tile + at(row, chunk), bytes = inside ? 16 : 0;
        if (aligned) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                         "r"(bytes)
                         : "memory");
        } else {
            for (u32 word = 0; word < 4; ++word)
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target + word * 4),
                             "l"(source + word * 2), "r"(bytes / 4)
                             : "memory");
        }
    }
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
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
        a[n / 2][n % 2 * 2] = pack_bf16(x[n][0], x[n][1]);
        a[n / 2][n % 2 * 2 + 1] = pack_bf16(x[n][2], x[n][3]);
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

// Stores rows row and row + 8 of the 16 rows of a warp, each times a factor.
__device__ __forceinline__ void store_rows(bf16 *to, u64 stride, u32 row, u32 time,
                                           const float (&acc)[D / 8][4], float factor0, float factor1) {
    const u32 column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row + half * 8 >= time) continue;
        bf16 *line = to + u64(row + half * 8) * stride + column;
        const float factor = half == 0 ? factor0 : factor1;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            *reinterpret_cast<u32 *>(line + n * 8) =
                pack_bf16(acc[n][half * 2] * factor, acc[n][half * 2 + 1] * factor);
    }
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

#define FORWARD_ROWS (16 * FORWARD_WARPS)

// Output, running maximum and running sum of a warp's 16 queries.
struct Rows {
    float out[D / 8][4], largest[2], total[2];
};

// One tile of keys: scores, running maximum and sum, output.
__device__ __forceinline__ void forward_tile(Rows &rows, const u32 (&q)[D / 16][4], u32 keys, u32 values,
                                             u32 row, u32 first_key, bool masked, float scale,
                                             const Masks &masks, const u32 (&visible)[2], u32 line) {
    constexpr int N = FORWARD_KEYS / 8;
    float s[N][4] = {};
    times_transposed<N>(s, q, keys, 0);
    if (masked) {
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (first_key + n * 8 + threadIdx.x % 4 * 2 + i % 2 > row + i / 2 * 8) s[n][i] = -INFINITE;
    }
    if (masks.documents) {
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (first_key + n * 8 + threadIdx.x % 4 * 2 + i % 2 < visible[i / 2]) s[n][i] = -INFINITE;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float largest = rows.largest[half];
#pragma unroll
        for (int n = 0; n < N; ++n) largest = fmaxf(largest, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
        largest = quad_max(largest);
        // For rows without a visible score so far, any finite number can be used.
        const float base = masks.documents && largest == -INFINITE ? 0.0f : largest;
        const float shrink = exp2_fast((rows.largest[half] - base) * scale), offset = base * scale;
        rows.largest[half] = largest;
        float total = 0.0f;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = half * 2; i < half * 2 + 2; ++i)
                total += s[n][i] = exp2_fast(fmaf(s[n][i], scale, -offset));
        rows.total[half] = rows.total[half] * shrink + total;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) rows.out[n][half * 2] *= shrink, rows.out[n][half * 2 + 1] *= shrink;
    }
    if (masks.dropout.threshold)
        for_weights<N, false>(masks, line, row, first_key,
                              [&](int n, int i, float factor) { s[n][i] *= factor; });
    u32 p[N / 2][4];
    pack<N>(p, s);
    times<N>(rows.out, p, values, 0);
}

// Grid [ceil(time / 128), heads, batch], 256 threads, shared (128 + 4 * 64) rows. A warp owns all columns of
// 16 queries, so the softmax needs no other warp; keys and values of 64 positions are double buffered. Long
// blocks of a head start first; the blocks of a head run together, so that L2 holds its keys and values.
// Floor: 2 matmuls, 2 * batch * heads * time^2 * HEAD_DIM FLOP (the causal half).
KERNEL __launch_bounds__(FORWARD_WARPS *WARP, D >= 96 ? 1 : 2)
    forward_bf16(bf16 *__restrict__ out, float *__restrict__ logsumexp, const bf16 *__restrict__ q,
                      const bf16 *__restrict__ k, const bf16 *__restrict__ v, u32 time, u32 heads, u32 group,
                      u32 q_stride, u32 kv_stride, float scale, u32 aligned, MASKS_PARAMETERS) {
    extern __shared__ __align__(128) u8 memory[];
    const Masks masks = MASKS;
    constexpr u32 THREADS = FORWARD_WARPS * WARP, STAGE = FORWARD_KEYS * D * 2;
    const u32 block = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, first = block * FORWARD_ROWS,
              width = heads * D;
    const u64 sequence = u64(blockIdx.z) * time, kv_start = sequence * kv_stride + head / group * D;
    const bf16 *queries = q + sequence * q_stride + head * D, *keys = k + kv_start, *values = v + kv_start;
    const u32 q_tile = shared_address(memory), stages = q_tile + FORWARD_ROWS * D * 2;
    const u32 row = first + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    const u32 end = min(first + FORWARD_ROWS, time), tiles = (end + FORWARD_KEYS - 1) / FORWARD_KEYS;

    load_tile<FORWARD_ROWS, THREADS>(q_tile, queries, q_stride, first, time, aligned);
    const u32 begin = masks.first_key(blockIdx.z, first, time) / FORWARD_KEYS;
    const u32 visible[2] = {masks.first_key(blockIdx.z, row, time),
                            masks.first_key(blockIdx.z, row + 8, time)};
    const u32 begin_stage = stages + begin % 2 * 2 * STAGE, begin_key = begin * FORWARD_KEYS;
    load_tile<FORWARD_KEYS, THREADS>(begin_stage, keys, kv_stride, begin_key, time, aligned);
    load_tile<FORWARD_KEYS, THREADS>(begin_stage + STAGE, values, kv_stride, begin_key, time, aligned);
    commit();
    Rows rows = {{}, {-INFINITE, -INFINITE}, {}};
    u32 own[D / 16][4];
    for (u32 tile = begin; tile < tiles; ++tile) {
        wait_copies<0>();
        __syncthreads();
        if (tile + 1 < tiles) {
            const u32 next = stages + (tile + 1) % 2 * 2 * STAGE, key = (tile + 1) * FORWARD_KEYS;
            load_tile<FORWARD_KEYS, THREADS>(next, keys, kv_stride, key, time, aligned);
            load_tile<FORWARD_KEYS, THREADS>(next + STAGE, values, kv_stride, key, time, aligned);
        }
        commit();
        if (tile == begin) {
#pragma unroll
            for (int i = 0; i < D / 16; ++i) left(own[i], q_tile, threadIdx.x / WARP * 16, i);
        }
        const u32 here = stages + tile % 2 * 2 * STAGE, first_key = tile * FORWARD_KEYS;
        const u32 warp_first = first + threadIdx.x / WARP * 16;
        // The last tile of a block is entirely above the diagonal of its first warps.
        if (first_key > warp_first + 15) continue;
        forward_tile(rows, own, here, here + STAGE, row, first_key, first_key + FORWARD_KEYS > warp_first + 1,
                     scale * LOG2E, masks, visible, blockIdx.z * heads + head);
    }
    rows.total[0] = quad_sum(rows.total[0]);
    rows.total[1] = quad_sum(rows.total[1]);
    bf16 *to = out + sequence * width + head * D;
    store_rows(to, width, row, time, rows.out, 1.0f / rows.total[0], 1.0f / rows.total[1]);
    float *line = logsumexp + (u64(blockIdx.z) * heads + head) * time;
    if (threadIdx.x % 4 == 0) {
        if (row < time) line[row] = rows.largest[0] * scale + LN2 * __log2f(rows.total[0]);
        if (row + 8 < time) line[row + 8] = rows.largest[1] * scale + LN2 * __log2f(rows.total[1]);
    }
}

// statistics[0][batch, head, time] = logsumexp in powers of two, [1][..] = delta, the sum over a row of dy *
// out. Grid [ceil(batch * time * heads / 32)], 256 threads: 8 threads per row, so that a warp reads 4
// consecutive rows. Floor: 4 * batch * time * width bytes at memory speed.
KERNEL __launch_bounds__(ROW_THREADS)
    statistics_bf16(float *__restrict__ statistics, const bf16 *__restrict__ dy,
                         const bf16 *__restrict__ out, const float *__restrict__ logsumexp, u32 batch,
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
    const bf16 *rows[2], *columns[2];
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
                bool hidden = masked && (KEYS ? r > c : c > r);
                if (masks.documents) {
                    const u32 first_key = KEYS ? documents[local + i % 2] : visible[i / 2];
                    hidden |= (KEYS ? r : c) < first_key;
                }
                p[n][i] = hidden ? 0.0f : exp2_fast(fmaf(p[n][i], scale, -logsumexp));
                ds[n][i] = p[n][i] * (ds[n][i] - delta);
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
    const u32 end = min(first + BACKWARD_ROWS, time);
    const u32 begin = (KEYS ? first : masks.first_key(blockIdx.z, first, time)) / BACKWARD_COLUMNS;
    const u32 tiles = KEYS ? masks.end_tile(blockIdx.z, begin, BACKWARD_COLUMNS, end, time)
                           : (end + BACKWARD_COLUMNS - 1) / BACKWARD_COLUMNS;
    auto start_tile = [&](u32 tile) {
        for (u32 i = 0; i < 2; ++i)
            load_tile<BACKWARD_COLUMNS, THREADS>(stages + (tile % 2 * 2 + i) * SIZE, from.columns[i],
                                                 from.column_stride[i], tile * BACKWARD_COLUMNS, time,
                                                 aligned);
        if (KEYS)
            load_statistics<THREADS>(statistics + tile % 2 * 3 * BACKWARD_COLUMNS, from,
                                     tile * BACKWARD_COLUMNS, time, masks);
    };
    for (u32 i = 0; i < 2; ++i)
        load_tile<BACKWARD_ROWS, THREADS>(own_tiles + i * BACKWARD_ROWS * D * 2, from.rows[i],
                                          from.row_stride[i], first, time, aligned);
    start_tile(begin);
    commit();
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
        commit();
        if (tile == begin) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int k = 0; k < D / 16; ++k)
                    left(a[i][k], own_tiles + i * BACKWARD_ROWS * D * 2, threadIdx.x / WARP * 16, k);
        }
        const u32 column = tile * BACKWARD_COLUMNS;
        backward_tile<KEYS>(acc, a, stages + tile % 2 * 2 * SIZE,
                            statistics + tile % 2 * 3 * BACKWARD_COLUMNS, own, visible, row, column,
                            column == first, scale * LOG2E, masks, line);
    }
}

// Both: 128 threads, shared (2 * 64 + 4 * 64) rows and 1.5 KiB. Tiles of 64 by 64 let two blocks share a
// multiprocessor with all accumulators and the block's own operands in registers. Long blocks start first.
// Floors: 4 matmuls for keys and values, 3 for queries, each batch * heads * time^2 * HEAD_DIM FLOP (the
// causal half).
#define BACKWARD_OPERANDS                                                                                 \
    const bf16 *__restrict__ dy, const bf16 *__restrict__ q, const bf16 *__restrict__ k,                  \
        const bf16 *__restrict__ v, const float *__restrict__ statistics, u32 time, u32 heads, u32 group, \
        u32 q_stride, u32 kv_stride, float scale, u32 aligned, MASKS_PARAMETERS

// Grid [ceil(time / 64), heads / group, batch]: a block adds the query heads of its key and value head in
// their order.
KERNEL __launch_bounds__(BACKWARD_WARPS *WARP, 2)
    backward_key_value_bf16(bf16 *__restrict__ dk, bf16 *__restrict__ dv, BACKWARD_OPERANDS) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 first = blockIdx.x * BACKWARD_ROWS, width = heads * D;
    const u64 sequence = u64(blockIdx.z) * time, start = sequence * kv_stride + blockIdx.y * D;
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
    store_rows(dk + start, kv_stride, row, time, acc[0], scale, scale);
    store_rows(dv + start, kv_stride, row, time, acc[1], 1.0f, 1.0f);
}

// Grid [ceil(time / 64), heads, batch].
KERNEL __launch_bounds__(BACKWARD_WARPS *WARP, 2)
    backward_query_bf16(bf16 *__restrict__ dq, BACKWARD_OPERANDS) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 head = blockIdx.y, first = (gridDim.x - 1 - blockIdx.x) * BACKWARD_ROWS, width = heads * D;
    const u64 sequence = u64(blockIdx.z) * time;
    const u64 start = sequence * q_stride + head * D, kv_start = sequence * kv_stride + head / group * D;
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
    store_rows(dq + start, q_stride, row, time, acc[0], scale, scale);
}
