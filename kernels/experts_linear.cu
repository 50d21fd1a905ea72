// Matmuls of groups of rows, each with the matrix of its expert, for every GPU: f32 sums in registers, along
// the depth in order. Groups begin and end at `offsets`, on the device.
//
// Launch: THREADS (256) threads for a tile of TILE x TILE results, of which each has 4 x 4.
//
// Shapes: x_si, y_so and their gradients; w_eoi, bias_eo; of a router dy_te, x_td and w_ed. Letters as in
// CONTRIBUTING.md.
#include "common.cuh"

#define TILE 64
#define DEPTH 16

// The rows of a tile of an expert's group.
struct Group {
    u32 expert, first, end;
};

// The tile number `tile` of those of all groups, TILE rows each; the last of a group may have fewer. Returns
// whether there is such a tile.
__device__ __forceinline__ bool find(Group &group, const u32 *offsets, u32 experts, u32 tile) {
    for (u32 e = 0; e < experts; e++) {
        const u32 begin = offsets[e], end = offsets[e + 1], tiles = (end - begin + TILE - 1) / TILE;
        if (tile < tiles) {
            group = {e, begin + tile * TILE, min(end, begin + (tile + 1) * TILE)};
            return true;
        }
        tile -= tiles;
    }
    return false;
}

// Adds a[i, k] * b[k, j] over k < depth to the 4 x 4 results of each thread; `a(i, k)` and `b(k, j)` load an
// element of the tile, or 0 outside.
template <typename A, typename B>
__device__ __forceinline__ void multiply(float (&sum)[4][4], u32 depth, A a, B b) {
    __shared__ float left[DEPTH][TILE + 4], right[DEPTH][TILE + 4];
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    for (u32 first = 0; first < depth; first += DEPTH) {
        for (u32 at = threadIdx.x; at < DEPTH * TILE; at += THREADS) {
            a(left, at, first);
            b(right, at, first);
        }
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < DEPTH; k++)
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) sum[i][j] += left[k][row + i] * right[k][column + j];
        __syncthreads();
    }
}

// y[rows of e, out] = x[rows of e, in] * w[e]^T + bias[e]. Grid: tiles of outputs, tiles of all groups.
template <typename T, typename Out>
__device__ __forceinline__ void forward(const T *x_si, const T *w_eoi, const T *bias_eo, const u32 *offsets,
                                        Out *y_so, u32 experts, u32 outputs, u32 inputs) {
    Group group;
    if (!find(group, offsets, experts, blockIdx.y)) return;
    const u32 first_output = blockIdx.x * TILE;
    const T *matrix = w_eoi + u64(group.expert) * outputs * inputs;
    float sum[4][4] = {};
    multiply(
        sum, inputs,
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 k = at % DEPTH, row = group.first + at / DEPTH;
            const bool inside = row < group.end && first + k < inputs;
            tile[k][at / DEPTH] = inside ? to_f32(x_si[u64(row) * inputs + first + k]) : 0.0f;
        },
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 k = at % DEPTH, output = first_output + at / DEPTH;
            const bool inside = output < outputs && first + k < inputs;
            tile[k][at / DEPTH] = inside ? to_f32(matrix[u64(output) * inputs + first + k]) : 0.0f;
        });
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            const u32 row = group.first + threadIdx.x / 16 * 4 + i;
            const u32 output = first_output + threadIdx.x % 16 * 4 + j;
            if (row >= group.end || output >= outputs) continue;
            const float offset = bias_eo ? to_f32(bias_eo[u64(group.expert) * outputs + output]) : 0.0f;
            y_so[u64(row) * outputs + output] = from_f32<Out>(sum[i][j] + offset);
        }
}

// dx[rows of e, in] = dy[rows of e, out] * w[e]. Grid: tiles of inputs, tiles of all groups.
template <typename T, typename Out>
__device__ __forceinline__ void backward_input(const T *dy_so, const T *w_eoi, const u32 *offsets, Out *dx_si,
                                               u32 experts, u32 outputs, u32 inputs) {
    Group group;
    if (!find(group, offsets, experts, blockIdx.y)) return;
    const u32 first_input = blockIdx.x * TILE;
    const T *matrix = w_eoi + u64(group.expert) * outputs * inputs;
    float sum[4][4] = {};
    multiply(
        sum, outputs,
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 k = at % DEPTH, row = group.first + at / DEPTH;
            const bool inside = row < group.end && first + k < outputs;
            tile[k][at / DEPTH] = inside ? to_f32(dy_so[u64(row) * outputs + first + k]) : 0.0f;
        },
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 k = at / TILE, input = first_input + at % TILE;
            const bool inside = input < inputs && first + k < outputs;
            tile[k][at % TILE] = inside ? to_f32(matrix[u64(first + k) * inputs + input]) : 0.0f;
        });
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            const u32 row = group.first + threadIdx.x / 16 * 4 + i;
            const u32 input = first_input + threadIdx.x % 16 * 4 + j;
            if (row < group.end && input < inputs)
                dx_si[u64(row) * inputs + input] = from_f32<Out>(sum[i][j]);
        }
}

