// Causal depthwise convolutions of sequences: y[t] = f(bias + sum over taps of weight[tap] * x[t - width + 1
// + tap]), where f is the identity or SiLU. Inputs before a token's document are 0; those before a sequence
// are the rows of its halo, if there is one.
//
// Shapes: x_blc, dy_blc and theirs; weight_ck, where k is the width of at most TAPS; bias_c; documents_bl;
// halo[b][k - 1][c] and state[slot][k - 1][c], the oldest input first. Letters as in CONTRIBUTING.md.
#include "activation.cuh"
#include "columns.cuh"
#include "rotary.cuh"

#define TAPS 4
// Rows that a thread loads before it needs them.
#define AHEAD 4

// A thread has N channels of a run of rows. Rows of all sequences are numbered together; `reach` keeps a row
// from reading another document. Inputs stay in registers, so each is read once per run and width - 1 rows
// before it; the loads of AHEAD rows are in flight together while the rows before them are computed. Launch:
// THREADS threads, a thread for N channels of a run; neighbours have neighbouring channels. Floor: x in and y
// out once; backward: dy and x in, dx out.

// Weights by lag: at[0] belongs to the row itself, at[1] to the row before it.
template <int N> struct Taps {
    Floats<N> at[TAPS], bias;
    u32 width;
    template <typename T>
    __device__ __forceinline__ Taps(const T *weight_ck, const T *bias_c, u32 column, u32 width)
        : width(width) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            bias.at[i] = bias_c ? to_f32(bias_c[column + i]) : 0.0f;
            const T *weight_k = weight_ck + u64(column + i) * width;
            if (N > 1 && width == TAPS) {
                const Floats<TAPS> own = read<TAPS>(weight_k);
#pragma unroll
                for (int lag = 0; lag < TAPS; lag++) at[lag].at[i] = own.at[TAPS - 1 - lag];
            } else {
#pragma unroll
                for (u32 lag = 0; lag < TAPS; lag++)
                    at[lag].at[i] = lag < width ? to_f32(weight_k[width - 1 - lag]) : 0.0f;
            }
        }
    }
    // The number of rows before this one that it reads.
    __device__ __forceinline__ u32 reach(const u32 *documents_bl, u32 row, u32 time) const {
        return min(position(documents_bl, row, time), width - 1);
    }
    // The convolution before f, oldest input first.
    __device__ __forceinline__ Floats<N> sum(const Floats<N> (&window)[TAPS], u32 reach) const {
        Floats<N> result = bias;
#pragma unroll
        for (int lag = TAPS - 1; lag >= 0; lag--)
            if (u32(lag) <= reach)
#pragma unroll
                for (int i = 0; i < N; i++)
                    result.at[i] = fmaf(at[lag].at[i], window[lag].at[i], result.at[i]);
        return result;
    }
};

// Makes `next` the newest of a window of rows.
template <int N> __device__ __forceinline__ void push(Floats<N> (&window)[TAPS], const Floats<N> &next) {
#pragma unroll
    for (int lag = TAPS - 1; lag > 0; lag--) window[lag] = window[lag - 1];
    window[0] = next;
}

// Fills a window with the rows before `first`.
template <int N, typename T>
__device__ __forceinline__ void begin(Floats<N> (&window)[TAPS], const T *x_blc, const T *halo, u32 first,
                                      u32 time, u32 column, u32 channels, u32 width) {
    const u32 at = first % time;
#pragma unroll
    for (u32 lag = TAPS - 1; lag > 0; lag--) {
        Floats<N> before = {};
        if (lag < width && halo && lag > at)
            before = read<N>(halo + (u64(first / time + 1) * (width - 1) + at - lag) * channels + column);
        else if (lag < width && lag <= first)
            before = read<N>(x_blc + u64(first - lag) * channels + column);
        push(window, before);
    }
}

