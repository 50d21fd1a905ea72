// Moves of rows between the order of tokens and that of experts, and the weights of choices.
//
// Shapes: x_td, out_td; gathered_sd, y_sd; pair_s2f, x_sf, hidden_sf; bias_ed; weights_tp, choices_tp,
// slots_tp; sources_s. Letters as in CONTRIBUTING.md.
#include "gate.cuh"

#define WARPS (THREADS / WARP)
#define NONE 0xffffffffu

// gathered[slot] = x[sources[slot] / chosen], or zeros where there is no source. Launch: a warp for each row
// of experts. Floor: every row read and written once; reads of one row by several experts may hit L2.
template <int N, typename T>
__device__ __forceinline__ void gather(const T *x_td, const u32 *sources_s, T *gathered_sd, u32 slots,
                                       u32 columns, u32 chosen) {
    const u32 slot = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (slot >= slots) return;
    const u32 source = sources_s[slot];
    const T *from = x_td + (source == NONE ? 0 : u64(source / chosen) * columns);
    T *to = gathered_sd + u64(slot) * columns;
    for (u32 at = threadIdx.x % WARP * N; at < columns; at += WARP * N)
        store<N>(to + at, source == NONE ? Vector<T, N>{} : load<N>(from + at));
}

// out[row] = the sum over choices of y[slots[choice]] and, if there is a bias, weight * bias of its expert,
// in the order of the choices. Launch: a warp for each row.
template <int N, typename T, typename Out>
__device__ __forceinline__ void combine(const T *y_sd, const T *bias_ed, const u32 *slots_tp,
                                        const u32 *choices_tp, const float *weights_tp, Out *out_td, u32 rows,
                                        u32 columns, u32 chosen) {
    const u32 row = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    for (u32 at = threadIdx.x % WARP * N; at < columns; at += WARP * N) {
        Floats<N> sum = {};
        for (u32 choice = row * chosen; choice < (row + 1) * chosen; choice++) {
            const Floats<N> own = read<N>(y_sd + u64(slots_tp[choice]) * columns + at);
#pragma unroll
            for (int i = 0; i < N; i++) sum.at[i] += own.at[i];
            if (!bias_ed) continue;
            const Floats<N> offset = read<N>(bias_ed + u64(choices_tp[choice]) * columns + at);
            const float weight = weights_tp[choice];
#pragma unroll
            for (int i = 0; i < N; i++) sum.at[i] += weight * offset.at[i];
        }
        write(out_td + u64(row) * columns + at, sum);
    }
}

// hidden[slot] *= the weight of its choice. Launch: a warp for each row of experts.
template <int N, typename T>
__device__ __forceinline__ void weigh(T *hidden_sf, const float *weights_tp, const u32 *sources_s, u32 slots,
                                      u32 columns) {
    const u32 slot = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (slot >= slots) return;
    const float weight = sources_s[slot] == NONE ? 0.0f : weights_tp[sources_s[slot]];
    T *row = hidden_sf + u64(slot) * columns;
    for (u32 at = threadIdx.x % WARP * N; at < columns; at += WARP * N) {
        Floats<N> values = read<N>(row + at);
#pragma unroll
        for (int i = 0; i < N; i++) values.at[i] *= weight;
        write(row + at, values);
    }
}

