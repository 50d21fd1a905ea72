// Matmuls of groups of rows, each with the matrix of its expert, for every GPU: f32 sums in registers, along
// the depth in order. Groups begin and end at `offsets`, on the device.
//
// Launch: THREADS (256) threads for a tile of results, LINES in each direction, or NARROW in one that has no
// more results than that. Each thread has 4 or 1 results in each direction. No result depends on the tiles.
//
// Sums over rows of a group are divided into parts of PART_ROWS rows, which are added in order. So different
// blocks can compute the parts of a group whose matrix has few tiles.
//
// Shapes: x_si, y_so and their gradients; w_eoi, bias_eo; of a router dy_te, x_td and w_ed. Letters as in
// CONTRIBUTING.md.
#include "common.cuh"

#define LINES 64
#define NARROW 16
#define DEPTH 16
#define PART_ROWS 512

// Some rows of an expert's group.
struct Rows {
    u32 expert, first, end;
};

// Finds the piece number `piece` of those of all groups, `size` rows each; the last of a group may have
// fewer. Returns whether there is such a piece.
__device__ __forceinline__ bool find(Rows &rows, const u32 *offsets, u32 experts, u32 piece, u32 size) {
    for (u32 e = 0; e < experts; e++) {
        const u32 begin = offsets[e], end = offsets[e + 1], pieces = (end - begin + size - 1) / size;
        if (piece < pieces) {
            rows = {e, begin + piece * size, min(end, begin + (piece + 1) * size)};
            return true;
        }
        piece -= pieces;
    }
    return false;
}

// Which elements of an operand's tile of DEPTH x N lie beside each other in memory.
enum Order { ALONG_DEPTH, ACROSS };

// The elements of a tile that this thread moves to shared memory.
template <Order ORDER, int N> struct Moved {
    float values[DEPTH * N / THREADS];

    __device__ __forceinline__ static u32 depth(u32 at) { return ORDER == ACROSS ? at / N : at % DEPTH; }
    __device__ __forceinline__ static u32 line(u32 at) { return ORDER == ACROSS ? at % N : at / DEPTH; }
    template <typename Element> __device__ __forceinline__ void load(u32 first, Element element) {
#pragma unroll
        for (int i = 0; i < DEPTH * N / THREADS; i++) {
            const u32 at = threadIdx.x + i * THREADS;
            values[i] = element(first + depth(at), line(at));
        }
    }
    __device__ __forceinline__ void store(float (&tile)[DEPTH][N + 4]) const {
#pragma unroll
        for (int i = 0; i < DEPTH * N / THREADS; i++) {
            const u32 at = threadIdx.x + i * THREADS;
            tile[depth(at)][line(at)] = values[i];
        }
    }
};

// Adds a(k, i) * b(k, j) over k < depth to the I x J results of each thread; both are 0 outside of their
// operands. The next tiles are loaded while these are multiplied.
template <Order LEFT, Order RIGHT, int I, int J, typename A, typename B>
__device__ __forceinline__ void multiply(float (&sum)[I][J], u32 depth, A a, B b) {
    __shared__ float left[2][DEPTH][16 * I + 4], right[2][DEPTH][16 * J + 4];
    const u32 row = threadIdx.x / 16 * I, column = threadIdx.x % 16 * J;
    Moved<LEFT, 16 * I> of_left;
    Moved<RIGHT, 16 * J> of_right;
    of_left.load(0, a), of_right.load(0, b);
    u32 turn = 0;
    for (u32 first = 0; first < depth; first += DEPTH) {
        of_left.store(left[turn]), of_right.store(right[turn]);
        __syncthreads();
        if (first + DEPTH < depth) of_left.load(first + DEPTH, a), of_right.load(first + DEPTH, b);
#pragma unroll
        for (u32 k = 0; k < DEPTH; k++)
#pragma unroll
            for (u32 i = 0; i < I; i++)
#pragma unroll
                for (u32 j = 0; j < J; j++) sum[i][j] += left[turn][k][row + i] * right[turn][k][column + j];
        turn ^= 1;
    }
    __syncthreads();  // the next sum overwrites the tiles
}