// The reaches of consecutive rows.
struct Reaches {
    const u32 *documents_bl;
    u32 at, time, width;
    __device__ __forceinline__ Reaches(const u32 *documents_bl, u32 first, u32 time, u32 width)
        : documents_bl(documents_bl), at(first % time), time(time), width(width) {}
    // Whether the next row is the first of a sequence.
    __device__ __forceinline__ bool starts() const { return at == 0; }
    // Returns the reach of `row`, which follows the row of the last call.
    __device__ __forceinline__ u32 next(u32 row) {
        const u32 own = documents_bl ? at - documents_bl[row] : at;
        at = at + 1 == time ? 0 : at + 1;
        return min(own, width - 1);
    }
};

// N channels of a row, unconverted, in whole words if there are several.
template <int N, typename T> struct Packed {
    static const int EACH = Word<T>::N;
    Vector<u32, N / EACH> words;
    __device__ __forceinline__ void read(const T *from) {
        words = load<N / EACH>(reinterpret_cast<const u32 *>(from));
    }
    __device__ __forceinline__ Floats<N> floats() const {
        Floats<N> values;
#pragma unroll
        for (int i = 0; i < N / EACH; i++) {
            values.at[EACH * i] = Word<T>::first(words.at[i]);
            if (EACH == 2) values.at[EACH * i + EACH - 1] = Word<T>::last(words.at[i]);
        }
        return values;
    }
};
template <typename T> struct Packed<1, T> {
    T value;
    __device__ __forceinline__ void read(const T *from) { value = *from; }
    __device__ __forceinline__ Floats<1> floats() const { return {to_f32(value)}; }
};

// N channels of AHEAD rows.
template <int N, typename T> struct Rows {
    Packed<N, T> at[AHEAD];
    // Loads the rows from `row` on that are before `end`.
    __device__ __forceinline__ void load_before(u32 end, const T *x_blc, u32 row, u32 column, u32 channels) {
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++)
            if (row + i < end) at[i].read(x_blc + u64(row + i) * channels + column);
    }
};

template <typename T> using Function = Silu<typename MathFor<T>::Math>;

// The gradient of the convolution before f, of a row whose input is the newest of the window.
template <int N, typename T>
__device__ __forceinline__ Floats<N> slope(const Taps<N> &taps, const Floats<N> (&window)[TAPS], u32 reach,
                                           Floats<N> dy, u32 silu) {
    if (silu) {
        const Floats<N> sums = taps.sum(window, reach);
#pragma unroll
        for (int i = 0; i < N; i++) dy.at[i] = Function<T>::gradient(dy.at[i], sums.at[i]);
    }
    return dy;
}

template <int N, typename T>
__device__ __forceinline__ void forward(const T *x_blc, const T *weight_ck, const T *bias_c,
                                        const u32 *documents_bl, const T *halo, T *y_blc, u32 rows, u32 time,
                                        u32 channels, u32 width, u32 rows_per_run, u32 silu) {
    const u32 item = blockIdx.x * THREADS + threadIdx.x, vectors = channels / N;
    const u32 column = item % vectors * N, first = item / vectors * rows_per_run;
    if (first >= rows) return;
    const u32 end = min(rows, first + rows_per_run);
    const Taps<N> taps(weight_ck, bias_c, column, width);
    Floats<N> window[TAPS] = {};
    begin(window, x_blc, halo, first, time, column, channels, width);
    Reaches reaches(documents_bl, first, time, width);
    Rows<N, T> next;
    next.load_before(end, x_blc, first, column, channels);
    for (u32 start = first; start < end; start += AHEAD) {
        const Rows<N, T> x = next;
        next.load_before(end, x_blc, start + AHEAD, column, channels);
#pragma unroll
        for (u32 ahead = 0; ahead < AHEAD; ahead++) {
            const u32 row = start + ahead;
            if (row >= end) break;
            if (halo && reaches.starts()) begin(window, x_blc, halo, row, time, column, channels, width);
            push(window, x.at[ahead].floats());
            Floats<N> y = taps.sum(window, reaches.next(row));
            if (silu)
#pragma unroll
                for (int i = 0; i < N; i++) y.at[i] = Function<T>::value(y.at[i]);
            write(y_blc + u64(row) * channels + column, y);
        }
    }
}

