// RMS normalisation of every query and key head of packed rows, then the rotation to its position; values are
// copied. One pass each way.
//
// Shapes: x_blc, y_blc and their gradients; query_weight_k, key_weight_k; table_lk, documents_bl; rstds_th.
// Letters as in CONTRIBUTING.md.
#include "columns.cuh"
#include "maximum.cuh"
#include "rotary.cuh"

// Launch: THREADS threads. A head belongs to a group of `lanes` threads of one warp, a power of two; a thread
// holds PIECES times N elements of the head's first half and their partners in the second half in registers.
// Forward: a group for every head of every row. Backward: a block for every run of rows, whose groups take
// its query and key heads in turn, and whose sums for the weights' gradients are joined in the order of the
// groups. Floor forward: x in, y out. Floor backward: dy, x in, dx out.

template <typename T> struct Rows {
    u32 rows, time, query, key_value, width, lanes;
    __device__ __forceinline__ u32 columns() const { return (query + 2 * key_value) * width; }
};

__device__ __forceinline__ float group_sum(float x, u32 lanes) {
    for (u32 offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// A thread's part of a head: vectors of N elements in both halves.
template <int N, int PIECES> struct Part {
    Floats<N> low[PIECES], high[PIECES];
};

// Calls f(piece, column in the half) for each of a thread's vectors in the half.
template <int N, int PIECES, typename F>
__device__ __forceinline__ void for_pieces(u32 lane, u32 lanes, u32 half, F f) {
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const u32 column = (lane + piece * lanes) * N;
        if (column < half) f(piece, column);
    }
}

template <int N, int PIECES, typename T>
__device__ __forceinline__ Part<N, PIECES> read_part(const T *head, u32 lane, u32 lanes, u32 half) {
    Part<N, PIECES> part = {};
    for_pieces<N, PIECES>(lane, lanes, half, [&](int piece, u32 column) {
        part.low[piece] = read<N>(head + column);
        part.high[piece] = read<N>(head + half + column);
    });
    return part;
}

template <int N, int PIECES, typename T>
__device__ __forceinline__ void forward(const T *x_blc, const T *query_weight_k, const T *key_weight_k,
                                        const float *table_lk, const u32 *documents_bl, T *y_blc,
                                        float *rstds_th, Rows<T> shape, float epsilon) {
    const u32 heads = shape.query + 2 * shape.key_value, normed = shape.query + shape.key_value;
    const u32 half = shape.width / 2, lanes = shape.lanes, lane = threadIdx.x % lanes;
    const u32 item = (blockIdx.x * THREADS + threadIdx.x) / lanes, row = item / heads, head = item % heads;
    const bool inside = row < shape.rows;
    const u64 start = inside ? u64(row) * shape.columns() + head * shape.width : 0;
    Part<N, PIECES> part = read_part<N, PIECES>(x_blc + start, lane, lanes, half);
    float total = 0.0f;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            total = fmaf(part.low[piece].at[i], part.low[piece].at[i], total);
            total = fmaf(part.high[piece].at[i], part.high[piece].at[i], total);
        }
    // All threads of the warp take part in the sum.
    const float rstd = 1.0f / sqrtf(group_sum(total, lanes) / shape.width + epsilon);
    if (!inside) return;
    if (head < normed) {
        const T *weight = head < shape.query ? query_weight_k : key_weight_k;
        const float *angles = table_lk + position(documents_bl, row, shape.time) * shape.width;
        for_pieces<N, PIECES>(lane, lanes, half, [&](int piece, u32 column) {
            const Floats<N> low = read<N>(weight + column), high = read<N>(weight + half + column);
#pragma unroll
            for (int i = 0; i < N; i++) {
                part.low[piece].at[i] *= rstd * low.at[i];
                part.high[piece].at[i] *= rstd * high.at[i];
            }
            rotate(part.low[piece], part.high[piece], read<N>(angles + column),
                   read<N>(angles + half + column));
        });
        if (lane == 0) rstds_th[u64(row) * normed + head] = rstd;
    }
    for_pieces<N, PIECES>(lane, lanes, half, [&](int piece, u32 column) {
        write(y_blc + start + column, part.low[piece]);
        write(y_blc + start + half + column, part.high[piece]);
    });
}

