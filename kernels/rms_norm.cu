// RMS normalisation of rows: y = x * rstd * weight, and its gradients. rstd is 1 / sqrt(mean square +
// epsilon).
//
// Shapes: x_td, branch_td, sum_td, y_td and their gradients; weight_d; rstds_t. Letters as in
// CONTRIBUTING.md.
#include "columns.cuh"
#include "held_rows.cuh"
#include "maximum.cuh"

// `cells`: null, or where the largest magnitude of y or dx goes.
// Launch: as in held_rows.cuh. Floor forward: x (and branch) in, y (and sum) out. Floor backward: dy, x (and
// dsum) in, dx out.

template <typename T, int GROUP, int HELD>
__device__ __forceinline__ void forward(const T *x_td, const T *branch_td, const T *weight_d, T *sum_td,
                                        T *y_td, float *rstds_t, u32 rows, u32 width, float epsilon,
                                        u32 *cells) {
    constexpr int N = Wide<T>::N;
    const RowPosition<T, GROUP> position(width);
    if (position.row >= rows) return;
    Maximum most;
    Row<T, GROUP, HELD> in;
    in.read(x_td + position.start, position.vectors, position.lane);
    if (branch_td) add_branch(in, position, branch_td, sum_td);
    in.forget();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (position.lane + i * GROUP < position.vectors) {
            const Floats<N> values = in.held[i].floats();
#pragma unroll
            for (int j = 0; j < N; j++) total = fmaf(values.at[j], values.at[j], total);
        }
    }
    const float rstd = 1.0f / sqrtf(group_sum<GROUP>(total) * (1.0f / width) + epsilon);
    in.forget();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 vector = position.lane + i * GROUP;
        if (vector < position.vectors) {
            Wide<T> held_weight, out;
            held_weight.read(weight_d + vector * N);
            Floats<N> values = in.held[i].floats();
            const Floats<N> weights = held_weight.floats();
#pragma unroll
            for (int j = 0; j < N; j++) values.at[j] = values.at[j] * rstd * weights.at[j];
            if (cells) most.add(values);
            out.round(values);
            out.write(y_td + position.start + vector * N);
        }
    }
    if (position.lane == 0) rstds_t[position.row] = rstd;
    if (cells) record<T>(most, cells);
}

// dx = rstd * (g - normal * mean(g * normal)) (+ dsum) with g = dy * weight, normal = x * rstd.
template <typename T, int GROUP, int HELD>
__device__ __forceinline__ void backward(const T *dy_td, const T *dsum_td, const T *x_td, const T *weight_d,
                                         const float *rstds_t, T *dx_td, u32 rows, u32 width, u32 *cells) {
    constexpr int N = Wide<T>::N;
    const RowPosition<T, GROUP> position(width);
    if (position.row >= rows) return;
    Maximum most;
    Row<T, GROUP, HELD> in, out;
    out.read(dy_td + position.start, position.vectors, position.lane);
    in.read(x_td + position.start, position.vectors, position.lane);
    const float rstd = rstds_t[position.row];
    float product = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 vector = position.lane + i * GROUP;
        if (vector < position.vectors) {
            Wide<T> held_weight;
            held_weight.read(weight_d + vector * N);
            const Floats<N> weights = held_weight.floats(), dys = out.held[i].floats(),
                            xs = in.held[i].floats();
#pragma unroll
            for (int j = 0; j < N; j++) product = fmaf(dys.at[j] * weights.at[j], xs.at[j] * rstd, product);
        }
    }
    const float mean_product = group_sum<GROUP>(product) * (1.0f / width);
    in.forget();
    out.forget();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 vector = position.lane + i * GROUP;
        if (vector < position.vectors) {
            Wide<T> held_weight, result;
            held_weight.read(weight_d + vector * N);
            Floats<N> values = {};
            if (dsum_td) {
                Wide<T> other;
                other.read(dsum_td + position.start + vector * N);
                values = other.floats();
            }
            const Floats<N> weights = held_weight.floats(), dys = out.held[i].floats(),
                            xs = in.held[i].floats();
#pragma unroll
            for (int j = 0; j < N; j++)
                values.at[j] += rstd * (dys.at[j] * weights.at[j] - xs.at[j] * rstd * mean_product);
            if (cells) most.add(values);
            result.round(values);
            result.write(dx_td + position.start + vector * N);
        }
    }
    if (cells) record<T>(most, cells);
}

