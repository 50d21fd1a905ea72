// Operands of FP8 matmuls: largest magnitudes, and the cast into one layout or both.
#include "columns.cuh"
#include "fp8_operands.cuh"
#include "maximum.cuh"

// Conversions to FP8 are instructions from sm_89 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890

// Groups whose largest magnitude is searched, those of one thread.
#define PER_THREAD 4

// The largest magnitude of the values of a thread's groups. All lanes of a warp call it.
template <typename Input, typename T> struct Search {
    __device__ __forceinline__ static Maximum most(const Loaded<Input::PARTS> (&x)[PER_THREAD]) {
        Maximum most;
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) most.add(Input::template values<T>(x[i]));
        return most;
    }
};
// Of an activation: if the value of a warp's largest x exceeds all those below 0, it is the largest, because
// numbers of T differ by more than the function's rounding. To compute every value would take longer than to
// load x.
template <typename Function, typename T> struct Search<Activated<Function>, T> {
    __device__ __forceinline__ static Maximum most(const Loaded<1> (&x)[PER_THREAD]) {
        Floats<GROUP> largest = floats<T>(x[0].part[0]);
        Maximum magnitude, most;
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            const Floats<GROUP> values = floats<T>(x[i].part[0]);
            magnitude.add(values);
#pragma unroll
            for (int j = 0; j < GROUP; j++) largest.at[j] = fmaxf(largest.at[j], values.at[j]);
        }
#pragma unroll
        for (int j = 1; j < GROUP; j++) largest.at[0] = fmaxf(largest.at[0], largest.at[j]);
        most.add(Function::value(warp_max(largest.at[0])));
        const bool finite = warp_maximum(magnitude.bits) < INFINITE;
        if (finite && __uint_as_float(most.bits) >= Function::below_zero()) return most;
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) most.add(Activated<Function>::template values<T>(x[i]));
        return most;
    }
};

// Launch: THREADS threads, each with PER_THREAD groups. Floor: x once through memory.
template <typename Input, typename T>
__device__ __forceinline__ void maximum(const T *x, u32 *cells, u64 groups, u32 width, u32 vector) {
    const u32 each = width / GROUP;
    Loaded<Input::PARTS> loaded[PER_THREAD] = {};
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const u64 at = (u64(blockIdx.x) * PER_THREAD + i) * THREADS + threadIdx.x;
        if (at < groups)
            loaded[i] = load_group<Input::PARTS>(x, u32(at / each), u32(at % each) * GROUP, width, vector);
    }
    record<T>(Search<Input, T>::most(loaded), cells);
}

// A block owns a tile of SIDE x SIDE; thread (column group, row group) holds rows 4 * row group to + 3 of
// each half of the tile, GROUP columns of each.
#define SIDE 128
#define COLUMN_GROUPS (SIDE / GROUP)
#define HALF_ROWS (THREADS / COLUMN_GROUPS * 4)