// Calls store(i, j, value) for each result of this thread, at row i and column j of the block's tile.
template <int I, int J, typename Store>
__device__ __forceinline__ void store_results(const float (&sum)[I][J], Store store) {
#pragma unroll
    for (u32 i = 0; i < I; i++)
#pragma unroll
        for (u32 j = 0; j < J; j++) store(threadIdx.x / 16 * I + i, threadIdx.x % 16 * J + j, sum[i][j]);
}

// y[rows of e, out] = x[rows of e, in] * w[e]^T + bias[e]. Grid: tiles of outputs, tiles of all groups.
template <int J, typename T, typename Out>
__device__ __forceinline__ void forward(const T *x_si, const T *w_eoi, const T *bias_eo, const u32 *offsets,
                                        Out *y_so, u32 experts, u32 outputs, u32 inputs) {
    Rows rows;
    if (!find(rows, offsets, experts, blockIdx.y, LINES)) return;
    const u32 first_output = blockIdx.x * 16 * J;
    const T *matrix = w_eoi + u64(rows.expert) * outputs * inputs;
    float sum[4][J] = {};
    multiply<ALONG_DEPTH, ALONG_DEPTH>(
        sum, inputs,
        [&](u32 k, u32 i) {
            const u32 row = rows.first + i;
            return row < rows.end && k < inputs ? to_f32(x_si[u64(row) * inputs + k]) : 0.0f;
        },
        [&](u32 k, u32 j) {
            const u32 output = first_output + j;
            return output < outputs && k < inputs ? to_f32(matrix[u64(output) * inputs + k]) : 0.0f;
        });
    store_results(sum, [&](u32 i, u32 j, float value) {
        const u32 row = rows.first + i, output = first_output + j;
        if (row >= rows.end || output >= outputs) return;
        const float offset = bias_eo ? to_f32(bias_eo[u64(rows.expert) * outputs + output]) : 0.0f;
        y_so[u64(row) * outputs + output] = from_f32<Out>(value + offset);
    });
}

// dx[rows of e, in] = dy[rows of e, out] * w[e]. Grid: tiles of inputs, tiles of all groups.
template <int J, typename T, typename Out>
__device__ __forceinline__ void backward_input(const T *dy_so, const T *w_eoi, const u32 *offsets, Out *dx_si,
                                               u32 experts, u32 outputs, u32 inputs) {
    Rows rows;
    if (!find(rows, offsets, experts, blockIdx.y, LINES)) return;
    const u32 first_input = blockIdx.x * 16 * J;
    const T *matrix = w_eoi + u64(rows.expert) * outputs * inputs;
    float sum[4][J] = {};
    multiply<ALONG_DEPTH, ACROSS>(
        sum, outputs,
        [&](u32 k, u32 i) {
            const u32 row = rows.first + i;
            return row < rows.end && k < outputs ? to_f32(dy_so[u64(row) * outputs + k]) : 0.0f;
        },
        [&](u32 k, u32 j) {
            const u32 input = first_input + j;
            return input < inputs && k < outputs ? to_f32(matrix[u64(k) * inputs + input]) : 0.0f;
        });
    store_results(sum, [&](u32 i, u32 j, float value) {
        const u32 row = rows.first + i, input = first_input + j;
        if (row < rows.end && input < inputs) dx_si[u64(row) * inputs + input] = from_f32<Out>(value);
    });
}