// products[slot] = the sum over columns of the gate's result and `dh`, its gradient. Launch: a warp for each
// row of experts.
template <typename Function, typename Form, typename T>
__device__ __forceinline__ void gate_dot(const T *pair_s2f, const T *dh_sf, float *products_s, u32 slots,
                                         u32 columns, Form form) {
    const u32 slot = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (slot >= slots) return;
    pair_s2f += u64(slot) * 2 * columns, dh_sf += u64(slot) * columns;
    float sum = 0.0f;
    for (u32 at = threadIdx.x % WARP; at < columns; at += WARP) {
        const float gate = form.gate(to_f32(pair_s2f[at])), up = form.up(to_f32(pair_s2f[columns + at]));
        sum += Function::value(gate) * up * to_f32(dh_sf[at]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) products_s[slot] = sum;
}

// hidden[slot] = function(x[slot]) times the weight of its choice. Launch: a warp for each row of experts.
template <int N, typename Function, typename T>
__device__ __forceinline__ void activate(const T *x_sf, T *hidden_sf, const float *weights_tp,
                                         const u32 *sources_s, u32 slots, u32 columns) {
    const u32 slot = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (slot >= slots) return;
    const float weight = sources_s[slot] == NONE ? 0.0f : weights_tp[sources_s[slot]];
    const u64 row = u64(slot) * columns;
    for (u32 at = threadIdx.x % WARP * N; at < columns; at += WARP * N) {
        Floats<N> values = read<N>(x_sf + row + at);
#pragma unroll
        for (int i = 0; i < N; i++) values.at[i] = Function::value(values.at[i]) * weight;
        write(hidden_sf + row + at, values);
    }
}

// products[slot] = the sum over columns of function(x) and `dh`, the gradient of hidden. Then x holds its
// gradient, and dh holds hidden. Launch: a warp for each row of experts.
template <typename Function, typename T>
__device__ __forceinline__ void activate_gradient(T *x_sf, T *dh_sf, float *products_s,
                                                  const float *weights_tp, const u32 *sources_s, u32 slots,
                                                  u32 columns) {
    const u32 slot = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (slot >= slots) return;
    const float weight = sources_s[slot] == NONE ? 0.0f : weights_tp[sources_s[slot]];
    x_sf += u64(slot) * columns, dh_sf += u64(slot) * columns;
    float sum = 0.0f;
    for (u32 at = threadIdx.x % WARP; at < columns; at += WARP) {
        const float x = to_f32(x_sf[at]), dh = to_f32(dh_sf[at]), value = Function::value(x);
        sum += value * dh;
        x_sf[at] = from_f32<T>(Function::gradient(dh * weight, x));
        dh_sf[at] = from_f32<T>(value * weight);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) products_s[slot] = sum;
}

// gradients[choice] = of_slots[slots[choice]], plus dy[row] · bias of the choice's expert if there is a bias.
// Launch: a warp for each choice.
template <typename T>
__device__ __forceinline__ void weight_gradients(const float *of_slots_s, const T *dy_td, const T *bias_ed,
                                                 const u32 *slots_tp, const u32 *choices_tp,
                                                 float *gradients_tp, u32 total, u32 columns, u32 chosen) {
    const u32 choice = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (choice >= total) return;
    float sum = 0.0f;
    if (bias_ed) {
        const T *row = dy_td + u64(choice / chosen) * columns,
                *own = bias_ed + u64(choices_tp[choice]) * columns;
        for (u32 at = threadIdx.x % WARP; at < columns; at += WARP) sum += to_f32(row[at]) * to_f32(own[at]);
        sum = warp_sum(sum);
    }
    if (threadIdx.x % WARP == 0) gradients_tp[choice] = of_slots_s[slots_tp[choice]] + sum;
}

// Rows of an expert's adapter as blocks of its matrix: element `at` of the packed rows, of `rank` columns,
// lies at the result in the matrix, which has `adapted` blocks side by side, one for each bit of `parts` that
// is set.
__device__ __forceinline__ u64 element_of_matrix(u64 at, u32 rows, u32 rank, u32 all, u32 adapted,
                                                 u32 parts) {
    const u64 packed_row = at / rank;
    const u32 row = packed_row % rows, block = packed_row / rows, index = block % adapted;
    for (u32 i = 0; i < index; i++) parts &= parts - 1;
    const u64 matrix_row = (u64(block / adapted) * all + __ffs(parts) - 1) * rows + row;
    return (matrix_row * adapted + index) * rank + at % rank;
}

// x += bias in each row. Launch: a thread for each element.
KERNEL __launch_bounds__(THREADS)
    add_bias(float *__restrict__ x, const float *__restrict__ bias, u64 elements, u32 columns) {
    const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x;
    if (at < elements) x[at] += bias[at % columns];
}

#define FOR_TYPE(NAME, T)                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        gather_##NAME(const T *__restrict__ x, const u32 *__restrict__ sources, T *__restrict__ gathered,   \
                      u32 slots, u32 columns, u32 chosen, u32 vector) {                                     \
        if (vector) gather<16 / sizeof(T)>(x, sources, gathered, slots, columns, chosen);                   \
        else gather<1>(x, sources, gathered, slots, columns, chosen);                                       \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        combine_##NAME(const T *__restrict__ y, const T *__restrict__ bias, const u32 *__restrict__ slots,  \
                       const u32 *__restrict__ choices, const float *__restrict__ weights,                  \
                       T *__restrict__ out, u32 rows, u32 columns, u32 chosen, u32 vector) {                \
        if (vector)                                                                                         \
            combine<16 / sizeof(T)>(y, bias, slots, choices, weights, out, rows, columns, chosen);          \
        else combine<1>(y, bias, slots, choices, weights, out, rows, columns, chosen);                      \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        weigh_##NAME(T *__restrict__ hidden, const float *__restrict__ weights,                             \
                     const u32 *__restrict__ sources, u32 slots, u32 columns, u32 vector) {                 \
        if (vector) weigh<16 / sizeof(T)>(hidden, weights, sources, slots, columns);                        \
        else weigh<1>(hidden, weights, sources, slots, columns);                                            \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        weight_gradients_##NAME(const float *__restrict__ of_slots, const T *__restrict__ dy,               \
                                const T *__restrict__ bias, const u32 *__restrict__ slots,                  \
                                const u32 *__restrict__ choices, float *__restrict__ gradients, u32 total,  \
                                u32 columns, u32 chosen) {                                                  \
        weight_gradients(of_slots, dy, bias, slots, choices, gradients, total, columns, chosen);            \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        spread_##NAME(const T *__restrict__ packed, T *__restrict__ matrix, u32 parts, u64 elements,        \
                      u32 rows, u32 rank, u32 all, u32 adapted, float scale) {                              \
        const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x;                                             \
        if (at < elements)                                                                                  \
            matrix[element_of_matrix(at, rows, rank, all, adapted, parts)] =                                \
                from_f32<T>(to_f32(packed[at]) * scale);                                                    \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        collect_##NAME(const T *__restrict__ matrix, T *__restrict__ packed, u32 parts, u64 elements,       \
                       u32 rows, u32 rank, u32 all, u32 adapted, float scale,                               \
                       u32 accumulate) {                                                                    \
        const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x;                                             \
        if (at >= elements) return;                                                                         \
        const float own = to_f32(matrix[element_of_matrix(at, rows, rank, all, adapted, parts)]) * scale;   \
        packed[at] = from_f32<T>(accumulate ? to_f32(packed[at]) + own : own);                              \
    }