// Rows after a run add to its inputs' gradients too; terms are added in the order of their rows.
template <int N, typename T>
__device__ __forceinline__ void backward(const T *dy_blc, const T *x_blc, const T *weight_ck, const T *bias_c,
                                         const u32 *documents_bl, const T *halo, T *dx_blc, u32 rows,
                                         u32 time, u32 channels, u32 width, u32 rows_per_run, u32 silu) {
    const u32 item = blockIdx.x * THREADS + threadIdx.x, vectors = channels / N;
    const u32 column = item % vectors * N, first = item / vectors * rows_per_run;
    if (first >= rows) return;
    const u32 end = min(rows, first + rows_per_run);
    const Taps<N> taps(weight_ck, bias_c, column, width);
    // Gradients of the newest inputs, of which later rows' terms are missing.
    Floats<N> window[TAPS] = {}, sums[TAPS] = {};
    if (silu) begin(window, x_blc, halo, first, time, column, channels, width);
    Reaches reaches(documents_bl, first, time, width);
    const u32 last = min(rows, end + width - 1);
    Rows<N, T> next_dy, next_x = {};
    next_dy.load_before(last, dy_blc, first, column, channels);
    if (silu) next_x.load_before(last, x_blc, first, column, channels);
    for (u32 start = first; start < end + TAPS - 1; start += AHEAD) {
        const Rows<N, T> dy = next_dy, x = next_x;
        next_dy.load_before(last, dy_blc, start + AHEAD, column, channels);
        if (silu) next_x.load_before(last, x_blc, start + AHEAD, column, channels);
#pragma unroll
        for (u32 ahead = 0; ahead < AHEAD; ahead++) {
            const u32 row = start + ahead;
            if (row >= end + TAPS - 1) break;
            push(sums, Floats<N>{});
            if (row < last) {
                const u32 at = reaches.at;
                if (silu && halo && at == 0)
                    begin(window, x_blc, halo, row, time, column, channels, width);
                if (silu) push(window, x.at[ahead].floats());
                const u32 reach = reaches.next(row);
                const Floats<N> gradient = slope<N, T>(taps, window, reach, dy.at[ahead].floats(), silu);
                // Terms of the halo are computed elsewhere.
                const u32 inside = halo ? min(reach, at) : reach;
#pragma unroll
                for (u32 lag = 0; lag < TAPS; lag++)
                    if (lag <= inside)
#pragma unroll
                        for (int i = 0; i < N; i++)
                            sums[lag].at[i] = fmaf(taps.at[lag].at[i], gradient.at[i], sums[lag].at[i]);
            }
            if (row >= first + TAPS - 1)
                write(dx_blc + u64(row - (TAPS - 1)) * channels + column, sums[TAPS - 1]);
        }
    }
}

// Gradients of the halo: terms are added in the order of the rows that read it. Launch: a thread for N
// channels of a sequence.
template <int N, typename T>
__device__ __forceinline__ void halo_gradients(const T *dy_blc, const T *x_blc, const T *weight_ck,
                                               const T *bias_c, const u32 *documents_bl, const T *halo,
                                               T *dhalo, u32 batch, u32 time, u32 channels, u32 width,
                                               u32 silu) {
    const u32 item = blockIdx.x * THREADS + threadIdx.x, vectors = channels / N;
    const u32 column = item % vectors * N, sequence = item / vectors;
    if (sequence >= batch) return;
    const Taps<N> taps(weight_ck, bias_c, column, width);
    // By the distance before the sequence.
    Floats<N> window[TAPS] = {}, sums[TAPS] = {};
    begin(window, x_blc, halo, sequence * time, time, column, channels, width);
#pragma unroll
    for (u32 t = 0; t < TAPS - 1; t++) {
        if (t >= min(width - 1, time)) continue;
        const u32 row = sequence * time + t;
        const u64 at = u64(row) * channels + column;
        push(window, read<N>(x_blc + at));
        const u32 reach = taps.reach(documents_bl, row, time);
        const Floats<N> gradient = slope<N, T>(taps, window, reach, read<N>(dy_blc + at), silu);
#pragma unroll
        for (u32 lag = t + 1; lag < TAPS; lag++)
            if (lag <= reach)
#pragma unroll
                for (int i = 0; i < N; i++)
                    sums[lag - t].at[i] = fmaf(taps.at[lag].at[i], gradient.at[i], sums[lag - t].at[i]);
    }
#pragma unroll
    for (u32 before = 1; before < TAPS; before++)
        if (before < width)
            write(dhalo + (u64(sequence + 1) * (width - 1) - before) * channels + column, sums[before]);
}