// Rows then columns of a matrix: largest magnitudes of each, in words that are zero at first. Floor: x once.
template <typename Input, typename T>
__device__ __forceinline__ void outer_maxima(const T *x, u32 *maxima, u32 rows, u32 width, u32 vector) {
    __shared__ u32 by_row[SIDE], by_column[SIDE];
    if (threadIdx.x < SIDE) by_row[threadIdx.x] = by_column[threadIdx.x] = 0;
    __syncthreads();
    const u32 first_row = blockIdx.y * SIDE, first_column = blockIdx.x * SIDE;
    const u32 column = threadIdx.x % COLUMN_GROUPS * GROUP, quad = threadIdx.x / COLUMN_GROUPS;
    Maximum of_column[GROUP];
#pragma unroll
    for (u32 half = 0; half < SIDE; half += HALF_ROWS) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 row = half + quad * 4 + j;
            if (first_row + row >= rows || first_column + column >= width) continue;
            const Floats<GROUP> values = Input::template values<T>(
                load_group<Input::PARTS>(x, first_row + row, first_column + column, width, vector));
            Maximum of_row;
            of_row.add(values);
            atomicMax(by_row + row, of_row.bits);
#pragma unroll
            for (int i = 0; i < GROUP; i++) of_column[i].add(values.at[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++) atomicMax(by_column + column + i, of_column[i].bits);
    __syncthreads();
    if (threadIdx.x < SIDE) {
        const u32 row = first_row + threadIdx.x, to = first_column + threadIdx.x;
        if (row < rows) atomicMax(maxima + row, by_row[threadIdx.x]);
        if (to < width) atomicMax(maxima + rows + to, by_column[threadIdx.x]);
    }
}

// The factors of a cast: of the whole array in [0], or with `outer` of each row and each column.
struct Factors {
    const u32 *maxima; // null: the factors are known
    float *rows, *columns;
    u32 outer;
};

// Factor `index` of `factors`, computed from `maxima` unless known.
template <typename Format>
__device__ __forceinline__ float factor(const float *factors, const u32 *maxima, u32 index) {
    return maxima ? inverse<Format>(maxima[index]) : factors[index];
}

// GROUP elements as two words of codes.
template <typename Format>
__device__ __forceinline__ void encode(const Floats<GROUP> &x, const Floats<GROUP> &scale, u32 (&words)[2]) {
#pragma unroll
    for (int word = 0; word < 2; word++) {
        const int i = word * 4;
        words[word] = Format::pair(x.at[i] * scale.at[i], x.at[i + 1] * scale.at[i + 1]) |
                      Format::pair(x.at[i + 2] * scale.at[i + 2], x.at[i + 3] * scale.at[i + 3]) << 16;
    }
}
template <typename Format>
__device__ __forceinline__ void encode(const Floats<GROUP> &x, float scale, u32 (&words)[2]) {
    encode<Format>(x, Floats<GROUP>{{scale, scale, scale, scale, scale, scale, scale, scale}}, words);
}

// Word c of the result has byte c of each of four words.
__device__ __forceinline__ void transpose(u32 a, u32 b, u32 c, u32 d, u32 *words) {
    const u32 low = __byte_perm(a, b, 0x5140), high = __byte_perm(a, b, 0x7362);
    const u32 next_low = __byte_perm(c, d, 0x5140), next_high = __byte_perm(c, d, 0x7362);
    words[0] = __byte_perm(low, next_low, 0x5410);
    words[1] = __byte_perm(low, next_low, 0x7632);
    words[2] = __byte_perm(high, next_high, 0x5410);
    words[3] = __byte_perm(high, next_high, 0x7632);
}

// Words of four rows in a column of the tile. Column groups lie together, and this stride lets the lanes of a
// warp, two rows by 16 groups, write to different banks.
#define STRIDE (SIDE / 4 + 2)

// Writes the turned codes of a tile: a row of 16 threads writes 128 bytes of one column of x.
__device__ __forceinline__ void store_turned(const u32 *turned, u8 *transposed, u32 first_row,
                                             u32 first_column, u32 width, u32 padded) {
    const u32 at = threadIdx.x % 16, to_row = first_row + at * 8;
#pragma unroll
    for (u32 i = 0; i < GROUP; i++) {
        const u32 own_group = threadIdx.x / 16, to = first_column + own_group * GROUP + i;
        if (to >= width || to_row >= padded) continue;
        const u32 *from = turned + (i * COLUMN_GROUPS + own_group) * STRIDE + at * 2;
        store(reinterpret_cast<u32 *>(transposed + u64(to) * padded + to_row), load<2>(from));
    }
}

// Adds the sums of a tile's columns up, and stores the factors of rows and columns that were computed.
template <typename Format>
__device__ __forceinline__ void finish_tile(const float (&partial)[SIDE / 8][SIDE], const Factors &factors,
                                            float *sums, u32 block_row, u32 first_row, u32 first_column,
                                            u32 rows, u32 width) {
    if (threadIdx.x < SIDE) {
        const u32 to = first_column + threadIdx.x, of_row = first_row + threadIdx.x;
        if (sums && to < width) {
            float total = 0.0f;
#pragma unroll
            for (int other = 0; other < SIDE / 8; other++) total += partial[other][threadIdx.x];
            sums[u64(block_row) * width + to] = total;
        }
        if (factors.outer && factors.maxima) {
            if (factors.rows && blockIdx.x == 0 && of_row < rows)
                factors.rows[of_row] = inverse<Format>(factors.maxima[of_row]);
            if (factors.columns && blockIdx.y == 0 && to < width)
                factors.columns[to] = inverse<Format>(factors.maxima[rows + to]);
        }
    }
}

// The reciprocal of the one factor, which the first block stores; with `outer` those of a tile's rows and
// columns, in shared memory.
template <typename Format>
__device__ __forceinline__ float reciprocals(const Factors &factors, float (&by_row)[SIDE],
                                             float (&by_column)[SIDE], u32 first_row, u32 first_column,
                                             u32 rows, u32 width) {
    float scale = 0.0f;
    if (factors.outer) {
        static_assert(THREADS == 2 * SIDE, "a thread for each row and each column of a tile");
        const u32 of = threadIdx.x % SIDE, row = first_row + of, to = first_column + of;
        if (threadIdx.x < SIDE) {
            if (factors.rows && row < rows)
                by_row[of] = 1.0f / factor<Format>(factors.rows, factors.maxima, row);
        } else if (factors.columns && to < width) {
            const u32 *maxima = factors.maxima ? factors.maxima + rows : nullptr;
            by_column[of] = 1.0f / factor<Format>(factors.columns, maxima, to);
        }
        __syncthreads();
    } else {
        const float whole = factors.maxima ? inverse<Format>(largest_of(factors.maxima)) : factors.rows[0];
        if (factors.maxima && blockIdx.x + blockIdx.y + threadIdx.x == 0) factors.rows[0] = whole;
        scale = 1.0f / whole;
    }
    return scale;
}

// Launch: grid [columns / SIDE, rows / SIDE], the last rows first, which a producer has left in L2. `stored`:
// [rows, width]. `transposed`: [width, padded], zero beyond the rows. `sums`: a row of column sums of x for
// each row of blocks. Any of the three may be null. Floor: x once, a byte an element for each layout.
template <typename Format, typename Input, typename T>
__device__ __forceinline__ void cast(const T *x, const Factors &factors, u8 *stored, u8 *transposed,
                                     float *sums, u32 rows, u32 width, u32 padded, u32 vector) {
    __shared__ u32 turned[SIDE * STRIDE];
    __shared__ float partial[SIDE / 8][SIDE], by_row[SIDE], by_column[SIDE];
    const u32 block_row = gridDim.y - 1 - blockIdx.y;
    const u32 first_row = block_row * SIDE, first_column = blockIdx.x * SIDE;
    const u32 group_of = threadIdx.x % COLUMN_GROUPS, quad = threadIdx.x / COLUMN_GROUPS;
    const u32 column = first_column + group_of * GROUP;
    // Loads of one part fit into registers for the whole tile, those of two for half of it.
    constexpr u32 AHEAD = SIDE / HALF_ROWS / Input::PARTS;
    Loaded<Input::PARTS> loaded[AHEAD][4];
    const auto load_half = [&](u32 half) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 row = first_row + half * HALF_ROWS + quad * 4 + j;
            loaded[half % AHEAD][j] = Loaded<Input::PARTS>{};
            if (row < rows && column < width)
                loaded[half % AHEAD][j] = load_group<Input::PARTS>(x, row, column, width, vector);
        }
    };
