// Scans of affine maps: the states that enter consecutive pieces, entering[p + 1] = map[p] * entering[p] +
// added[p], with zeros before the first piece; backward, gradients of the states that leave them, from the
// last piece to the first, with transposed maps.
//
// Shapes: map[p][n][k][k]; state[p][n][k][v], which holds what is added and then what enters, or leaves.
#include "common.cuh"

extern __shared__ float memory[];

// Launch: THREADS threads, grid [strips of `strip` columns, n]; shared memory for two strips. Floor: maps and
// states in, states out.
template <bool BACK>
__device__ __forceinline__ void scan(const float *maps, float *states, u32 pieces, u32 count, u32 rows,
                                     u32 columns, u32 strip) {
    float *value = memory, *next = memory + rows * strip;
    const u32 left = blockIdx.x * strip;
    for (u32 at = threadIdx.x; at < rows * strip; at += THREADS) value[at] = 0.0f;
    for (u32 number = 0; number < pieces; number++) {
        const u64 piece = u64(BACK ? pieces - 1 - number : number) * count + blockIdx.y;
        const float *map = maps + piece * rows * rows;
        float *own = states + piece * rows * columns + left;
        __syncthreads();
        for (u32 at = threadIdx.x; at < rows * strip; at += THREADS) {
            const u32 i = at / strip, j = at % strip;
            if (left + j >= columns) continue;
            float sum = own[u64(i) * columns + j];
            for (u32 c = 0; c < rows; c++)
                sum = fmaf(map[BACK ? c * rows + i : i * rows + c], value[c * strip + j], sum);
            own[u64(i) * columns + j] = value[at];
            next[at] = sum;
        }
        float *before = value;
        value = next;
        next = before;
    }
}

KERNEL __launch_bounds__(THREADS)
    forward(const float *__restrict__ maps, float *states, u32 pieces, u32 count, u32 rows, u32 columns,
            u32 strip) {
    scan<false>(maps, states, pieces, count, rows, columns, strip);
}
KERNEL __launch_bounds__(THREADS)
    backward(const float *__restrict__ maps, float *states, u32 pieces, u32 count, u32 rows, u32 columns,
             u32 strip) {
    scan<true>(maps, states, pieces, count, rows, columns, strip);
}