FOR_EACH_TYPE(FOR_TYPE)

#define FOR_ACTIVATION(KIND, FUNCTION, NAME, T)                                                             \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        KIND##_dot_##NAME(const T *__restrict__ pair, const T *__restrict__ dh,                             \
                          float *__restrict__ products, u32 slots, u32 columns) {                           \
        gate_dot<FUNCTION<MathFor<T>::Math>>(pair, dh, products, slots, columns, Plain());                  \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        KIND##_clamped_dot_##NAME(const T *__restrict__ pair, const T *__restrict__ dh,                     \
                                  float *__restrict__ products, u32 slots, u32 columns, float limit,        \
                                  float offset) {                                                           \
        gate_dot<FUNCTION<MathFor<T>::Math>>(pair, dh, products, slots, columns, CLAMP(limit, offset));     \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        KIND##_rows_##NAME(const T *__restrict__ x, T *__restrict__ hidden,                                 \
                           const float *__restrict__ weights, const u32 *__restrict__ sources, u32 slots,   \
                           u32 columns, u32 vector) {                                                       \
        typedef FUNCTION<MathFor<T>::Math> Function;                                                        \
        if (vector) activate<16 / sizeof(T), Function>(x, hidden, weights, sources, slots, columns);        \
        else activate<1, Function>(x, hidden, weights, sources, slots, columns);                            \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        KIND##_rows_gradient_##NAME(T *__restrict__ x, T *__restrict__ dh, float *__restrict__ products,    \
                                    const float *__restrict__ weights, const u32 *__restrict__ sources,     \
                                    u32 slots, u32 columns) {                                               \
        activate_gradient<FUNCTION<MathFor<T>::Math>>(x, dh, products, weights, sources, slots, columns);   \
    }
#define FOR_GATE(NAME, T) FOR_EACH_ACTIVATION(FOR_ACTIVATION, NAME, T)
FOR_EACH_TYPE(FOR_GATE)

// Sums of half-precision rows in f32.
#define FOR_WIDE(NAME, T)                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        combine_wide_##NAME(const float *__restrict__ y, const T *__restrict__ bias,                        \
                            const u32 *__restrict__ slots, const u32 *__restrict__ choices,                 \
                            const float *__restrict__ weights, float *__restrict__ out, u32 rows,           \
                            u32 columns, u32 chosen, u32) {                                                 \
        const u32 row = blockIdx.x * WARPS + threadIdx.x / WARP;                                            \
        if (row >= rows) return;                                                                            \
        for (u32 at = threadIdx.x % WARP; at < columns; at += WARP) {                                       \
            float sum = 0.0f;                                                                               \
            for (u32 choice = row * chosen; choice < (row + 1) * chosen; choice++) {                        \
                sum += y[u64(slots[choice]) * columns + at];                                                \
                if (bias) sum += weights[choice] * to_f32(bias[u64(choices[choice]) * columns + at]);       \
            }                                                                                               \
            out[u64(row) * columns + at] = sum;                                                             \
        }                                                                                                   \
    }
FOR_EACH_HALF(FOR_WIDE)