#pragma unroll
    for (u32 half = 0; half < AHEAD; half++) load_half(half);
    const float scale =
        reciprocals<Format>(factors, by_row, by_column, first_row, first_column, rows, width);
    float sum[GROUP] = {};
#pragma unroll
    for (u32 half = 0; half < SIDE / HALF_ROWS; half++) {
        if (half >= AHEAD) load_half(half);
        u32 words[4][2];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 of = half * HALF_ROWS + quad * 4 + j, row = first_row + of;
            const Floats<GROUP> values = Input::template values<T>(loaded[half % AHEAD][j]);
#pragma unroll
            for (int i = 0; i < GROUP; i++) sum[i] += values.at[i];
            encode<Format>(values, factors.outer ? by_row[of] : scale, words[j]);
            if (stored && row < rows && column < width)
                store(reinterpret_cast<u32 *>(stored + u64(row) * width + column),
                      Vector<u32, 2>{{words[j][0], words[j][1]}});
            if (factors.outer) encode<Format>(values, read<GROUP>(by_column + group_of * GROUP), words[j]);
        }
        if (!transposed) continue;
        u32 turned_words[GROUP];
        transpose(words[0][0], words[1][0], words[2][0], words[3][0], turned_words);
        transpose(words[0][1], words[1][1], words[2][1], words[3][1], turned_words + 4);
#pragma unroll
        for (u32 i = 0; i < GROUP; i++)
            turned[(i * COLUMN_GROUPS + group_of) * STRIDE + half * (HALF_ROWS / 4) + quad] = turned_words[i];
    }
    if (sums) {
#pragma unroll
        for (int i = 0; i < GROUP; i++) partial[quad][group_of * GROUP + i] = sum[i];
    }
    __syncthreads();
    if (transposed) store_turned(turned, transposed, first_row, first_column, width, padded);
    finish_tile<Format>(partial, factors, sums, block_row, first_row, first_column, rows, width);
}

