// Pooling of channels-last images: the largest element or the mean of each window, and the gradients.
// Backward gathers: each input element adds the gradients of the windows that contain it, in order.
//
// Shapes: images are nhwc: image, row, column, channel. Letters as in CONTRIBUTING.md.
#include "common.cuh"

// Launch: THREADS threads, a thread for each of `count` vectors of N channels of the result's pixels. Floor:
// x in, y out; backward dy in, dx out; that of the maximum is two kernels: x in, positions out; positions and
// dy in, dx out. Windows that overlap are read again from cache.

// Sizes of the images and windows; pairs are vertical, then horizontal.
struct Windows {
    u32 height, width, channels, rows, columns, kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w;
    // Divisor of every window; 0: the number of its elements that are not padding.
    u32 divisor;
};

#define WINDOWS                                                                                           \
    u32 height, u32 width, u32 channels, u32 rows, u32 columns, u32 kernel_h, u32 kernel_w, u32 stride_h, \
        u32 stride_w, u32 padding_h, u32 padding_w, u32 divisor
#define WINDOWS_OF_ARGUMENTS                                                                        \
    const Windows windows = {height,   width,    channels, rows,      columns,   kernel_h, kernel_w, \
                             stride_h, stride_w, padding_h, padding_w, divisor};

// The elements first..end of an axis that a window has, without padding.
struct Span {
    u32 first, end;
    __device__ __forceinline__ Span(u32 window, u32 stride, u32 padding, u32 kernel, u32 size) {
        const u32 start = window * stride;
        first = start > padding ? start - padding : 0;
        end = start + kernel > padding ? min(size, start + kernel - padding) : 0;
    }
    __device__ __forceinline__ u32 length() const { return end > first ? end - first : 0; }
};

// The windows first..end along an axis that contain an element.
struct Readers {
    u32 first, end;
    __device__ __forceinline__ Readers(u32 element, u32 stride, u32 padding, u32 kernel, u32 windows) {
        const u32 at = element + padding;
        first = at < kernel ? 0 : (at - kernel) / stride + 1;
        end = min(windows, at / stride + 1);
    }
};

// A thread's pixel and channels in images of `rows` by `columns`.
template <int N> struct Pixel {
    u32 image, row, column, channel;
    __device__ __forceinline__ Pixel(u32 index, u32 rows, u32 columns, u32 channels) {
        const u32 vectors = channels / N, pixel = index / vectors, line = pixel / columns;
        channel = (index - pixel * vectors) * N;
        column = pixel - line * columns;
        image = line / rows;
        row = line - image * rows;
    }
};

__device__ __forceinline__ u64 at(u32 image, u32 row, u32 column, u32 rows, u32 columns, u32 channels) {
    return ((u64(image) * rows + row) * columns + column) * channels;
}

// Position in its window of an element: rows of the kernel, then columns.
__device__ __forceinline__ u32 position_in_window(const Windows &w, u32 row, u32 column, u32 window_row,
                                     u32 window_column) {
    const u32 down = row + w.padding_h - window_row * w.stride_h;
    return down * w.kernel_w + column + w.padding_w - window_column * w.stride_w;
}

// Stores the largest elements, or their positions.
template <int N, typename T>
__device__ __forceinline__ void give(T *y, const Floats<N> &best, const Vector<u16, N> &) {
    write(y, best);
}
template <int N>
__device__ __forceinline__ void give(u16 *to, const Floats<N> &, const Vector<u16, N> &positions) {
    store(to, positions);
}

// out = the largest element of each window, or in u16 the position of the first such element.
template <int N, typename T, typename Out>
__device__ __forceinline__ void maximum(const T *x, Out *out, const Windows &w, u32 count) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    const Pixel<N> pixel(index, w.rows, w.columns, w.channels);
    const Span down(pixel.row, w.stride_h, w.padding_h, w.kernel_h, w.height);
    const Span right(pixel.column, w.stride_w, w.padding_w, w.kernel_w, w.width);
    Floats<N> best;
    Vector<u16, N> positions;
    const u32 first = position_in_window(w, down.first, right.first, pixel.row, pixel.column);
#pragma unroll
    for (int i = 0; i < N; i++) {
        best.at[i] = -__int_as_float(0x7f800000);
        positions.at[i] = first;
    }
    for (u32 row = down.first; row < down.end; row++) {
#pragma unroll 3
        for (u32 column = right.first; column < right.end; column++) {
            const u64 from = at(pixel.image, row, column, w.height, w.width, w.channels) + pixel.channel;
            const Floats<N> values = read<N>(x + from);
            const u32 here = position_in_window(w, row, column, pixel.row, pixel.column);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float value = values.at[i];
                // The first NaN is the largest element.
                const bool larger = value > best.at[i] || (value != value && best.at[i] == best.at[i]);
                best.at[i] = larger ? value : best.at[i];
                positions.at[i] = larger ? here : positions.at[i];
            }
        }
    }
    give(out + u64(index) * N, best, positions);
}

