// Batch normalisation of channels-last arrays, [rows, channels]: y = relu((x - mean) * rstd * weight + bias +
// residual), and its gradients. rstd is the reciprocal standard deviation, 1 / sqrt(variance + epsilon).
#include "columns.cuh"

// Launch: a block of THREADS owns `lanes` vectors of N channels, side by side, and rows of its own; thread
// (lane, strand) processes every strand-th of them, four in flight, so that what belongs to its channels
// stays in registers. Sums: grid [runs, tiles], a run of rows per block; the strands are added in order, then
// the runs by a second kernel. Others: grid [blocks, tiles], ROWS rows per thread. Floor: `moments` x once;
// `apply` x (and residual) in, y out; `gradient_sums` dy, x (and output) in (and g out); `input_gradient` the
// same in, dx out.
#define FLIGHT 4

// The vector of channels and the rows of a thread.
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
    __device__ __forceinline__ u64 at(u32 row) const { return u64(row) * channels + channel; }
    // Calls `visit` for the thread's rows of first..end, FLIGHT loads ahead. `load` returns what a row holds.
    template <typename Held, typename Load, typename Visit>
    __device__ __forceinline__ void rows(u32 first, u32 end, Load load, Visit visit) const {
        for (u32 row = first + strand; row < end; row += FLIGHT * strands) {
            Held held[FLIGHT];
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                if (row + i * strands < end) held[i] = load(at(row + i * strands));
            }
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                if (row + i * strands < end) visit(at(row + i * strands), held[i]);
            }
        }
    }
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
            for (u32 other = 0; other < own.strands; other++) total += sums[other * width + column];
            partial[first + column] = total;
        }
    }
}

// partial[run][0][channel] = sum of x - pivot, partial[run][1][channel] = sum of its squares.
template <int N, typename T>
__device__ __forceinline__ void moments(const T *x, float *partial, u32 rows, u32 channels, u32 lanes,
                                        u32 rows_per_run) {
    const Owned<N> own(lanes, channels);
    const u32 first = blockIdx.x * rows_per_run, end = min(rows, first + rows_per_run);
    Floats<N> sum = {}, square = {};
    if (!own.idle) {
        const Floats<N> around = pivot<N>(x, rows, channels, own.channel);
        own.template rows<Floats<N>>(
            first, end, [&](u64 at) { return read<N>(x + at); },
            [&](u64, const Floats<N> &values) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float off = values.at[i] - around.at[i];
                    sum.at[i] += off;
                    square.at[i] = fmaf(off, off, square.at[i]);
                }
            });
    }
    float *sums = partial + u64(blockIdx.x) * 2 * channels;
    add_strands(own, sum, sums);
    add_strands(own, square, sums + channels);
}

// Adds the runs of `moments` in order: a block owns TILE channels, STRANDS strands of runs.
template <typename T>
__device__ __forceinline__ void finish_moments(const T *x, const float *partial, float *means, float *rstds,
                                               float *record, u32 rows, u32 channels, u32 runs,
                                               float epsilon) {
    __shared__ float sums[2][STRANDS][TILE];
    const u32 lane = threadIdx.x % TILE, strand = threadIdx.x / TILE;
    const u32 channel = blockIdx.x * TILE + lane;
    float sum = 0.0f, square = 0.0f;
    if (channel < channels) {
#pragma unroll 4
        for (u32 run = strand; run < runs; run += STRANDS) {
            sum += partial[u64(run) * 2 * channels + channel];
            square += partial[(u64(run) * 2 + 1) * channels + channel];
        }
    }
    sums[0][strand][lane] = sum;
    sums[1][strand][lane] = square;
    __syncthreads();
    if (strand > 0 || channel >= channels) return;
    sum = square = 0.0f;
#pragma unroll
    for (int other = 0; other < STRANDS; other++) {
        sum += sums[0][other][lane];
        square += sums[1][other][lane];
    }
    const float scale = 1.0f / rows, off = sum * scale;
    const float mean = pivot<1>(x, rows, channels, channel).at[0] + off;
    const float squares = fmaxf(square - sum * off, 0.0f);
    means[channel] = mean;
    rstds[channel] = 1.0f / sqrtf(squares * scale + epsilon);
    if (record) {
        record[channel] = mean;
        record[channels + channel] = squares / max(rows - 1, 1u);
    }
}