// Adds dy[begin to end, left]^T * x[begin to end, right] to the results of the tile at `first_left` and
// `first_right`; the operands have `lefts` and `rights` columns.
template <int I, int J, typename Left, typename T>
__device__ __forceinline__ void add_rows(float (&sum)[I][J], const Left *dy, const T *x, u32 begin, u32 end,
                                         u32 first_left, u32 first_right, u32 lefts, u32 rights) {
    multiply<ACROSS, ACROSS>(
        sum, end - begin,
        [&](u32 k, u32 i) {
            const u32 row = begin + k, left = first_left + i;
            return row < end && left < lefts ? to_f32(dy[u64(row) * lefts + left]) : 0.0f;
        },
        [&](u32 k, u32 j) {
            const u32 row = begin + k, right = first_right + j;
            return row < end && right < rights ? to_f32(x[u64(row) * rights + right]) : 0.0f;
        });
}

// dw[e] (+)= dy[rows of e, out]^T * x[rows of e, in]. Grid: tiles of inputs, tiles of outputs, experts.
template <typename T, typename Out>
__device__ __forceinline__ void backward_weight(const T *dy_so, const T *x_si, const u32 *offsets,
                                                Out *dw_eoi, u32 outputs, u32 inputs, u32 accumulate) {
    const u32 begin = offsets[blockIdx.z], end = offsets[blockIdx.z + 1];
    const u32 first_input = blockIdx.x * LINES, first_output = blockIdx.y * LINES;
    float total[4][4] = {};
    for (u32 first = begin; first < end; first += PART_ROWS) {
        float sum[4][4] = {};
        add_rows(sum, dy_so, x_si, first, min(end, first + PART_ROWS), first_output, first_input, outputs,
                 inputs);
#pragma unroll
        for (u32 i = 0; i < 4; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) total[i][j] += sum[i][j];
    }
    Out *matrix = dw_eoi + u64(blockIdx.z) * outputs * inputs;
    store_results(total, [&](u32 i, u32 j, float value) {
        const u32 output = first_output + i, input = first_input + j;
        if (output >= outputs || input >= inputs) return;
        Out &target = matrix[u64(output) * inputs + input];
        target = from_f32<Out>(accumulate ? to_f32(target) + value : value);
    });
}

// Stores dy[begin to end, left]^T * x[begin to end, right] to `part [lefts, rights]`, in f32. Grid: tiles of
// right columns, tiles of left columns.
template <int I, int J, typename Left, typename T>
__device__ __forceinline__ void part_of_rows(const Left *dy, const T *x, float *part, u32 begin, u32 end,
                                             u32 lefts, u32 rights) {
    const u32 first_left = blockIdx.y * 16 * I, first_right = blockIdx.x * 16 * J;
    float sum[I][J] = {};
    add_rows(sum, dy, x, begin, end, first_left, first_right, lefts, rights);
    store_results(sum, [&](u32 i, u32 j, float value) {
        const u32 left = first_left + i, right = first_right + j;
        if (left < lefts && right < rights) part[u64(left) * rights + right] = value;
    });
}

template <typename Left, typename T>
__device__ __forceinline__ void narrow_part_of_rows(const Left *dy, const T *x, float *part, u32 begin,
                                                    u32 end, u32 lefts, u32 rights) {
    if (lefts <= NARROW)
        part_of_rows<1, 4>(dy, x, part, begin, end, lefts, rights);
    else if (rights <= NARROW)
        part_of_rows<4, 1>(dy, x, part, begin, end, lefts, rights);
    else
        part_of_rows<4, 4>(dy, x, part, begin, end, lefts, rights);
}

// parts[part, out, in] = dy[rows of part, out]^T * x[rows of part, in]. Grid: tiles of inputs, tiles of
// outputs, parts of all groups.
template <typename T>
__device__ __forceinline__ void weight_parts(const T *dy_so, const T *x_si, const u32 *offsets, float *parts,
                                             u32 experts, u32 outputs, u32 inputs) {
    Rows rows;
    if (!find(rows, offsets, experts, blockIdx.z, PART_ROWS)) return;
    float *part = parts + u64(blockIdx.z) * outputs * inputs;
    narrow_part_of_rows(dy_so, x_si, part, rows.first, rows.end, outputs, inputs);
}