// dy = dy * activation'(saved) in place, and its largest magnitude. Launch and floor: as `maximum`, with dy
// read and written.
template <typename Function, typename T>
__device__ __forceinline__ void gradient(const T *saved, T *dy, u32 *cells, u64 groups, u32 vector) {
    Loaded<1> x[PER_THREAD], slopes[PER_THREAD];
    const u64 first = u64(blockIdx.x) * PER_THREAD * THREADS + threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < PER_THREAD; i++) {
        const u64 at = first + i * THREADS;
        if (at >= groups) continue;
        x[i] = load_group<1>(saved + at * GROUP, 0, 0, 0, vector);
        slopes[i] = load_group<1>(dy + at * GROUP, 0, 0, 0, vector);
    }
    Maximum most;
#pragma unroll
    for (u32 i = 0; i < PER_THREAD; i++) {
        const u64 at = first + i * THREADS;
        if (at >= groups) continue;
        const Floats<GROUP> inputs = floats<T>(x[i].part[0]);
        Floats<GROUP> values = floats<T>(slopes[i].part[0]);
#pragma unroll
        for (int j = 0; j < GROUP; j++) values.at[j] = Function::gradient(values.at[j], inputs.at[j]);
        if (vector) {
            write(dy + at * GROUP, values);
        } else {
#pragma unroll
            for (int j = 0; j < GROUP; j++) dy[at * GROUP + j] = from_f32<T>(values.at[j]);
        }
        most.add(values);
    }
    record<T>(most, cells);
}

#define FOR_INPUT(FORMAT_NAME, FORMAT, KIND, INPUT, NAME, T)                                                 \
    KERNEL __launch_bounds__(THREADS, 4)                                                                     \
        KIND##_cast_##NAME##_##FORMAT_NAME(const T *__restrict__ x, const u32 *__restrict__ maxima,          \
                                           float *rows_by, float *columns_by, u8 *stored, u8 *transposed,    \
                                           float *sums, u32 rows, u32 width, u32 padded, u32 outer,          \
                                           u32 vector) {                                                     \
        cast<FORMAT, INPUT>(x, Factors{maxima, rows_by, columns_by, outer}, stored, transposed, sums, rows,  \
                            width, padded, vector);                                                          \
    }
#define FOR_MAXIMA(KIND, INPUT, NAME, T)                                                                     \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        KIND##_maximum_##NAME(const T *__restrict__ x, u32 *cells, u64 groups, u32 width, u32 vector) {      \
        maximum<INPUT>(x, cells, groups, width, vector);                                                     \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        KIND##_outer_maxima_##NAME(const T *__restrict__ x, u32 *maxima, u32 rows, u32 width, u32 vector) {  \
        outer_maxima<INPUT>(x, maxima, rows, width, vector);                                                 \
    }
#define FOR_ACTIVATION(KIND, FUNCTION, NAME, T)                                                              \
    FOR_INPUT(e4m3, E4m3, KIND, Activated<FUNCTION<MathFor<T>::Math>>, NAME, T)                              \
    FOR_INPUT(e4m3, E4m3, KIND##_gate, Gated<FUNCTION<MathFor<T>::Math>>, NAME, T)                           \
    FOR_MAXIMA(KIND, Activated<FUNCTION<MathFor<T>::Math>>, NAME, T)                                         \
    FOR_MAXIMA(KIND##_gate, Gated<FUNCTION<MathFor<T>::Math>>, NAME, T)                                      \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        KIND##_gradient_##NAME(const T *__restrict__ saved, T *__restrict__ dy, u32 *cells, u64 groups,      \
                               u32 vector) {                                                                 \
        gradient<FUNCTION<MathFor<T>::Math>>(saved, dy, cells, groups, vector);                              \
    }
#define FOR_HALF(NAME, T)                             \
    FOR_INPUT(e4m3, E4m3, plain, Plain, NAME, T)      \
    FOR_INPUT(e5m2, E5m2, plain, Plain, NAME, T)      \
    FOR_MAXIMA(plain, Plain, NAME, T)                 \
    FOR_EACH_ACTIVATION(FOR_ACTIVATION, NAME, T)

// f16 has a loss scale of its own and is refused with FP8.
FOR_HALF(bf16, bf16)

#endif
