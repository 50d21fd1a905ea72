// Gradients of keys or values of few heads: the sum of parts, each of which a kernel of attention adds over
// some of the query heads that share a key head.
//
// Shapes: parts [batch, rows, heads, count, width], of one type with the gradients.
#include "maximum.cuh"

// Gradients [batch, rows_of_all, ..], of which `rows` rows of each sequence are written, `stride` elements
// apart, one head after another. Sums are in f32, in the order of the parts. Launch: a thread for LANES
// elements. Cells: null, or where the largest magnitude goes. Floor: all parts once at memory speed.
template <int LANES, typename T>
__device__ __forceinline__ void add(const T *parts, T *gradients, u32 *cells, u32 batch, u32 rows,
                                    u32 rows_of_all, u32 heads, u32 count, u32 width, u32 stride) {
    const u32 pieces = width / LANES, at = blockIdx.x * THREADS + threadIdx.x;
    Maximum most;
    if (at < batch * rows * heads * pieces) {
        const u32 column = at % pieces * LANES, of_head = at / pieces;
        const u32 head = of_head % heads, row = of_head / heads;
        const T *from = parts + u64(of_head) * count * width + column;
        Floats<LANES> sum = read<LANES>(from);
        for (u32 part = 1; part < count; part++) {
            const Floats<LANES> more = read<LANES>(from + part * width);
#pragma unroll
            for (int i = 0; i < LANES; i++) sum.at[i] += more.at[i];
        }
        const u64 target = u64(row / rows) * rows_of_all + row % rows;
        write<LANES>(gradients + target * stride + head * width + column, sum);
        most.add(sum);
    }
    if (cells) record<T>(most, cells);
}

#define PARAMETERS(T)                                                                                       \
    const T *__restrict__ parts, T *__restrict__ gradients, u32 *cells, u32 batch, u32 rows,                \
        u32 rows_of_all, u32 heads, u32 count, u32 width, u32 stride
#define ARGUMENTS parts, gradients, cells, batch, rows, rows_of_all, heads, count, width, stride
#define FOR_TYPE(NAME, T)                                                                                   \
    KERNEL __launch_bounds__(THREADS) add_##NAME(PARAMETERS(T)) { add<16 / sizeof(T)>(ARGUMENTS); }         \
    KERNEL __launch_bounds__(THREADS) add_single_##NAME(PARAMETERS(T)) { add<1>(ARGUMENTS); }
FOR_EACH_TYPE(FOR_TYPE)
