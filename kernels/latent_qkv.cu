// Queries, keys and values of attention with latents: heads [plain | rotated] of the operands become
// [rotated | plain] in one array, whose keys share the rotated columns. A block has a row; its threads take N
// columns each. Rotated columns of interleaved pairs are moved one by one, others N at once. Floor: every
// element in and out once.
//
// Shapes: queries_blc, keys_values_blc, packed_blc, each with columns of its own; shared_blk. Letters as in
// CONTRIBUTING.md.
#include "common.cuh"

struct Sizes {
    u32 query, key_value, rotated, plain, values, interleaved;
    __device__ __forceinline__ u32 width() const { return rotated + plain; }
    // The operand's rotated column that is column `column` of the result, and the reverse.
    __device__ __forceinline__ u32 source(u32 column) const {
        if (!interleaved) return column;
        return column < rotated / 2 ? 2 * column : 2 * (column - rotated / 2) + 1;
    }
    __device__ __forceinline__ u32 target(u32 column) const {
        if (!interleaved) return column;
        return column / 2 + column % 2 * (rotated / 2);
    }
};

#define SIZES u32 query, u32 key_value, u32 rotated, u32 plain, u32 values, u32 interleaved, u32 vector
#define SIZES_OF Sizes{query, key_value, rotated, plain, values, interleaved}

template <int N, typename T>
__device__ __forceinline__ void pack_row(const T *queries_blc, const T *keys_values_blc, const T *shared_blk,
                                         T *packed_blc, Sizes sizes) {
    const u64 row = blockIdx.x;
    const u32 width = sizes.width(), each = sizes.plain + sizes.values;
    const u32 of_queries = sizes.query * width, of_keys = sizes.key_value * width;
    const u32 columns = of_queries + of_keys + sizes.key_value * sizes.values;
    queries_blc += row * of_queries;
    keys_values_blc += row * sizes.key_value * each;
    shared_blk += row * sizes.rotated;
    packed_blc += row * columns;
    for (u32 at = threadIdx.x * N; at < columns; at += THREADS * N) {
        const T *from;
        if (at >= of_queries + of_keys) {
            const u32 column = at - of_queries - of_keys;
            from = keys_values_blc + column / sizes.values * each + sizes.plain + column % sizes.values;
        } else {
            const bool is_query = at < of_queries;
            const u32 own = is_query ? at : at - of_queries, head = own / width, column = own % width;
            const T *turned = is_query ? queries_blc + head * width + sizes.plain : shared_blk;
            if (column < sizes.rotated && sizes.interleaved) {
#pragma unroll
                for (int i = 0; i < N; i++) packed_blc[at + i] = turned[sizes.source(column + i)];
                continue;
            }
            const T *still = is_query ? queries_blc + head * width : keys_values_blc + head * each;
            from = column < sizes.rotated ? turned + column : still + column - sizes.rotated;
        }
        store<N>(packed_blc + at, load<N>(from));
    }
}

template <int N, typename T>
__device__ __forceinline__ void unpack_row(const T *packed_blc, T *queries_blc, T *keys_values_blc,
                                           T *shared_blk, Sizes sizes) {
    const u64 row = blockIdx.x;
    const u32 width = sizes.width(), each = sizes.plain + sizes.values;
    const u32 of_queries = sizes.query * width, of_keys = sizes.key_value * width;
    const u32 of_operand = sizes.key_value * each;
    packed_blc += row * (of_queries + of_keys + sizes.key_value * sizes.values);
    queries_blc += row * of_queries;
    keys_values_blc += row * of_operand;
    shared_blk += row * sizes.rotated;
    for (u32 at = threadIdx.x * N; at < of_queries; at += THREADS * N) {
        const u32 column = at % width;
        const T *head = packed_blc + (at - column);
        if (column >= sizes.plain && sizes.interleaved) {
#pragma unroll
            for (int i = 0; i < N; i++) queries_blc[at + i] = head[sizes.target(column + i - sizes.plain)];
        } else {
            const u32 from = column < sizes.plain ? sizes.rotated + column : column - sizes.plain;
            store<N>(queries_blc + at, load<N>(head + from));
        }
    }
    const T *keys = packed_blc + of_queries;
    for (u32 at = threadIdx.x * N; at < of_operand; at += THREADS * N) {
        const u32 head = at / each, column = at % each;
        const T *from = column < sizes.plain ? keys + head * width + sizes.rotated + column
                                             : keys + of_keys + head * sizes.values + column - sizes.plain;
        store<N>(keys_values_blc + at, load<N>(from));
    }
    // The sum over heads in their order.
    for (u32 column = threadIdx.x; column < sizes.rotated; column += THREADS) {
        const T *from = keys + sizes.target(column);
        float sum = 0.0f;
        for (u32 head = 0; head < sizes.key_value; head++) sum += to_f32(from[head * width]);
        shared_blk[column] = from_f32<T>(sum);
    }
}

#define FOR_TYPE(NAME, T)                                                                             \
    KERNEL __launch_bounds__(THREADS)                                                                 \
        pack_##NAME(const T *__restrict__ queries, const T *__restrict__ keys_values,                 \
                    const T *__restrict__ shared, T *__restrict__ packed, SIZES) {                    \
        if (vector)                                                                                   \
            pack_row<16 / sizeof(T)>(queries, keys_values, shared, packed, SIZES_OF);                 \
        else                                                                                          \
            pack_row<1>(queries, keys_values, shared, packed, SIZES_OF);                              \
    }                                                                                                 \
    KERNEL __launch_bounds__(THREADS)                                                                 \
        unpack_##NAME(const T *__restrict__ packed, T *__restrict__ queries, T *__restrict__ keys_values, \
                      T *__restrict__ shared, SIZES) {                                                \
        if (vector)                                                                                   \
            unpack_row<16 / sizeof(T)>(packed, queries, keys_values, shared, SIZES_OF);               \
        else                                                                                          \
            unpack_row<1>(packed, queries, keys_values, shared, SIZES_OF);                            \
    }

FOR_EACH_TYPE(FOR_TYPE)
