// Rotary position embeddings of the first heads of rows, in place.
//
// Shapes: x_blc, table_lk, documents_bl. Letters as in CONTRIBUTING.md.
#include "maximum.cuh"
#include "rotary.cuh"

// Divides 2 * N neighbouring elements into the first and the second of each pair.
template <int N> __device__ __forceinline__ void divide_pairs(Floats<N> &a, Floats<N> &b) {
    float all[2 * N];
#pragma unroll
    for (int i = 0; i < N; i++) all[i] = a.at[i], all[N + i] = b.at[i];
#pragma unroll
    for (int i = 0; i < N; i++) a.at[i] = all[2 * i], b.at[i] = all[2 * i + 1];
}
// Joins the first and the second elements of pairs into 2 * N neighbouring ones.
template <int N> __device__ __forceinline__ void join_pairs(Floats<N> &a, Floats<N> &b) {
    float all[2 * N];
#pragma unroll
    for (int i = 0; i < N; i++) all[2 * i] = a.at[i], all[2 * i + 1] = b.at[i];
#pragma unroll
    for (int i = 0; i < N; i++) a.at[i] = all[i], b.at[i] = all[N + i];
}

// Launch: THREADS threads; a thread has UNROLL items, each N elements of the first half of a head and their
// partners in the second half, all loaded before the first is stored. The table of cosines and sines stays in
// L2. `interleaved`: the elements of a pair are neighbours, and an item is 2 * N neighbouring elements. With
// `cells`, for the largest magnitude of the rows, the `others` items after them are `rest` for each row: N
// elements behind its heads, which are only read. The first `width` of the `head_width` elements of a head
// rotate. Floor: the heads in and out once.
template <int N, bool BACK, typename T>
__device__ __forceinline__ void turn(T *x_blc, const float *table_lk, const u32 *documents_bl, u32 items,
                                     u32 time, u32 heads, u32 width, u32 head_width, u32 stride,
                                     bool interleaved, u32 rest, u32 others, u32 *cells) {
    const u32 half = width / 2, each = half / N, first = blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
    const u32 partner = interleaved ? N : half;
    Floats<N> low[UNROLL], high[UNROLL];
    u64 at[UNROLL];
    u32 entry[UNROLL];
    Maximum most;
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u32 item = first + i * THREADS;
        if (item < items) {
            const u32 column = item % each * N, head = item / each % heads, row = item / each / heads;
            at[i] = u64(row) * stride + head * head_width + (interleaved ? 2 * column : column);
            entry[i] = position(documents_bl, row, time) * width + column;
            low[i] = read<N>(x_blc + at[i]);
            high[i] = read<N>(x_blc + at[i] + partner);
            if (interleaved) divide_pairs(low[i], high[i]);
        } else if (BACK && item < items + others) {
            const u32 other = item - items;
            most.add(read<N>(x_blc + u64(other / rest) * stride + heads * head_width + other % rest * N));
        }
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        if (first + i * THREADS < items) {
            const Floats<N> cosines = read<N>(table_lk + entry[i]),
                            sines = read<N>(table_lk + entry[i] + half);
            if (BACK)
                rotate_back(low[i], high[i], cosines, sines);
            else
                rotate(low[i], high[i], cosines, sines);
            if (interleaved) join_pairs(low[i], high[i]);
            write(x_blc + at[i], low[i]);
            write(x_blc + at[i] + partner, high[i]);
            if (BACK) most.add(low[i]), most.add(high[i]);
        }
    }
    if (BACK && cells) record<T>(most, cells);
}

#define OPERANDS(T)                                                                                   \
    T *__restrict__ x, const float *__restrict__ table, const u32 *__restrict__ documents, u32 items, \
        u32 time, u32 heads, u32 width, u32 head_width, u32 stride, u32 vector, u32 interleaved

#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS) rotate_##NAME(OPERANDS(T)) {                                         \
        if (vector)                                                                                        \
            turn<16 / sizeof(T), false>(x, table, documents, items, time, heads, width, head_width,        \
                                        stride, interleaved, 0, 0, nullptr);                               \
        else                                                                                               \
            turn<1, false>(x, table, documents, items, time, heads, width, head_width, stride,             \
                           interleaved, 0, 0, nullptr);                                                    \
    }                                                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        rotate_back_##NAME(OPERANDS(T), u32 rest, u32 others, u32 *cells) {                                \
        if (vector)                                                                                        \
            turn<16 / sizeof(T), true>(x, table, documents, items, time, heads, width, head_width, stride, \
                                       interleaved, rest, others, cells);                                  \
        else                                                                                               \
            turn<1, true>(x, table, documents, items, time, heads, width, head_width, stride, interleaved, \
                          rest, others, cells);                                                            \
    }

FOR_EACH_TYPE(FOR_TYPE)
