// Batch normalisation of channels-last arrays, [rows, channels]: y = relu((x - mean) * rstd * weight + bias +
// residual), and its gradients. rstd is the reciprocal standard deviation, 1 / sqrt(variance + epsilon).
//
// Shapes: x_tc, y_tc, residual_tc and their gradients, with a row t for each pixel; weight_c, bias_c,
// statistics_c. Letters as in CONTRIBUTING.md.
#include "batch_norm.cuh"

// Floor: `moments` x once; `apply` x (and residual) in, y out; `gradient_sums` dy and x (and output) in (and
// g out); `input_gradient` dy and x (and output) in, dx out.

// A number near the mean of N channels, from which x is measured, so that its squares do not cancel: the mean
// of four rows.
template <int N, typename T>
__device__ __forceinline__ Floats<N> pivot(const T *x, u32 rows, u32 channels, u32 channel) {
    Floats<N> sum = {};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const Floats<N> values = read<N>(x + u64(rows / 4 * i) * channels + channel);
#pragma unroll
        for (int j = 0; j < N; j++) sum.at[j] += values.at[j];
    }
#pragma unroll
    for (int j = 0; j < N; j++) sum.at[j] *= 0.25f;
    return sum;
}

// partial[run][0][channel] = sum of x - pivot, partial[run][1][channel] = sum of its squares.
template <int N, typename T>
__device__ __forceinline__ void moments(const T *x, float *partial, u32 rows, u32 channels, u32 lanes) {
    const Owned<N> own(lanes, channels);
    Floats<N> sum = {}, square = {};
    if (!own.idle) {
        const Floats<N> around = pivot<N>(x, rows, channels, own.channel);
        own.template rows<true, Flight<T>::ROWS>(
            rows, [&](u64 at) { return Held<T, N, 1>{{load<N>(x + at)}}; },
            [&](u64, const Held<T, N, 1> &held) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float off = held.at(0, i) - around.at[i];
                    sum.at[i] += off;
                    square.at[i] = fmaf(off, off, square.at[i]);
                }
            });
    }
    float *sums = partial + u64(blockIdx.x) * 2 * channels;
    add_strands(own, sum, sums);
    add_strands(own, square, sums + channels);
}

// Adds the runs of `moments`.
template <typename T>
__device__ __forceinline__ void statistics(const T *x, const float *partial, float *means, float *rstds,
                                           float *record, u32 rows, u32 channels, u32 runs, float epsilon) {
    const Sums sums(partial, channels, runs);
    if (!sums.writes) return;
    const float scale = 1.0f / rows, off = sums.first * scale;
    const float mean = pivot<1>(x, rows, channels, sums.channel).at[0] + off;
    const float squares = fmaxf(sums.second - sums.first * off, 0.0f);
    means[sums.channel] = mean;
    rstds[sums.channel] = 1.0f / sqrtf(squares * scale + epsilon);
    if (record) {
        record[sums.channel] = mean;
        record[channels + sums.channel] = squares / max(rows - 1, 1u);
    }
}

// What belongs to N channels: a row becomes fmaf(x - mean, scale, shift).
template <int N> struct Affine {
    Floats<N> mean, scale, shift;
    template <typename T>
    __device__ __forceinline__ Affine(const T *weight, const T *bias, const float *means, const float *rstds,
                                      u32 channel)
        : mean(read<N>(means + channel)), scale(read<N>(weight + channel)) {
        const Floats<N> rstd = read<N>(rstds + channel);
#pragma unroll
        for (int i = 0; i < N; i++) scale.at[i] *= rstd.at[i];
        if (bias) shift = read<N>(bias + channel);
    }
    __device__ __forceinline__ float normal(float x, int i) const {
        return fmaf(x - mean.at[i], scale.at[i], shift.at[i]);
    }
};

// `spread` is rstd, or a variance if epsilon is not negative.
template <int N, bool RESIDUAL, typename T>
__device__ __forceinline__ void apply(const T *x, const T *residual, const T *weight, const T *bias,
                                      const float *means, const float *spread, T *y, u32 rows, u32 channels,
                                      u32 lanes, float epsilon, u32 relu) {
    const Owned<N> own(lanes, channels);
    if (own.idle) return;
    Affine<N> affine(weight, bias, means, spread, own.channel);
    if (epsilon >= 0.0f) {
        const Floats<N> weights = read<N>(weight + own.channel), variances = read<N>(spread + own.channel);
#pragma unroll
        for (int i = 0; i < N; i++) {
            affine.scale.at[i] = weights.at[i] * (1.0f / sqrtf(variances.at[i] + epsilon));
        }
    }
    own.template rows<false, Flight<T>::ROWS>(
        rows,
        [&](u64 at) {
            Held<T, N, 1 + RESIDUAL> held;
            held.of[0] = load<N>(x + at);
            if constexpr (RESIDUAL) held.of[1] = load<N>(residual + at);
            return held;
        },
        [&](u64 at, const Held<T, N, 1 + RESIDUAL> &held) {
            Floats<N> out;
#pragma unroll
            for (int i = 0; i < N; i++) {
                float value = affine.normal(held.at(0, i), i);
                if constexpr (RESIDUAL) value += held.at(1, i);
                // A comparison lets NaN pass, as a maximum would not.
                out.at[i] = relu && value < 0.0f ? 0.0f : value;
            }
            write(y + at, out);
        });
}