template <int N> struct Pair {
    Floats<N> x, other;
};

// `spread` is rstd, or a variance if epsilon is not negative.
template <int N, typename T>
__device__ __forceinline__ void apply(const T *x, const T *residual, const T *weight, const T *bias,
                                      const float *means, const float *spread, T *y, u32 rows, u32 channels,
                                      u32 lanes, float epsilon, u32 relu) {
    const Owned<N> own(lanes, channels);
    if (own.idle) return;
    const Floats<N> mean = read<N>(means + own.channel), shifts = read<N>(bias + own.channel);
    Floats<N> scales = read<N>(weight + own.channel), rstd = read<N>(spread + own.channel);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (epsilon >= 0.0f) rstd.at[i] = 1.0f / sqrtf(rstd.at[i] + epsilon);
        scales.at[i] *= rstd.at[i];
    }
    const u32 block = own.strands * ROWS, first = blockIdx.x * block;
    own.template rows<Pair<N>>(
        first, min(rows, first + block),
        [&](u64 at) {
            Pair<N> held = {read<N>(x + at), {}};
            if (residual) held.other = read<N>(residual + at);
            return held;
        },
        [&](u64 at, Pair<N> &held) {
            Floats<N> out;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float normal = fmaf(held.x.at[i] - mean.at[i], scales.at[i], shifts.at[i]);
                const float value = normal + held.other.at[i];
                // A comparison lets NaN pass, as a maximum would not.
                out.at[i] = relu && value < 0.0f ? 0.0f : value;
            }
            write(y + at, out);
        });
}

template <int N> struct Triple {
    Floats<N> g, x;
};

// dy where the output is positive, and x.
template <int N, typename T>
__device__ __forceinline__ Triple<N> gradient(const T *dy, const T *output, const T *x, u64 at) {
    Triple<N> held = {read<N>(dy + at), read<N>(x + at)};
    if (output) {
        const Floats<N> outputs = read<N>(output + at);
#pragma unroll
        for (int i = 0; i < N; i++) held.g.at[i] = outputs.at[i] > 0.0f ? held.g.at[i] : 0.0f;
    }
    return held;
}

// partial[run][0][channel] = sum of g * (x - mean) * rstd, partial[run][1][channel] = sum of g; masked = g,
// if given. `masked` may be `dy`.
template <int N, typename T>
__device__ __forceinline__ void gradient_sums(const T *dy, const T *output, const T *x, const float *means,
                                              const float *rstds, T *masked, float *partial, u32 rows,
                                              u32 channels, u32 lanes, u32 rows_per_run) {
    const Owned<N> own(lanes, channels);
    const u32 first = blockIdx.x * rows_per_run, end = min(rows, first + rows_per_run);
    Floats<N> products = {}, sum = {};
    if (!own.idle) {
        const Floats<N> mean = read<N>(means + own.channel), rstd = read<N>(rstds + own.channel);
        own.template rows<Triple<N>>(
            first, end, [&](u64 at) { return gradient<N>(dy, output, x, at); },
            [&](u64 at, const Triple<N> &held) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float normal = (held.x.at[i] - mean.at[i]) * rstd.at[i];
                    products.at[i] = fmaf(held.g.at[i], normal, products.at[i]);
                    sum.at[i] += held.g.at[i];
                }
                if (masked) write(masked + at, held.g);
            });
    }
    float *sums = partial + u64(blockIdx.x) * 2 * channels;
    add_strands(own, products, sums);
    add_strands(own, sum, sums + channels);
}