// partial[run]: the sums of weights [c][k], then of biases [c], over the run's rows in order.
template <int N, typename T>
__device__ __forceinline__ void weight_sums(const T *dy_blc, const T *x_blc, const T *weight_ck,
                                            const T *bias_c, const u32 *documents_bl, const T *halo,
                                            float *partial, u32 rows, u32 time, u32 channels, u32 width,
                                            u32 rows_per_run, u32 silu) {
    const u32 item = blockIdx.x * THREADS + threadIdx.x, vectors = channels / N;
    const u32 column = item % vectors * N, run = item / vectors, first = run * rows_per_run;
    if (first >= rows) return;
    const u32 end = min(rows, first + rows_per_run);
    const Taps<N> taps(weight_ck, bias_c, column, width);
    Floats<N> window[TAPS] = {}, sums[TAPS] = {}, bias = {};
    begin(window, x_blc, halo, first, time, column, channels, width);
    Reaches reaches(documents_bl, first, time, width);
    Rows<N, T> next_dy, next_x;
    next_dy.load_before(end, dy_blc, first, column, channels);
    next_x.load_before(end, x_blc, first, column, channels);
    for (u32 start = first; start < end; start += AHEAD) {
        const Rows<N, T> dy = next_dy, x = next_x;
        next_dy.load_before(end, dy_blc, start + AHEAD, column, channels);
        next_x.load_before(end, x_blc, start + AHEAD, column, channels);
#pragma unroll
        for (u32 ahead = 0; ahead < AHEAD; ahead++) {
            const u32 row = start + ahead;
            if (row >= end) break;
            if (halo && reaches.starts()) begin(window, x_blc, halo, row, time, column, channels, width);
            push(window, x.at[ahead].floats());
            const u32 reach = reaches.next(row);
            const Floats<N> gradient = slope<N, T>(taps, window, reach, dy.at[ahead].floats(), silu);
#pragma unroll
            for (int i = 0; i < N; i++) bias.at[i] += gradient.at[i];
#pragma unroll
            for (u32 lag = 0; lag < TAPS; lag++)
                if (lag <= reach)
#pragma unroll
                    for (int i = 0; i < N; i++)
                        sums[lag].at[i] = fmaf(gradient.at[i], window[lag].at[i], sums[lag].at[i]);
        }
    }
    float *to = partial + u64(run) * channels * (width + 1);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float *to_k = to + u64(column + i) * width;
        if (N > 1 && width == TAPS) {
            Floats<TAPS> own;
#pragma unroll
            for (int lag = 0; lag < TAPS; lag++) own.at[TAPS - 1 - lag] = sums[lag].at[i];
            write(to_k, own);
        } else {
#pragma unroll
            for (u32 lag = 0; lag < TAPS; lag++)
                if (lag < width) to_k[width - 1 - lag] = sums[lag].at[i];
        }
    }
    write(to + u64(channels) * width + column, bias);
}