// Where ReLU passes its gradient: everywhere if there is none; where the output, which is read, is positive;
// or where the output is that `apply` computes from x, without a residual.
enum Passes { EVERYWHERE, BY_OUTPUT, BY_INPUT };

// The largest magnitude that T rounds to 0.
template <typename T> __device__ __forceinline__ float vanishing() { return 0.0f; }
template <> __device__ __forceinline__ float vanishing<bf16>() { return 0x1p-134f; }
template <> __device__ __forceinline__ float vanishing<f16>() { return 0x1p-25f; }

// A row of dy, x and, if it is read, the output.
template <typename T, int N, Passes PASSES> struct Gradient {
    Held<T, N, PASSES == BY_OUTPUT ? 3 : 2> held;
    __device__ __forceinline__ Gradient(const T *dy, const T *x, const T *output, u64 at) {
        held.of[0] = load<N>(dy + at);
        held.of[1] = load<N>(x + at);
        if constexpr (PASSES == BY_OUTPUT) held.of[2] = load<N>(output + at);
    }
    __device__ __forceinline__ Gradient() {}
    __device__ __forceinline__ float x(int i) const { return held.at(1, i); }
    // dy where ReLU passes it.
    __device__ __forceinline__ float g(const Affine<N> &affine, int i) const {
        const float dy = held.at(0, i);
        if constexpr (PASSES == BY_OUTPUT) return held.at(2, i) > 0.0f ? dy : 0.0f;
        if constexpr (PASSES == BY_INPUT) return affine.normal(x(i), i) > vanishing<T>() ? dy : 0.0f;
        return dy;
    }
};

// partial[run][0][channel] = sum of g * (x - mean), partial[run][1][channel] = sum of g; masked = g, if
// given. `masked` may be `dy`.
template <int N, Passes PASSES, typename T>
__device__ __forceinline__ void gradient_sums(const T *dy, const T *output, const T *x, const T *weight,
                                              const T *bias, const float *means, const float *rstds,
                                              T *masked, float *partial, u32 rows, u32 channels, u32 lanes) {
    const Owned<N> own(lanes, channels);
    Floats<N> products = {}, sum = {};
    if (!own.idle) {
        const Affine<N> affine(weight, bias, means, rstds, own.channel);
        using Row = Gradient<T, N, PASSES>;
        own.template rows<true, Flight<T>::ROWS>(
            rows, [&](u64 at) { return Row(dy, x, output, at); },
            [&](u64 at, const Row &row) {
                Floats<N> g;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    g.at[i] = row.g(affine, i);
                    products.at[i] = fmaf(g.at[i], row.x(i) - affine.mean.at[i], products.at[i]);
                    sum.at[i] += g.at[i];
                }
                if (masked) write(masked + at, g);
            });
    }
    float *sums = partial + u64(blockIdx.x) * 2 * channels;
    add_strands(own, products, sums);
    add_strands(own, sum, sums + channels);
}

// Adds the runs of `gradient_sums`: sums[0] = sum of g * (x - mean) * rstd, sums[1] = sum of g.
KERNEL __launch_bounds__(THREADS)
    finish_gradient_sums(const float *__restrict__ partial, const float *__restrict__ rstds,
                         float *__restrict__ results, u32 channels, u32 runs) {
    const Sums sums(partial, channels, runs);
    if (!sums.writes) return;
    results[sums.channel] = sums.first * rstds[sums.channel];
    results[channels + sums.channel] = sums.second;
}

// dx = weight * rstd * (g - sums[1] / rows - (x - mean) * rstd * sums[0] / rows); `dx` may be `dy`.
template <int N, Passes PASSES, typename T>
__device__ __forceinline__ void input_gradient(const T *dy, const T *output, const T *x, const T *weight,
                                               const T *bias, const float *means, const float *rstds,
                                               const float *sums, T *dx, u32 rows, u32 channels, u32 lanes) {
    const Owned<N> own(lanes, channels);
    if (own.idle) return;
    const Affine<N> affine(weight, bias, means, rstds, own.channel);
    const Floats<N> rstd = read<N>(rstds + own.channel);
    Floats<N> slope = read<N>(sums + own.channel), plain = read<N>(sums + channels + own.channel);
    const float scale = 1.0f / rows;
#pragma unroll
    for (int i = 0; i < N; i++) {
        slope.at[i] *= scale * rstd.at[i];
        plain.at[i] *= scale;
    }
    using Row = Gradient<T, N, PASSES>;
    own.template rows<false, Flight<T>::ROWS>(
        rows, [&](u64 at) { return Row(dy, x, output, at); },
        [&](u64 at, const Row &row) {
            Floats<N> out;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float off = row.x(i) - affine.mean.at[i];
                const float centred = row.g(affine, i) - plain.at[i];
                out.at[i] = affine.scale.at[i] * fmaf(-slope.at[i], off, centred);
            }
            write(dx + at, out);
        });
}

