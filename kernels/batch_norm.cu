// Batch normalisation of channels-last arrays, [rows, channels]: y = relu((x - mean) * rstd * weight + bias +
// residual), and its gradients. rstd is the reciprocal standard deviation, 1 / sqrt(variance + epsilon).
#include "common.cuh"

// Launch: grid [blocks, tiles] of THREADS. A block owns `lanes` vectors of N channels, side by side; thread
// (lane, strand) keeps what belongs to its channels in registers and processes FLIGHT rows at once. The
// blocks of a tile take turns, so that all of them sweep the array together: sums from its last row to its
// first, the rest from the first, since L2 then still has the rows that the kernel before touched last. The
// host launches as many blocks as fit the GPU at once. Sums: the strands of a block are added in order, then
// the blocks (runs) by a second kernel. Floor: `moments` x once; `apply` x (and residual) in, y out;
// `gradient_sums` dy and x (and output) in (and g out); `input_gradient` dy and x (and output) in, dx out.

// Rows of a thread whose loads are on their way together: FLIGHT_BYTES of an array.
template <typename T> struct Flight {
    static const u32 ROWS = FLIGHT_BYTES / (WIDE * sizeof(T));
};

// The vector of channels of a thread, and its rows.
template <int N> struct Owned {
    u32 lanes, lane, strand, strands, channel, channels;
    bool idle;
    __device__ __forceinline__ Owned(u32 lanes, u32 channels) : lanes(lanes), channels(channels) {
        lane = threadIdx.x & (lanes - 1);
        strand = threadIdx.x / lanes;
        strands = THREADS / lanes;
        channel = (blockIdx.y * lanes + lane) * N;
        idle = channel >= channels;
    }
    // Calls `visit(at, load(at))` with the first element of each of the thread's rows; FLIGHT loads are issued
    // before the first is used.
    template <bool FROM_LAST, u32 FLIGHT, typename Load, typename Visit>
    __device__ __forceinline__ void rows(u32 rows, Load load, Visit visit) const {
        const u32 step = strands * FLIGHT, turns = (rows + step - 1) / step;
        const u64 next = u64(strands) * channels;
        for (u32 turn = blockIdx.x; turn < turns; turn += gridDim.x) {
            const u32 row = (FROM_LAST ? turns - 1 - turn : turn) * step + strand;
            u64 at = u64(row) * channels + channel;
            if (row + (FLIGHT - 1) * strands < rows) {
                decltype(load(at)) held[FLIGHT];
#pragma unroll
                for (u32 i = 0; i < FLIGHT; i++) held[i] = load(at + i * next);
#pragma unroll
                for (u32 i = 0; i < FLIGHT; i++) visit(at + i * next, held[i]);
            } else {
#pragma unroll 1
                for (u32 last = row; last < rows; last += strands, at += next) visit(at, load(at));
            }
        }
    }
};

// A row of ARRAYS arrays.
template <typename T, int N, int ARRAYS> struct Held {
    Vector<T, N> of[ARRAYS];
    __device__ __forceinline__ float at(int array, int i) const { return to_f32(of[array].at[i]); }
};

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

// Adds the strands' sums in order, a channel per thread, and writes the block's part of `partial`.
template <int N>
__device__ __forceinline__ void add_strands(const Owned<N> &own, const Floats<N> &mine, float *partial) {
    __shared__ float sums[THREADS * N];
    const u32 width = own.lanes * N;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) sums[own.strand * width + own.lane * N + i] = mine.at[i];
    __syncthreads();
    const u32 first = blockIdx.y * width;
    for (u32 column = threadIdx.x; column < width; column += THREADS) {
        if (first + column < own.channels) {
            float total = 0.0f;
#pragma unroll 8
            for (u32 other = 0; other < own.strands; other++) total += sums[other * width + column];
            partial[first + column] = total;
        }
    }
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

// The two sums of a channel over all runs of `partial`. A block owns WARPS channels: the runs that a thread
// adds are WARP apart, then a warp adds its lanes.
#define WARPS (THREADS / WARP)
struct Sums {
    u32 channel;
    float first, second;
    // Whether the thread is to write the channel's results.
    bool writes;
    __device__ __forceinline__ Sums(const float *partial, u32 channels, u32 runs) {
        __shared__ float sums[2][WARP][WARPS + 1];
        const u32 column = threadIdx.x % WARPS, strand = threadIdx.x / WARPS;
        channel = blockIdx.x * WARPS + column;
        first = second = 0.0f;
        if (channel < channels) {
#pragma unroll 4
            for (u32 run = strand; run < runs; run += WARP) {
                first += partial[u64(run) * 2 * channels + channel];
                second += partial[(u64(run) * 2 + 1) * channels + channel];
            }
        }
        sums[0][strand][column] = first;
        sums[1][strand][column] = second;
        __syncthreads();
        const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        channel = blockIdx.x * WARPS + warp;
        first = warp_sum(sums[0][lane][warp]);
        second = warp_sum(sums[1][lane][warp]);
        writes = lane == 0 && channel < channels;
    }
};

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
        for (int i = 0; i < N; i++) affine.scale.at[i] = weights.at[i] * (1.0f / sqrtf(variances.at[i] + epsilon));
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

// partial[run][0][channel] = sum of g * (x - mean), partial[run][1][channel] = sum of g; masked = g, if given.
// `masked` may be `dy`.
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