// parts[part, experts, in] = dy[rows of part, experts]^T * x[rows of part, in] of a router. Grid: tiles of
// inputs, tiles of experts, parts of `each` rows.
template <typename T>
__device__ __forceinline__ void router_parts(const float *dy_te, const T *x_td, float *parts, u32 rows,
                                             u32 each, u32 experts, u32 inputs) {
    const u32 begin = blockIdx.z * each;
    float *part = parts + u64(blockIdx.z) * experts * inputs;
    narrow_part_of_rows(dy_te, x_td, part, begin, min(rows, begin + each), experts, inputs);
}

// parts[part, out] = the sum of dy over the rows of the part, each times the weight of its choice if
// `weights` is not null. Launch: a thread for each output, a row of blocks for each part of all groups.
template <typename T>
__device__ __forceinline__ void bias_parts(const T *dy_so, const float *weights_tp, const u32 *sources_s,
                                           const u32 *offsets, float *parts, u32 experts, u32 outputs) {
    const u32 output = blockIdx.x * THREADS + threadIdx.x;
    Rows rows;
    if (output >= outputs || !find(rows, offsets, experts, blockIdx.y, PART_ROWS)) return;
    float sum = 0.0f;
#pragma unroll 4
    for (u32 row = rows.first; row < rows.end; row++) {
        const u32 source = sources_s[row];
        const bool is_zero = source == 0xffffffffu;  // a row of zeros
        const float weight = is_zero ? 0.0f : weights_tp ? weights_tp[source] : 1.0f;
        const float value = is_zero ? 0.0f : to_f32(dy_so[u64(row) * outputs + output]);
        sum += weight * value;
    }
    parts[u64(blockIdx.y) * outputs + output] = sum;
}

// target[e] (+)= the sum of the parts of group e, in their order. Without offsets there is one group, of
// `parts_of_one` parts. Launch: a thread for each of `elements` of a group, a row of blocks for each group.
template <typename Out>
__device__ __forceinline__ void sum_parts(const float *parts, const u32 *offsets, Out *target,
                                          u32 parts_of_one, u32 elements, u32 accumulate) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= elements) return;
    u32 first = 0, count = parts_of_one;
    for (u32 e = 0; offsets && e <= blockIdx.y; e++) {
        first = e ? first + count : 0;
        count = (offsets[e + 1] - offsets[e] + PART_ROWS - 1) / PART_ROWS;
    }
    float sum = 0.0f;
    for (u32 part = first; part < first + count; part++) sum += parts[u64(part) * elements + at];
    Out &result = target[u64(blockIdx.y) * elements + at];
    result = from_f32<Out>(accumulate ? to_f32(result) + sum : sum);
}

// dx[rows, in] = dy[rows, experts] * w, in f32 but for the result. Grid: tiles of inputs, tiles of rows.
template <typename T, typename Out>
__device__ __forceinline__ void router_input(const float *dy_te, const T *w_ed, Out *dx_td, u32 rows,
                                             u32 experts, u32 inputs) {
    const u32 first_row = blockIdx.y * LINES, first_input = blockIdx.x * LINES;
    float sum[4][4] = {};
    multiply<ALONG_DEPTH, ACROSS>(
        sum, experts,
        [&](u32 k, u32 i) {
            const u32 row = first_row + i;
            return row < rows && k < experts ? dy_te[u64(row) * experts + k] : 0.0f;
        },
        [&](u32 k, u32 j) {
            const u32 input = first_input + j;
            return input < inputs && k < experts ? to_f32(w_ed[u64(k) * inputs + input]) : 0.0f;
        });
    store_results(sum, [&](u32 i, u32 j, float value) {
        const u32 row = first_row + i, input = first_input + j;
        if (row < rows && input < inputs) dx_td[u64(row) * inputs + input] = from_f32<Out>(value);
    });
}