// weight (+)= sums[0], bias (+)= sums[1].
template <typename Out>
__device__ __forceinline__ void add_sums(const float *sums, Out *weight, Out *bias, u32 channels,
                                         u32 to_weight, u32 to_bias) {
    const u32 channel = blockIdx.x * THREADS + threadIdx.x;
    if (channel >= channels) return;
    const float product = sums[channel], plain = sums[channels + channel];
    weight[channel] = from_f32<Out>(to_weight ? to_f32(weight[channel]) + product : product);
    bias[channel] = from_f32<Out>(to_bias ? to_f32(bias[channel]) + plain : plain);
}

// Vectors of WIDE channels, or single ones.
#define WIDE_OR_SINGLE(FUNCTION, ...) \
    if (vector)                          \
        FUNCTION<WIDE>(__VA_ARGS__);     \
    else                                 \
        FUNCTION<1>(__VA_ARGS__);
// FUNCTION<N, CASE>.
#define CASE_OF(FUNCTION, CASE, ...)       \
    if (vector)                            \
        FUNCTION<WIDE, CASE>(__VA_ARGS__); \
    else                                   \
        FUNCTION<1, CASE>(__VA_ARGS__);
#define CASE_OF_RELU(FUNCTION, ...)                   \
    if (output) {                                        \
        CASE_OF(FUNCTION, BY_OUTPUT, __VA_ARGS__)     \
    } else if (bias) {                                   \
        CASE_OF(FUNCTION, BY_INPUT, __VA_ARGS__)      \
    } else {                                             \
        CASE_OF(FUNCTION, EVERYWHERE, __VA_ARGS__)    \
    }

#define BATCH_NORM(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS, RESIDENT)                                                              \
        moments_##NAME(const T *__restrict__ x, float *__restrict__ partial, u32 rows, u32 channels,         \
                       u32 lanes, u32 vector) {                                                              \
        WIDE_OR_SINGLE(moments, x, partial, rows, channels, lanes)                                        \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        statistics_##NAME(const T *__restrict__ x, const float *__restrict__ partial,                        \
                          float *__restrict__ means, float *__restrict__ rstds, float *__restrict__ record,  \
                          u32 rows, u32 channels, u32 runs, float epsilon) {                                 \
        statistics(x, partial, means, rstds, record, rows, channels, runs, epsilon);                         \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS, RESIDENT)                                                              \
        apply_##NAME(const T *__restrict__ x, const T *__restrict__ residual, const T *__restrict__ weight,  \
                     const T *__restrict__ bias, const float *__restrict__ means,                            \
                     const float *__restrict__ spread, T *__restrict__ y, u32 rows, u32 channels, u32 lanes, \
                     u32 vector, float epsilon, u32 relu) {                                                  \
        if (residual) {                                                                                      \
            CASE_OF(apply, true, x, residual, weight, bias, means, spread, y, rows, channels, lanes,      \
                    epsilon, relu)                                                                           \
        } else {                                                                                             \
            CASE_OF(apply, false, x, residual, weight, bias, means, spread, y, rows, channels, lanes,     \
                    epsilon, relu)                                                                           \
        }                                                                                                    \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS, RESIDENT)                                                              \
        gradient_sums_##NAME(const T *dy, const T *__restrict__ output, const T *__restrict__ x,             \
                             const T *__restrict__ weight, const T *__restrict__ bias,                       \
                             const float *__restrict__ means, const float *__restrict__ rstds, T *masked,    \
                             float *__restrict__ partial, u32 rows, u32 channels, u32 lanes, u32 vector) {   \
        CASE_OF_RELU(gradient_sums, dy, output, x, weight, bias, means, rstds, masked, partial, rows,     \
                     channels, lanes)                                                                        \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS, RESIDENT)                                                              \
        input_gradient_##NAME(const T *dy, const T *__restrict__ output, const T *__restrict__ x,            \
                              const T *__restrict__ weight, const T *__restrict__ bias,                      \
                              const float *__restrict__ means, const float *__restrict__ rstds,              \
                              const float *__restrict__ sums, T *dx, u32 rows, u32 channels, u32 lanes,      \
                              u32 vector) {                                                                  \
        CASE_OF_RELU(input_gradient, dy, output, x, weight, bias, means, rstds, sums, dx, rows, channels, \
                     lanes)                                                                                  \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        add_sums_##NAME(const float *__restrict__ sums, T *__restrict__ weight, T *__restrict__ bias,        \
                        u32 channels, u32 to_weight, u32 to_bias) {                                          \
        add_sums(sums, weight, bias, channels, to_weight, to_bias);                                          \
    }

FOR_EACH_TYPE(BATCH_NORM)
