// Operands of FP8 matmuls: largest magnitudes, and the cast into one layout or both.
#include "activation.cuh"
#include "columns.cuh"
#include "maximum.cuh"

// Conversions to FP8 are instructions from sm_89 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890

struct E4m3 {
    __device__ __forceinline__ static float largest() { return 448.0f; }
    __device__ __forceinline__ static u32 pair(float low, float high) {
        u16 codes;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
        return codes;
    }
};
struct E5m2 {
    __device__ __forceinline__ static float largest() { return 57344.0f; }
    __device__ __forceinline__ static u32 pair(float low, float high) {
        u16 codes;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
        return codes;
    }
};

// The factor that turns codes back: the largest magnitude becomes the format's largest value. 1 for zeros;
// not finite if an element is not.
template <typename Format> __device__ __forceinline__ float inverse(u32 bits) {
    const u32 tiny = 27u << 23; // 2^-100: its reciprocal times the largest value is finite
    return bits == 0 ? 1.0f : __uint_as_float(max(bits, tiny)) / Format::largest();
}

#define GROUP 8

// What a matmul's operand is made of: elements of x, an activation of them, or a gate of pairs. A row of x
// has PARTS times the operand's columns.
struct Plain {
    static const int PARTS = 1;
    template <int N, typename T> __device__ __forceinline__ static Floats<N> at(const T *x, u32) {
        return read<N>(x);
    }
};
template <typename Function> struct Activated {
    static const int PARTS = 1;
    template <int N, typename T> __device__ __forceinline__ static Floats<N> at(const T *x, u32) {
        Floats<N> values = read<N>(x);
#pragma unroll
        for (int i = 0; i < N; i++) values.at[i] = to_f32(from_f32<T>(Function::value(values.at[i])));
        return values;
    }
};
template <typename Function> struct Gated {
    static const int PARTS = 2;
    template <int N, typename T> __device__ __forceinline__ static Floats<N> at(const T *x, u32 width) {
        const Floats<N> gate = read<N>(x);
        Floats<N> up = read<N>(x + width);
#pragma unroll
        for (int i = 0; i < N; i++)
            up.at[i] = to_f32(from_f32<T>(up.at[i] * Function::value(gate.at[i])));
        return up;
    }
};

// GROUP columns of a row of the operand.
template <typename Input, typename T>
__device__ __forceinline__ Floats<GROUP> group(const T *x, u32 row, u32 column, u32 width, u32 vector) {
    const T *at = x + u64(row) * width * Input::PARTS + column;
    if (vector) return Input::template at<GROUP>(at, width);
    Floats<GROUP> values;
#pragma unroll
    for (int i = 0; i < GROUP; i++) values.at[i] = Input::template at<1>(at + i, width).at[0];
    return values;
}