// bias[expert] (+)= the sum of dy over rows. Launch: a warp for each expert.
template <typename Out>
__device__ __forceinline__ void router_bias(const float *dy_te, Out *bias_e, u32 rows, u32 experts,
                                            u32 accumulate) {
    const u32 expert = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (expert >= experts) return;
    float sum = 0.0f;
    for (u32 row = threadIdx.x % WARP; row < rows; row += WARP) sum += dy_te[u64(row) * experts + expert];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        bias_e[expert] = from_f32<Out>(accumulate ? to_f32(bias_e[expert]) + sum : sum);
}

#define KERNELS_OF(NAME, T, Out)                                                                            \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        forward##NAME(const T *__restrict__ x, const T *__restrict__ w, const T *__restrict__ bias,         \
                      const u32 *__restrict__ offsets, Out *__restrict__ y, u32 experts, u32 outputs,       \
                      u32 inputs) {                                                                         \
        if (outputs <= NARROW)                                                                              \
            forward<1>(x, w, bias, offsets, y, experts, outputs, inputs);                                   \
        else                                                                                                \
            forward<4>(x, w, bias, offsets, y, experts, outputs, inputs);                                   \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        backward_input##NAME(const T *__restrict__ dy, const T *__restrict__ w,                             \
                             const u32 *__restrict__ offsets, Out *__restrict__ dx, u32 experts,            \
                             u32 outputs, u32 inputs) {                                                     \
        if (inputs <= NARROW)                                                                               \
            backward_input<1>(dy, w, offsets, dx, experts, outputs, inputs);                                \
        else                                                                                                \
            backward_input<4>(dy, w, offsets, dx, experts, outputs, inputs);                                \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        backward_weight##NAME(const T *__restrict__ dy, const T *__restrict__ x,                            \
                              const u32 *__restrict__ offsets, Out *__restrict__ dw, u32 outputs,           \
                              u32 inputs, u32 accumulate) {                                                 \
        backward_weight(dy, x, offsets, dw, outputs, inputs, accumulate);                                   \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        router_input##NAME(const float *__restrict__ dy, const T *__restrict__ w, Out *__restrict__ dx,     \
                           u32 rows, u32 experts, u32 inputs) {                                             \
        router_input(dy, w, dx, rows, experts, inputs);                                                     \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        sum_parts##NAME(const float *__restrict__ parts, const u32 *__restrict__ offsets,                   \
                        Out *__restrict__ target, u32 parts_of_one, u32 elements, u32 accumulate) {         \
        sum_parts(parts, offsets, target, parts_of_one, elements, accumulate);                              \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        router_bias##NAME(const float *__restrict__ dy, Out *__restrict__ bias, u32 rows, u32 experts,      \
                          u32 accumulate) {                                                                 \
        router_bias(dy, bias, rows, experts, accumulate);                                                   \
    }
#define FOR_TYPE(NAME, T)                                                                                   \
    KERNELS_OF(_##NAME, T, T)                                                                               \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        weight_parts_##NAME(const T *__restrict__ dy, const T *__restrict__ x,                              \
                            const u32 *__restrict__ offsets, float *__restrict__ parts, u32 experts,        \
                            u32 outputs, u32 inputs) {                                                      \
        weight_parts(dy, x, offsets, parts, experts, outputs, inputs);                                      \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        bias_parts_##NAME(const T *__restrict__ dy, const float *__restrict__ weights,                      \
                          const u32 *__restrict__ sources, const u32 *__restrict__ offsets,                 \
                          float *__restrict__ parts, u32 experts, u32 outputs) {                            \
        bias_parts(dy, weights, sources, offsets, parts, experts, outputs);                                 \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        router_parts_##NAME(const float *__restrict__ dy, const T *__restrict__ x,                          \
                            float *__restrict__ parts, u32 rows, u32 each, u32 experts, u32 inputs) {       \
        router_parts(dy, x, parts, rows, each, experts, inputs);                                            \
    }
FOR_EACH_TYPE(FOR_TYPE)

// Results of half-precision operands in f32.
#define FOR_WIDE(NAME, T) KERNELS_OF(_wide_##NAME, T, float)
FOR_EACH_HALF(FOR_WIDE)
