// The matrix of all low-rank adapters of a packed layer: blocks of rows, each in columns of its own, and
// zeros.
#include "common.cuh"

// Launch: THREADS threads, one element each. `width` is the blocks' columns, `block` the number of the block,
// whose `count` rows are rows `first` on of the matrix and rows `before` on of the packed rows.
// Floor: the matrix and the packed rows once.

#define FOR_TYPE(NAME, T)                                                                                    \
    /* Writes all rows of the block's columns. */                                                            \
    KERNEL spread_##NAME(const T *packed, T *matrix, u32 rows, u32 columns, u32 width, u32 block, u32 first, \
                         u32 count, u32 before, float scale) {                                               \
        const u64 linear = u64(blockIdx.x) * THREADS + threadIdx.x;                                          \
        if (linear >= u64(rows) * width) return;                                                             \
        const u32 row = linear / width, column = linear % width;                                             \
        const bool own = row >= first && row - first < count;                                                \
        const u64 from = u64(before + row - first) * width + column;                                         \
        matrix[u64(row) * columns + block * width + column] =                                                \
            from_f32<T>(own ? to_f32(packed[from]) * scale : 0.0f);                                          \
    }                                                                                                        \
    /* Reads the block's rows. */                                                                            \
    KERNEL gather_##NAME(const T *matrix, T *packed, u32 columns, u32 width, u32 block, u32 first,           \
                         u32 count, u32 before, float scale, u32 accumulate) {                               \
        const u64 linear = u64(blockIdx.x) * THREADS + threadIdx.x;                                          \
        if (linear >= u64(count) * width) return;                                                            \
        const u32 row = linear / width, column = linear % width;                                             \
        T *to = &packed[u64(before + row) * width + column];                                                 \
        const float own = scale * to_f32(matrix[u64(first + row) * columns + block * width + column]);       \
        *to = from_f32<T>(accumulate ? to_f32(*to) + own : own);                                             \
    }

FOR_EACH_TYPE(FOR_TYPE)