// dx = rstd * (g - normal * mean(g * normal)) with g = dz * weight, normal = x * rstd and dz the gradient
// rotated back; dx may be dy, and values keep theirs. partial[run][0][column] = sum over queries of dz *
// normal, [1] over keys. `cells`: null, or where the largest magnitude of dx goes, values included.
template <int N, int PIECES, typename T>
__device__ __forceinline__ void backward(const T *dy_blc, const T *x_blc, const float *rstds_th,
                                         const T *query_weight_k, const T *key_weight_k,
                                         const float *table_lk, const u32 *documents_bl, T *dx_blc,
                                         float *partial, Rows<T> shape, u32 rows_per_run, u32 *cells) {
    __shared__ float sums[4 * THREADS * N * PIECES];
    const u32 normed = shape.query + shape.key_value, width = shape.width, half = width / 2;
    const u32 lanes = shape.lanes, lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
    const u32 groups = THREADS / lanes, first = blockIdx.x * rows_per_run;
    const u32 end = min(shape.rows, first + rows_per_run), items = first < end ? (end - first) * normed : 0;
    Part<N, PIECES> added[2] = {};
    Maximum most;
    for (u32 round = 0; round < items; round += groups) {
        const u32 item = round + group, row = first + item / normed, head = item % normed;
        const bool inside = item < items, is_key = head >= shape.query;
        const u64 start = inside ? u64(row) * shape.columns() + head * width : 0;
        const T *weight = is_key ? key_weight_k : query_weight_k;
        Part<N, PIECES> slope = {}, normal = {};
        float rstd = 0.0f, product = 0.0f;
        if (inside) {
            slope = read_part<N, PIECES>(dy_blc + start, lane, lanes, half);
            normal = read_part<N, PIECES>(x_blc + start, lane, lanes, half);
            rstd = rstds_th[u64(row) * normed + head];
            const float *angles = table_lk + position(documents_bl, row, shape.time) * width;
            for_pieces<N, PIECES>(lane, lanes, half, [&](int piece, u32 column) {
                Floats<N> &low = slope.low[piece], &high = slope.high[piece];
                rotate_back(low, high, read<N>(angles + column), read<N>(angles + half + column));
                const Floats<N> weights = read<N>(weight + column), more = read<N>(weight + half + column);
                const float mine = is_key ? 0.0f : 1.0f;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    normal.low[piece].at[i] *= rstd;
                    normal.high[piece].at[i] *= rstd;
                    const float a = low.at[i] * normal.low[piece].at[i],
                                b = high.at[i] * normal.high[piece].at[i];
                    added[0].low[piece].at[i] += a * mine;
                    added[0].high[piece].at[i] += b * mine;
                    added[1].low[piece].at[i] += a * (1.0f - mine);
                    added[1].high[piece].at[i] += b * (1.0f - mine);
                    low.at[i] *= weights.at[i];
                    high.at[i] *= more.at[i];
                    product = fmaf(low.at[i], normal.low[piece].at[i], product);
                    product = fmaf(high.at[i], normal.high[piece].at[i], product);
                }
            });
        }
        const float mean = group_sum(product, lanes) / width;
        if (!inside) continue;
        for_pieces<N, PIECES>(lane, lanes, half, [&](int piece, u32 column) {
            Floats<N> &low = slope.low[piece], &high = slope.high[piece];
#pragma unroll
            for (int i = 0; i < N; i++) {
                low.at[i] = rstd * (low.at[i] - normal.low[piece].at[i] * mean);
                high.at[i] = rstd * (high.at[i] - normal.high[piece].at[i] * mean);
            }
            write(dx_blc + start + column, low);
            write(dx_blc + start + half + column, high);
            most.add(low);
            most.add(high);
        });
    }
    if (cells) {
        const u32 each = shape.key_value * width / N, others = first < end ? (end - first) * each : 0;
        for (u32 i = threadIdx.x; i < others; i += THREADS)
            most.add(
                read<N>(dy_blc + u64(first + i / each) * shape.columns() + normed * width + i % each * N));
        record<T>(most, cells);
    }
#pragma unroll
    for (int part = 0; part < 2; part++)
        for_pieces<N, PIECES>(lane, lanes, half, [&](int piece, u32 column) {
            float *to = sums + (group * 2 + part) * width + column;
#pragma unroll
            for (int i = 0; i < N; i++) {
                to[i] = added[part].low[piece].at[i];
                to[half + i] = added[part].high[piece].at[i];
            }
        });
    __syncthreads();
    for (u32 column = threadIdx.x; column < 2 * width; column += THREADS) {
        float total = 0.0f;
        for (u32 other = 0; other < groups; other++) total += sums[other * 2 * width + column];
        partial[u64(blockIdx.x) * 2 * width + column] = total;
    }
}

// Heads whose halves are whole vectors have one piece; others are at most 256 wide.
#define PIECES_OF_ANY 4

#define FOR_TYPE(NAME, T)                                                                                    \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        forward_##NAME(const T *__restrict__ x, const T *__restrict__ query_weight,                          \
                       const T *__restrict__ key_weight, const float *__restrict__ table,                    \
                       const u32 *__restrict__ documents, T *__restrict__ y, float *__restrict__ rstds,      \
                       u32 rows, u32 time, u32 query, u32 key_value, u32 width, u32 lanes, float epsilon,    \
                       u32 vector) {                                                                         \
        const Rows<T> shape = {rows, time, query, key_value, width, lanes};                                  \
        if (vector)                                                                                          \
            forward<16 / sizeof(T), 1>(x, query_weight, key_weight, table, documents, y, rstds, shape,       \
                                       epsilon);                                                             \
        else                                                                                                 \
            forward<1, PIECES_OF_ANY>(x, query_weight, key_weight, table, documents, y, rstds, shape,        \
                                      epsilon);                                                              \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        backward_##NAME(const T *dy, const T *__restrict__ x, const float *__restrict__ rstds,               \
                        const T *__restrict__ query_weight, const T *__restrict__ key_weight,                \
                        const float *__restrict__ table, const u32 *__restrict__ documents, T *dx,           \
                        float *__restrict__ partial, u32 rows, u32 time, u32 query, u32 key_value,           \
                        u32 width, u32 lanes, u32 rows_per_run, u32 vector, u32 *cells) {                    \
        const Rows<T> shape = {rows, time, query, key_value, width, lanes};                                  \
        if (vector)                                                                                          \
            backward<16 / sizeof(T), 1>(dy, x, rstds, query_weight, key_weight, table, documents, dx,        \
                                        partial, shape, rows_per_run, cells);                                \
        else                                                                                                 \
            backward<1, PIECES_OF_ANY>(dy, x, rstds, query_weight, key_weight, table, documents, dx,         \
                                       partial, shape, rows_per_run, cells);                                 \
    }

FOR_EACH_TYPE(FOR_TYPE)