// dx = weight * rstd * (g - sums[1] / rows - (x - mean) * rstd * sums[0] / rows); `dx` may be `dy`.
template <int N, typename T>
__device__ __forceinline__ void input_gradient(const T *dy, const T *output, const T *x, const T *weight,
                                               const float *means, const float *rstds, const float *sums,
                                               T *dx, u32 rows, u32 channels, u32 lanes) {
    const Owned<N> own(lanes, channels);
    if (own.idle) return;
    const Floats<N> mean = read<N>(means + own.channel), rstd = read<N>(rstds + own.channel);
    Floats<N> product = read<N>(sums + own.channel), plain = read<N>(sums + channels + own.channel);
    Floats<N> scales = read<N>(weight + own.channel);
    const float scale = 1.0f / rows;
#pragma unroll
    for (int i = 0; i < N; i++) {
        product.at[i] *= scale;
        plain.at[i] *= scale;
        scales.at[i] *= rstd.at[i];
    }
    const u32 block = own.strands * ROWS, first = blockIdx.x * block;
    own.template rows<Triple<N>>(
        first, min(rows, first + block), [&](u64 at) { return gradient<N>(dy, output, x, at); },
        [&](u64 at, const Triple<N> &held) {
            Floats<N> out;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float normal = (held.x.at[i] - mean.at[i]) * rstd.at[i];
                out.at[i] = scales.at[i] * (held.g.at[i] - plain.at[i] - normal * product.at[i]);
            }
            write(dx + at, out);
        });
}

// A function for vectors of 16 bytes, or for single elements.
#define WIDE_OR_SINGLE(T, FUNCTION, ...)           \
    if (vector)                                    \
        FUNCTION<16 / int(sizeof(T))>(__VA_ARGS__); \
    else                                           \
        FUNCTION<1>(__VA_ARGS__);

#define BATCH_NORM(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        moments_##NAME(const T *__restrict__ x, float *__restrict__ partial, u32 rows, u32 channels,         \
                       u32 lanes, u32 vector, u32 rows_per_run) {                                            \
        WIDE_OR_SINGLE(T, moments, x, partial, rows, channels, lanes, rows_per_run)                          \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        statistics_##NAME(const T *__restrict__ x, const float *__restrict__ partial,                        \
                          float *__restrict__ means, float *__restrict__ rstds, float *__restrict__ record,  \
                          u32 rows, u32 channels, u32 runs, float epsilon) {                                 \
        finish_moments(x, partial, means, rstds, record, rows, channels, runs, epsilon);                     \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        apply_##NAME(const T *__restrict__ x, const T *__restrict__ residual, const T *__restrict__ weight,  \
                     const T *__restrict__ bias, const float *__restrict__ means,                            \
                     const float *__restrict__ spread, T *__restrict__ y, u32 rows, u32 channels, u32 lanes, \
                     u32 vector, float epsilon, u32 relu) {                                                  \
        WIDE_OR_SINGLE(T, apply, x, residual, weight, bias, means, spread, y, rows, channels, lanes, epsilon,\
                       relu)                                                                                 \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        gradient_sums_##NAME(const T *dy, const T *__restrict__ output, const T *__restrict__ x,             \
                             const float *__restrict__ means, const float *__restrict__ rstds, T *masked,    \
                             float *__restrict__ partial, u32 rows, u32 channels, u32 lanes, u32 vector,     \
                             u32 rows_per_run) {                                                             \
        WIDE_OR_SINGLE(T, gradient_sums, dy, output, x, means, rstds, masked, partial, rows, channels, lanes,\
                       rows_per_run)                                                                         \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        input_gradient_##NAME(const T *dy, const T *__restrict__ output, const T *__restrict__ x,            \
                              const T *__restrict__ weight, const float *__restrict__ means,                 \
                              const float *__restrict__ rstds, const float *__restrict__ sums, T *dx,        \
                              u32 rows, u32 channels, u32 lanes, u32 vector) {                               \
        WIDE_OR_SINGLE(T, input_gradient, dy, output, x, weight, means, rstds, sums, dx, rows, channels,     \
                       lanes)                                                                                \
    }

FOR_EACH_TYPE(BATCH_NORM)