// Launch: THREADS threads, each with PER_THREAD groups. Floor: x once through memory.
#define PER_THREAD 4
template <typename Input, typename T>
__device__ __forceinline__ void maximum(const T *x, u32 *cells, u64 groups, u32 width, u32 vector) {
    const u32 each = width / GROUP;
    Maximum most;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const u64 at = (u64(blockIdx.x) * PER_THREAD + i) * THREADS + threadIdx.x;
        if (at < groups) most.add(group<Input>(x, u32(at / each), u32(at % each) * GROUP, width, vector));
    }
    record<T>(most, cells);
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
            const Floats<GROUP> values =
                group<Input>(x, first_row + row, first_column + column, width, vector);
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
__device__ __forceinline__ void encode(const float (&x)[GROUP], const float (&scale)[GROUP],
                                       u32 (&words)[2]) {
#pragma unroll
    for (int word = 0; word < 2; word++) {
        const int i = word * 4;
        words[word] = Format::pair(x[i] * scale[i], x[i + 1] * scale[i + 1]) |
                      Format::pair(x[i + 2] * scale[i + 2], x[i + 3] * scale[i + 3]) << 16;
    }
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

// Launch: grid [columns / SIDE, rows / SIDE], the last rows first, which a producer has left in L2. `stored`:
// [rows, width]. `transposed`: [width, padded], zero beyond the rows. `sums`: a row of column sums of x for
// each row of blocks. Any of the three may be null. Floor: x once, a byte an element for each layout.
template <typename Format, typename Input, typename T>
__device__ __forceinline__ void cast(const T *x, const Factors &factors, u8 *stored, u8 *transposed,
                                     float *sums, u32 rows, u32 width, u32 padded, u32 vector) {
    __shared__ u32 turned[SIDE * STRIDE];
    __shared__ float partial[SIDE / 8][SIDE];
    const u32 block_row = gridDim.y - 1 - blockIdx.y;
    const u32 first_row = block_row * SIDE, first_column = blockIdx.x * SIDE;
    const u32 group_of = threadIdx.x % COLUMN_GROUPS, quad = threadIdx.x / COLUMN_GROUPS;
    const u32 column = first_column + group_of * GROUP;
    float by_column[GROUP];
    if (factors.outer) {
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            const u32 *maxima = factors.maxima ? factors.maxima + rows : nullptr;
            const bool inside = factors.columns && column < width;
            by_column[i] = inside ? 1.0f / factor<Format>(factors.columns, maxima, column + i) : 0.0f;
        }
    } else {
        float whole;
        if (factors.maxima)
            whole = inverse<Format>(largest_of(factors.maxima));
        else
            whole = factors.rows[0];
        if (factors.maxima && blockIdx.x + blockIdx.y + threadIdx.x == 0) factors.rows[0] = whole;
#pragma unroll
        for (int i = 0; i < GROUP; i++) by_column[i] = 1.0f / whole;
    }
    float sum[GROUP] = {};
#pragma unroll
    for (u32 half = 0; half < SIDE / HALF_ROWS; half++) {
        Floats<GROUP> values[4];
        const u32 row = first_row + half * HALF_ROWS + quad * 4;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            values[j] = Floats<GROUP>{};
            if (row + j < rows && column < width) values[j] = group<Input>(x, row + j, column, width, vector);
        }
        u32 words[4][2];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
#pragma unroll
            for (int i = 0; i < GROUP; i++) sum[i] += values[j].at[i];
            encode<Format>(values[j].at, by_column, words[j]);
        }
        if (transposed) {
            u32 turned_words[GROUP];
            transpose(words[0][0], words[1][0], words[2][0], words[3][0], turned_words);
            transpose(words[0][1], words[1][1], words[2][1], words[3][1], turned_words + 4);
#pragma unroll
            for (u32 i = 0; i < GROUP; i++)
                turned[(i * COLUMN_GROUPS + group_of) * STRIDE + half * (HALF_ROWS / 4) + quad] =
                    turned_words[i];
        }
        if (stored) {
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                if (row + j >= rows || column >= width) continue;
                if (factors.outer) {
                    const float of_row = 1.0f / factor<Format>(factors.rows, factors.maxima, row + j);
                    const float by_row[GROUP] = {of_row, of_row, of_row, of_row,
                                                 of_row, of_row, of_row, of_row};
                    encode<Format>(values[j].at, by_row, words[j]);
                }
                store(reinterpret_cast<u32 *>(stored + u64(row + j) * width + column),
                      Vector<u32, 2>{{words[j][0], words[j][1]}});
            }
        }
    }
    if (sums) {
#pragma unroll
        for (int i = 0; i < GROUP; i++) partial[quad][group_of * GROUP + i] = sum[i];
    }
    __syncthreads();
    if (transposed) {
        // A row of 16 threads writes 128 bytes of one column of x.
        const u32 at = threadIdx.x % 16, to_row = first_row + at * 8;
#pragma unroll
        for (u32 i = 0; i < GROUP; i++) {
            const u32 own_group = threadIdx.x / 16, to = first_column + own_group * GROUP + i;
            if (to >= width || to_row >= padded) continue;
            const u32 *from = turned + (i * COLUMN_GROUPS + own_group) * STRIDE + at * 2;
            store(reinterpret_cast<u32 *>(transposed + u64(to) * padded + to_row), load<2>(from));
        }
    }
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

// dy = dy * activation'(saved) in place, and its largest magnitude. Launch and floor: as `maximum`, with dy
// read and written.
template <int N, typename Function, typename T>
__device__ __forceinline__ void gradient(const T *saved, T *dy, u32 *cells, u64 count) {
    Maximum most;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const u64 at = ((u64(blockIdx.x) * PER_THREAD + i) * THREADS + threadIdx.x) * N;
        if (at >= count) continue;
        const Floats<N> x = read<N>(saved + at);
        Floats<N> values = read<N>(dy + at);
#pragma unroll
        for (int j = 0; j < N; j++) values.at[j] = Function::gradient(values.at[j], x.at[j]);
        write(dy + at, values);
        most.add(values);
    }
    record<T>(most, cells);
}

#define FOR_INPUT(FORMAT_NAME, FORMAT, KIND, INPUT, NAME, T)                                                 \
    KERNEL __launch_bounds__(THREADS, 4)                                                                        \
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
        KIND##_gradient_##NAME(const T *__restrict__ saved, T *__restrict__ dy, u32 *cells, u64 count,       \
                               u32 vector) {                                                                 \
        if (vector)                                                                                          \
            gradient<16 / sizeof(T), FUNCTION<MathFor<T>::Math>>(saved, dy, cells, count);                   \
        else                                                                                                 \
            gradient<1, FUNCTION<MathFor<T>::Math>>(saved, dy, cells, count);                                \
    }
#define FOR_HALF(NAME, T)                             \
    FOR_INPUT(e4m3, E4m3, plain, Plain, NAME, T)      \
    FOR_INPUT(e5m2, E5m2, plain, Plain, NAME, T)      \
    FOR_MAXIMA(plain, Plain, NAME, T)                 \
    FOR_EACH_ACTIVATION(FOR_ACTIVATION, NAME, T)

// f16 has a loss scale of its own and is refused with FP8.
FOR_HALF(bf16, bf16)

#endif