// Calls `visit(row, column, first)` with every window that contains the pixel, in order; `first` is the
// window's first element of the thread's channels.
template <int N, typename Visit>
__device__ __forceinline__ void for_windows(const Pixel<N> &pixel, const Windows &w, Visit visit) {
    const Readers down(pixel.row, w.stride_h, w.padding_h, w.kernel_h, w.rows);
    const Readers right(pixel.column, w.stride_w, w.padding_w, w.kernel_w, w.columns);
    for (u32 row = down.first; row < down.end; row++) {
        for (u32 column = right.first; column < right.end; column++) {
            visit(row, column, at(pixel.image, row, column, w.rows, w.columns, w.channels) + pixel.channel);
        }
    }
}

// dx = for each element the gradients of the windows whose first largest element it is.
template <int N, typename T>
__device__ __forceinline__ void maximum_backward(const T *dy, const u16 *positions, T *dx, const Windows &w,
                                                 u32 count) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    const Pixel<N> pixel(index, w.height, w.width, w.channels);
    Floats<N> sum = {};
    for_windows(pixel, w, [&](u32 row, u32 column, u64 window) {
        const Vector<u16, N> chosen = load<N>(positions + window);
        const Floats<N> gradients = read<N>(dy + window);
        const u32 own = position_in_window(w, pixel.row, pixel.column, row, column);
#pragma unroll
        for (int i = 0; i < N; i++) sum.at[i] += chosen.at[i] == own ? gradients.at[i] : 0.0f;
    });
    write(dx + u64(index) * N, sum);
}

template <int N, typename T>
__device__ __forceinline__ void average(const T *x, T *y, const Windows &w, u32 count) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    const Pixel<N> pixel(index, w.rows, w.columns, w.channels);
    const Span down(pixel.row, w.stride_h, w.padding_h, w.kernel_h, w.height);
    const Span right(pixel.column, w.stride_w, w.padding_w, w.kernel_w, w.width);
    Floats<N> sum = {};
    for (u32 row = down.first; row < down.end; row++) {
#pragma unroll 4
        for (u32 column = right.first; column < right.end; column++) {
            const u64 from = at(pixel.image, row, column, w.height, w.width, w.channels) + pixel.channel;
            const Floats<N> values = read<N>(x + from);
#pragma unroll
            for (int i = 0; i < N; i++) sum.at[i] += values.at[i];
        }
    }
    const float scale = 1.0f / (w.divisor ? w.divisor : max(down.length() * right.length(), 1u));
#pragma unroll
    for (int i = 0; i < N; i++) sum.at[i] *= scale;
    write(y + u64(index) * N, sum);
}

template <int N, typename T>
__device__ __forceinline__ void average_backward(const T *dy, T *dx, const Windows &w, u32 count) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    const Pixel<N> pixel(index, w.height, w.width, w.channels);
    Floats<N> sum = {};
    for_windows(pixel, w, [&](u32 row, u32 column, u64 window) {
        const Span rows(row, w.stride_h, w.padding_h, w.kernel_h, w.height);
        const Span columns(column, w.stride_w, w.padding_w, w.kernel_w, w.width);
        const float scale = 1.0f / (w.divisor ? w.divisor : max(rows.length() * columns.length(), 1u));
        const Floats<N> gradients = read<N>(dy + window);
#pragma unroll
        for (int i = 0; i < N; i++) sum.at[i] = fmaf(gradients.at[i], scale, sum.at[i]);
    });
    write(dx + u64(index) * N, sum);
}

// A function for vectors of 16 bytes, or for single elements.
#define WIDE_OR_SINGLE(T, FUNCTION, ...)            \
    if (vector)                                     \
        FUNCTION<16 / int(sizeof(T))>(__VA_ARGS__); \
    else                                            \
        FUNCTION<1>(__VA_ARGS__);

#define POOLING(NAME, T)                                                                                     \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        maximum_##NAME(const T *__restrict__ x, T *__restrict__ y, WINDOWS, u32 count, u32 vector) {         \
        WINDOWS_OF_ARGUMENTS                                                                                 \
        WIDE_OR_SINGLE(T, maximum, x, y, windows, count)                                                     \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        positions_##NAME(const T *__restrict__ x, u16 *__restrict__ positions, WINDOWS, u32 count,           \
                         u32 vector) {                                                                      \
        WINDOWS_OF_ARGUMENTS                                                                                 \
        WIDE_OR_SINGLE(T, maximum, x, positions, windows, count)                                             \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        maximum_backward_##NAME(const T *__restrict__ dy, const u16 *__restrict__ positions,                 \
                                T *__restrict__ dx, WINDOWS, u32 count, u32 vector) {                        \
        WINDOWS_OF_ARGUMENTS                                                                                 \
        WIDE_OR_SINGLE(T, maximum_backward, dy, positions, dx, windows, count)                               \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        average_##NAME(const T *__restrict__ x, T *__restrict__ y, WINDOWS, u32 count, u32 vector) {         \
        WINDOWS_OF_ARGUMENTS                                                                                 \
        WIDE_OR_SINGLE(T, average, x, y, windows, count)                                                     \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        average_backward_##NAME(const T *__restrict__ dy, T *__restrict__ dx, WINDOWS, u32 count,            \
                                u32 vector) {                                                                \
        WINDOWS_OF_ARGUMENTS                                                                                 \
        WIDE_OR_SINGLE(T, average_backward, dy, dx, windows, count)                                          \
    }

FOR_EACH_TYPE(POOLING)