// For any width. A thread visits the same elements in every pass, so it may read the sum that it wrote.
template <typename T>
__device__ __forceinline__ void forward_any(const T *x_td, const T *branch_td, const T *weight_d, T *sum_td,
                                            T *y_td, float *rstds_t, u32 width, float epsilon, u32 *cells) {
    const u64 start = u64(blockIdx.x) * width;
    const T *in = x_td + start;
    float total = 0.0f;
    for (u32 at = threadIdx.x; at < width; at += THREADS) {
        T value = in[at];
        if (branch_td) {
            value = from_f32<T>(to_f32(value) + to_f32(branch_td[start + at]));
            sum_td[start + at] = value;
        }
        total = fmaf(to_f32(value), to_f32(value), total);
    }
    if (branch_td) in = sum_td + start;
    const float rstd = 1.0f / sqrtf(group_sum<THREADS>(total) * (1.0f / width) + epsilon);
    Maximum most;
    for (u32 at = threadIdx.x; at < width; at += THREADS) {
        const float value = to_f32(in[at]) * rstd * to_f32(weight_d[at]);
        most.add(value);
        y_td[start + at] = from_f32<T>(value);
    }
    if (threadIdx.x == 0) rstds_t[blockIdx.x] = rstd;
    if (cells) record<T>(most, cells);
}

template <typename T>
__device__ __forceinline__ void backward_any(const T *dy_td, const T *dsum_td, const T *x_td,
                                             const T *weight_d, const float *rstds_t, T *dx_td, u32 width,
                                             u32 *cells) {
    const u64 start = u64(blockIdx.x) * width;
    const float rstd = rstds_t[blockIdx.x];
    float product = 0.0f;
    for (u32 at = threadIdx.x; at < width; at += THREADS)
        product =
            fmaf(to_f32(dy_td[start + at]) * to_f32(weight_d[at]), to_f32(x_td[start + at]) * rstd, product);
    const float mean_product = group_sum<THREADS>(product) * (1.0f / width);
    Maximum most;
    for (u32 at = threadIdx.x; at < width; at += THREADS) {
        const float g = to_f32(dy_td[start + at]) * to_f32(weight_d[at]);
        float value = rstd * (g - to_f32(x_td[start + at]) * rstd * mean_product);
        if (dsum_td) value += to_f32(dsum_td[start + at]);
        most.add(value);
        dx_td[start + at] = from_f32<T>(value);
    }
    if (cells) record<T>(most, cells);
}

// partial[run][column] = sum of dy * x * rstd.
template <int N, typename T>
__device__ __forceinline__ void parameter_sums(const T *dy, const T *x, const float *rstds, float *partial,
                                               u32 rows, u32 width, u32 rows_per_run) {
    const u32 lane = threadIdx.x % TILE, strand = threadIdx.x / TILE;
    const u32 vectors = width / N, vector = blockIdx.y * TILE + lane;
    const u32 first = blockIdx.x * rows_per_run;
    const u32 end = min(rows, first + rows_per_run);
    Floats<N> weight = {};
    if (vector < vectors) {
        const u64 column = u64(vector) * N;
#pragma unroll 4
        for (u32 row = first + strand; row < end; row += STRANDS) {
            const u64 at = u64(row) * width + column;
            const Floats<N> dys = read<N>(dy + at), xs = read<N>(x + at);
            const float rstd = rstds[row];
#pragma unroll
            for (int i = 0; i < N; i++) weight.at[i] = fmaf(dys.at[i], xs.at[i] * rstd, weight.at[i]);
        }
    }
    join(weight, partial + u64(blockIdx.x) * width, lane, strand, vector, vectors);
}

#define FORWARD_ARGUMENTS(T)                                                                    \
    const T *__restrict__ x, const T *__restrict__ branch, const T *__restrict__ weight, T *sum, \
        T *__restrict__ y, float *__restrict__ rstds, u32 rows, u32 width, float epsilon, u32 *cells
#define BACKWARD_ARGUMENTS(T)                                                          \
    const T *__restrict__ dy, const T *__restrict__ dsum, const T *__restrict__ x,     \
        const T *__restrict__ weight, const float *__restrict__ rstds, T *__restrict__ dx, \
        u32 rows, u32 width, u32 *cells
#define FORWARD_OPERANDS x, branch, weight, sum, y, rstds
#define BACKWARD_OPERANDS dy, dsum, x, weight, rstds, dx

#define PARAMETERS(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        weight_sums_##NAME(const T *__restrict__ dy, const T *__restrict__ x,                                \
                           const float *__restrict__ rstds, float *__restrict__ partial, u32 rows,           \
                           u32 width, u32 rows_per_run, u32 vector) {                                        \
        if (vector)                                                                                          \
            parameter_sums<16 / sizeof(T)>(dy, x, rstds, partial, rows, width, rows_per_run);                \
        else                                                                                                 \
            parameter_sums<1>(dy, x, rstds, partial, rows, width, rows_per_run);                             \
    }

FOR_EACH_TYPE(HELD_AND_OTHER_ROWS)
FOR_EACH_TYPE(PARAMETERS)
HELD_ROWS(f32, float, block, THREADS, 16)
