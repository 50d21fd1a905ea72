// Copies around the Newton–Schulz iterations on a matrix x_mn in bf16. Memory of several column parts holds
// one after another the parts [m, n / parts] of a matrix whose columns are divided over ranks.
#include "common.cuh"

#if __CUDA_ARCH__ >= 800

// The sum of all `sums`, in f64 and an order that depends on their number only. For a whole block.
__device__ __forceinline__ double total_of(const float *sums, u32 count) {
    __shared__ double partial[THREADS];
    double total = 0.0;
#pragma unroll 8
    for (u32 i = threadIdx.x; i < count; i += THREADS) total += double(sums[i]);
    partial[threadIdx.x] = total;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    __syncthreads();
    return partial[0];
}

// Writes x / max(√(sum of sums), epsilon). Launch: any number of blocks of THREADS threads, eight elements a
// thread at a time; `vector`: both addresses are multiples of 16. Floor: x in, out out.
KERNEL __launch_bounds__(THREADS)
    normalise(const bf16 *__restrict__ x_mn, const float *__restrict__ sums, bf16 *__restrict__ out_mn,
              u64 elements, u32 count, float epsilon, u32 vector) {
    const float norm = float(sqrt(total_of(sums, count)));
    const float factor = 1.0f / fmaxf(norm, epsilon);
    const u64 first = (u64(blockIdx.x) * THREADS + threadIdx.x) * 8, stride = u64(gridDim.x) * THREADS * 8;
    for (u64 at = first; at < elements; at += stride) {
        if (vector && at + 8 <= elements) {
            Floats<8> values = read<8>(x_mn + at);
#pragma unroll
            for (int i = 0; i < 8; i++) values.at[i] *= factor;
            write(out_mn + at, values);
        } else {
            for (u64 i = at; i < min(at + 8, elements); i++)
                out_mn[i] = from_f32<bf16>(to_f32(x_mn[i]) * factor);
        }
    }
}

// Joins column parts into one matrix, or divides a matrix into column parts. `width`: columns of a part.
// Launch: an element a thread. Floor: the matrix in and out.
__device__ __forceinline__ u64 in_parts(u64 at, u32 rows, u32 columns, u32 width) {
    const u64 row = at / columns;
    const u32 column = u32(at % columns);
    return (u64(column / width) * rows + row) * width + column % width;
}
KERNEL join_columns(const bf16 *__restrict__ parts, bf16 *__restrict__ x_mn, u32 rows, u32 columns,
                    u32 width) {
    const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x;
    if (at < u64(rows) * columns) x_mn[at] = parts[in_parts(at, rows, columns, width)];
}
KERNEL divide_columns(const bf16 *__restrict__ x_mn, bf16 *__restrict__ parts, u32 rows, u32 columns,
                      u32 width) {
    const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x;
    if (at < u64(rows) * columns) parts[in_parts(at, rows, columns, width)] = x_mn[at];
}

#endif
