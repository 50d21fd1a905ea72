// FP8 codes of matrices that are cast in parts: the factor of a whole matrix from the largest magnitudes of
// its parts, and the transposed layout from the codes as stored.
#include "fp8_operands.cuh"
#include "maximum.cuh"

// Conversions to FP8 are instructions from sm_89 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890

// The largest of each matrix's CELLS words. Launch: a block for each matrix, of CELLS threads.
KERNEL __launch_bounds__(CELLS) fold_cells(const u32 *cells, u32 *maxima) {
    __shared__ u32 of_warp[CELLS / WARP];
    const u32 bits = warp_maximum(cells[u64(blockIdx.x) * CELLS + threadIdx.x]);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = bits;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 most = 0;
        for (int warp = 0; warp < CELLS / WARP; warp++) most = max(most, of_warp[warp]);
        maxima[blockIdx.x] = most;
    }
}

// The factors of `count` matrices, one every `stride` elements, whose largest magnitudes are those of `parts`
// rows of words. Launch: a thread for each matrix.
KERNEL __launch_bounds__(THREADS) factors_e4m3(const u32 *maxima, float *factors, u32 parts, u32 count,
                                               u32 stride) {
    const u32 matrix = blockIdx.x * THREADS + threadIdx.x;
    if (matrix >= count) return;
    u32 most = 0;
    for (u32 part = 0; part < parts; part++) most = max(most, maxima[u64(part) * count + matrix]);
    factors[u64(matrix) * stride] = inverse<E4m3>(most);
}

#define SIDE 128

// turned [columns, rows] = codes [rows, columns], both multiples of 4. A thread transposes squares of 4 x 4
// bytes; the squares of a warp are 8 below each other and 4 beside each other, so that it reads 32 banks and
// writes whole sectors. Launch: a block for each tile of SIDE x SIDE. Floor: each code is read once and
// written once.
KERNEL __launch_bounds__(THREADS) transpose_codes(const u8 *__restrict__ codes, u8 *__restrict__ turned,
                                                  u32 rows, u32 columns) {
    // An odd number of words in a row.
    __shared__ u32 tile[SIDE][SIDE / 4 + 1];
    const u32 first_row = blockIdx.y * SIDE, first_column = blockIdx.x * SIDE;
    for (u32 i = threadIdx.x; i < SIDE * SIDE / 4; i += THREADS) {
        const u32 row = i / (SIDE / 4), word = i % (SIDE / 4);
        if (first_row + row < rows && first_column + word * 4 < columns)
            tile[row][word] = *reinterpret_cast<const u32 *>(
                codes + u64(first_row + row) * columns + first_column + word * 4);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < SIDE * SIDE / 16; i += THREADS) {
        const u32 lane = i % 32, group = i / 32;
        const u32 row = (group % 4 * 8 + lane % 8) * 4, word = group / 4 * 4 + lane / 8;
        if (first_row + row >= rows || first_column + word * 4 >= columns) continue;
        u32 in[4];
#pragma unroll
        for (u32 line = 0; line < 4; line++) in[line] = tile[row + line][word];
        // Pairs of lines, then their halves.
        const u32 low01 = __byte_perm(in[0], in[1], 0x5140), high01 = __byte_perm(in[0], in[1], 0x7362);
        const u32 low23 = __byte_perm(in[2], in[3], 0x5140), high23 = __byte_perm(in[2], in[3], 0x7362);
        const u32 out[4] = {__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
                            __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632)};
#pragma unroll
        for (u32 column = 0; column < 4; column++)
            *reinterpret_cast<u32 *>(turned + u64(first_column + word * 4 + column) * rows + first_row + row) =
                out[column];
    }
}

#endif