// dw[e] (+)= dy[rows of e, out]^T * x[rows of e, in]. Grid: tiles of inputs, tiles of outputs, experts.
template <typename T, typename Out>
__device__ __forceinline__ void backward_weight(const T *dy_so, const T *x_si, const u32 *offsets,
                                                Out *dw_eoi, u32 outputs, u32 inputs, u32 accumulate) {
    const u32 begin = offsets[blockIdx.z], end = offsets[blockIdx.z + 1];
    const u32 first_input = blockIdx.x * TILE, first_output = blockIdx.y * TILE;
    Out *matrix = dw_eoi + u64(blockIdx.z) * outputs * inputs;
    float sum[4][4] = {};
    multiply(
        sum, end - begin,
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 row = begin + first + at / TILE, output = first_output + at % TILE;
            const bool inside = row < end && output < outputs;
            tile[at / TILE][at % TILE] = inside ? to_f32(dy_so[u64(row) * outputs + output]) : 0.0f;
        },
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 row = begin + first + at / TILE, input = first_input + at % TILE;
            const bool inside = row < end && input < inputs;
            tile[at / TILE][at % TILE] = inside ? to_f32(x_si[u64(row) * inputs + input]) : 0.0f;
        });
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            const u32 output = first_output + threadIdx.x / 16 * 4 + i;
            const u32 input = first_input + threadIdx.x % 16 * 4 + j;
            if (output >= outputs || input >= inputs) continue;
            Out &target = matrix[u64(output) * inputs + input];
            target = from_f32<Out>(accumulate ? to_f32(target) + sum[i][j] : sum[i][j]);
        }
}

// bias[e] (+)= the sum of dy over the rows of e, each times the weight of its choice if `weights` is not
// null. Launch: a thread for each output, a row of blocks for each expert.
template <typename T, typename Out>
__device__ __forceinline__ void backward_bias(const T *dy_so, const float *weights_tp, const u32 *sources_s,
                                              const u32 *offsets, Out *bias_eo, u32 outputs, u32 accumulate) {
    const u32 output = blockIdx.x * THREADS + threadIdx.x;
    if (output >= outputs) return;
    float sum = 0.0f;
    for (u32 row = offsets[blockIdx.y]; row < offsets[blockIdx.y + 1]; row++)
        if (sources_s[row] != 0xffffffffu)  // a row of zeros
            sum +=
                (weights_tp ? weights_tp[sources_s[row]] : 1.0f) * to_f32(dy_so[u64(row) * outputs + output]);
    Out &target = bias_eo[u64(blockIdx.y) * outputs + output];
    target = from_f32<Out>(accumulate ? to_f32(target) + sum : sum);
}

// dx[rows, in] = dy[rows, experts] * w, in f32 but for the result. Grid: tiles of inputs, tiles of rows.
template <typename T, typename Out>
__device__ __forceinline__ void router_input(const float *dy_te, const T *w_ed, Out *dx_td, u32 rows,
                                             u32 experts, u32 inputs) {
    const u32 first_row = blockIdx.y * TILE, first_input = blockIdx.x * TILE;
    float sum[4][4] = {};
    multiply(
        sum, experts,
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 k = at % DEPTH, row = first_row + at / DEPTH;
            const bool inside = row < rows && first + k < experts;
            tile[k][at / DEPTH] = inside ? dy_te[u64(row) * experts + first + k] : 0.0f;
        },
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 k = at / TILE, input = first_input + at % TILE;
            const bool inside = input < inputs && first + k < experts;
            tile[k][at % TILE] = inside ? to_f32(w_ed[u64(first + k) * inputs + input]) : 0.0f;
        });
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            const u32 row = first_row + threadIdx.x / 16 * 4 + i;
            const u32 input = first_input + threadIdx.x % 16 * 4 + j;
            if (row < rows && input < inputs) dx_td[u64(row) * inputs + input] = from_f32<Out>(sum[i][j]);
        }
}