// The next row of every slot, whose last width - 1 inputs are in `state`, which then moves on by a row. Rows
// without a slot are 0. Launch: a thread for N channels of a row.
template <int N, typename T>
__device__ __forceinline__ void step(const T *x_blc, const T *weight_ck, const T *bias_c,
                                     const u32 *documents_bl, const T *, T *state, T *y_blc, u32 rows,
                                     u32 slots, u32 channels, u32 width, u32 silu) {
    const u32 item = blockIdx.x * THREADS + threadIdx.x, vectors = channels / N;
    const u32 column = item % vectors * N, row = item / vectors;
    if (row >= rows) return;
    const u64 at = u64(row) * channels + column;
    Floats<N> y = {};
    if (row < slots) {
        const Taps<N> taps(weight_ck, bias_c, column, width);
        T *own = state + u64(row) * (width - 1) * channels + column;
        Floats<N> window[TAPS] = {};
        const u32 reach = taps.reach(documents_bl, row, 1);
#pragma unroll
        for (u32 lag = 1; lag < TAPS; lag++)
            if (lag <= reach) window[lag] = read<N>(own + u64(width - 1 - lag) * channels);
        window[0] = read<N>(x_blc + at);
        y = taps.sum(window, reach);
        if (silu)
#pragma unroll
            for (int i = 0; i < N; i++) y.at[i] = Function<T>::value(y.at[i]);
#pragma unroll
        for (u32 lag = 0; lag < TAPS - 1; lag++)
            if (lag < width - 1) write(own + u64(width - 2 - lag) * channels, window[lag]);
    }
    write(y_blc + at, y);
}

#define VECTOR_OR_NOT(CALL, ...) \
    if (vector)                  \
        CALL<4>(__VA_ARGS__);    \
    else                         \
        CALL<1>(__VA_ARGS__);

#define OPERANDS(T)                                                                              \
    const T *__restrict__ weight, const T *__restrict__ bias, const u32 *__restrict__ documents, \
        const T *__restrict__ halo

#define FOR_TYPE(NAME, T)                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        forward_##NAME(const T *__restrict__ x, OPERANDS(T), T *__restrict__ y, u32 rows, u32 time,         \
                       u32 channels, u32 width, u32 rows_per_run, u32 silu, u32 vector) {                   \
        VECTOR_OR_NOT(forward, x, weight, bias, documents, halo, y, rows, time, channels, width,            \
                      rows_per_run, silu)                                                                   \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS, 2)                                                                    \
        backward_##NAME(const T *__restrict__ dy, const T *__restrict__ x, OPERANDS(T), T *__restrict__ dx, \
                        u32 rows, u32 time, u32 channels, u32 width, u32 rows_per_run, u32 silu,            \
                        u32 vector) {                                                                       \
        VECTOR_OR_NOT(backward, dy, x, weight, bias, documents, halo, dx, rows, time, channels, width,      \
                      rows_per_run, silu)                                                                   \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        halo_##NAME(const T *__restrict__ dy, const T *__restrict__ x, OPERANDS(T), T *__restrict__ dhalo,  \
                    u32 batch, u32 time, u32 channels, u32 width, u32 silu, u32 vector) {                   \
        VECTOR_OR_NOT(halo_gradients, dy, x, weight, bias, documents, halo, dhalo, batch, time, channels,   \
                      width, silu)                                                                          \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS, 2)                                                                    \
        weight_sums_##NAME(const T *__restrict__ dy, const T *__restrict__ x, OPERANDS(T),                  \
                           float *__restrict__ partial, u32 rows, u32 time, u32 channels, u32 width,        \
                           u32 rows_per_run, u32 silu, u32 vector) {                                        \
        VECTOR_OR_NOT(weight_sums, dy, x, weight, bias, documents, halo, partial, rows, time, channels,     \
                      width, rows_per_run, silu)                                                            \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        step_##NAME(const T *__restrict__ x, OPERANDS(T), T *__restrict__ state, T *__restrict__ y,         \
                    u32 rows, u32 slots, u32 channels, u32 width, u32 silu, u32 vector) {                   \
        VECTOR_OR_NOT(step, x, weight, bias, documents, halo, state, y, rows, slots, channels, width, silu) \
    }

FOR_EACH_TYPE(FOR_TYPE)