// parts[part, experts, in] = dy[rows of part, experts]^T * x[rows of part, in], in f32. Grid: tiles of
// inputs, tiles of experts, parts of `each` rows.
template <typename T>
__device__ __forceinline__ void router_weight(const float *dy_te, const T *x_td, float *parts, u32 rows,
                                              u32 each, u32 experts, u32 inputs) {
    const u32 begin = blockIdx.z * each, end = min(rows, begin + each);
    const u32 first_expert = blockIdx.y * TILE, first_input = blockIdx.x * TILE;
    float sum[4][4] = {};
    multiply(
        sum, end - begin,
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 row = begin + first + at / TILE, expert = first_expert + at % TILE;
            const bool inside = row < end && expert < experts;
            tile[at / TILE][at % TILE] = inside ? dy_te[u64(row) * experts + expert] : 0.0f;
        },
        [&](float (&tile)[DEPTH][TILE + 4], u32 at, u32 first) {
            const u32 row = begin + first + at / TILE, input = first_input + at % TILE;
            const bool inside = row < end && input < inputs;
            tile[at / TILE][at % TILE] = inside ? to_f32(x_td[u64(row) * inputs + input]) : 0.0f;
        });
    parts += u64(blockIdx.z) * experts * inputs;
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 4; j++) {
            const u32 expert = first_expert + threadIdx.x / 16 * 4 + i;
            const u32 input = first_input + threadIdx.x % 16 * 4 + j;
            if (expert < experts && input < inputs) parts[u64(expert) * inputs + input] = sum[i][j];
        }
}

// dw (+)= the sum of parts, in their order. Launch: a thread for each element.
template <typename Out>
__device__ __forceinline__ void router_sum(const float *parts, Out *dw, u32 count, u32 elements,
                                           u32 accumulate) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= elements) return;
    float sum = 0.0f;
    for (u32 part = 0; part < count; part++) sum += parts[u64(part) * elements + at];
    dw[at] = from_f32<Out>(accumulate ? to_f32(dw[at]) + sum : sum);
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
        forward(x, w, bias, offsets, y, experts, outputs, inputs);                                          \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        backward_input##NAME(const T *__restrict__ dy, const T *__restrict__ w,                             \
                             const u32 *__restrict__ offsets, Out *__restrict__ dx, u32 experts,            \
                             u32 outputs, u32 inputs) {                                                     \
        backward_input(dy, w, offsets, dx, experts, outputs, inputs);                                       \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        backward_weight##NAME(const T *__restrict__ dy, const T *__restrict__ x,                            \
                              const u32 *__restrict__ offsets, Out *__restrict__ dw, u32 outputs,           \
                              u32 inputs, u32 accumulate) {                                                 \
        backward_weight(dy, x, offsets, dw, outputs, inputs, accumulate);                                   \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        backward_bias##NAME(const T *__restrict__ dy, const float *__restrict__ weights,                    \
                            const u32 *__restrict__ sources, const u32 *__restrict__ offsets,               \
                            Out *__restrict__ bias, u32 outputs, u32 accumulate) {                          \
        backward_bias(dy, weights, sources, offsets, bias, outputs, accumulate);                            \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        router_input##NAME(const float *__restrict__ dy, const T *__restrict__ w, Out *__restrict__ dx,     \
                           u32 rows, u32 experts, u32 inputs) {                                             \
        router_input(dy, w, dx, rows, experts, inputs);                                                     \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        router_sum##NAME(const float *__restrict__ parts, Out *__restrict__ dw, u32 count, u32 elements,    \
                         u32 accumulate) {                                                                  \
        router_sum(parts, dw, count, elements, accumulate);                                                 \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        router_bias##NAME(const float *__restrict__ dy, Out *__restrict__ bias, u32 rows, u32 experts,      \
                          u32 accumulate) {                                                                 \
        router_bias(dy, bias, rows, experts, accumulate);                                                   \
    }
#define FOR_TYPE(NAME, T)                                                                                   \
    KERNELS_OF(_##NAME, T, T)                                                                               \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        router_weight_##NAME(const float *__restrict__ dy, const T *__restrict__ x,                         \
                             float *__restrict__ parts, u32 rows, u32 each, u32 experts, u32 inputs) {      \
        router_weight(dy, x, parts, rows, each, experts, inputs);                                           \
    }
FOR_EACH_TYPE(FOR_TYPE)

// Results of half-precision operands in f32.
#define FOR_WIDE(NAME, T) KERNELS_OF(_wide_##NAME, T, float)
FOR_EACH_HALF(FOR_WIDE)
