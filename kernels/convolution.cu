// Convolutions of few channels as matmuls of unfolded windows, gradients of weights in other layouts, and
// what follows a convolution where the library has no epilogue.
//
// Shapes: images are nhwc: image, row, column, channel. Letters as in CONTRIBUTING.md.
#include "common.cuh"

// Launch: THREADS threads. Floor: each array once.

// windows[position][element] = the elements of each window in order, then zeros; 0 for padding. A thread for
// each WIDE of the `vectors` · WIDE elements of a window. The columns of a window and their channels lie side
// by side in the image.
template <typename T>
__device__ __forceinline__ void unfold(const T *x, T *windows, u32 height, u32 width, u32 channels, u32 rows,
                                       u32 columns, u32 kernel_h, u32 kernel_w, u32 stride_h, u32 stride_w,
                                       u32 padding_h, u32 padding_w, u32 vectors, u32 count) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    const u32 position = index / vectors, first = (index - position * vectors) * WIDE;
    const u32 line = position / columns, column = position - line * columns;
    const u32 image = line / rows, row = line - image * rows;
    const u32 window_line = kernel_w * channels, image_line = width * channels;
    // Differences may be negative; as unsigned numbers they are then beyond the image.
    const u32 left = (column * stride_w - padding_w) * channels, top = row * stride_h - padding_h;
    const T *from = x + u64(image) * height * image_line;
    u32 down = first / window_line, right = first - down * window_line;
    Vector<T, WIDE> values;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        const u32 y = top + down, along = left + right;
        const bool inside = down < kernel_h && y < height && along < image_line;
        values.at[i] = inside ? from[u64(y) * image_line + along] : T{};
        right++;
        if (right == window_line) {
            right = 0;
            down++;
        }
    }
    store(windows + u64(index) * WIDE, values);
}

// Rows of `own` elements, followed by zeros up to `columns`. A thread for each element of `padded`.
template <typename T>
__device__ __forceinline__ void pad(const T *x, T *padded, u32 own, u32 columns, u32 count) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    const u32 row = index / columns, column = index - row * columns;
    padded[index] = column < own ? x[u64(row) * own + column] : T{};
}

// out (+)= the first `own` of `columns` elements of each row. A thread for each element of `out`.
template <typename T, typename Out>
__device__ __forceinline__ void unpad(const T *padded, Out *out, u32 own, u32 columns, u32 count,
                                      u32 accumulate) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= count) return;
    const u32 row = index / own, column = index - row * own;
    const float value = to_f32(padded[u64(row) * columns + column]);
    out[index] = from_f32<Out>(accumulate ? to_f32(out[index]) + value : value);
}

// y = y + bias + residual, and then ReLU if `relu`; `residual` may be null. A thread for each WIDE elements,
// or for each one.
template <typename T>
__device__ __forceinline__ void finish(T *y, const T *bias, const T *residual, u32 channels, u32 count,
                                       u32 relu, u32 vector) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    if (vector) {
        const u32 first = index * WIDE;
        if (first >= count) return;
        Floats<WIDE> values = read<WIDE>(y + first);
        const Floats<WIDE> biases = read<WIDE>(bias + first % channels);
        Floats<WIDE> more = {};
        if (residual) more = read<WIDE>(residual + first);
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            const float value = values.at[i] + biases.at[i] + more.at[i];
            // A comparison lets NaN pass, as a maximum would not.
            values.at[i] = relu && value < 0.0f ? 0.0f : value;
        }
        write(y + first, values);
    } else if (index < count) {
        const float more = residual ? to_f32(residual[index]) : 0.0f;
        const float value = to_f32(y[index]) + to_f32(bias[index % channels]) + more;
        y[index] = from_f32<T>(relu && value < 0.0f ? 0.0f : value);
    }
}

#define UNPAD(FROM, T, TO, OUT)                                                                              \
    KERNEL unpad_##FROM##_##TO(const T *__restrict__ padded, OUT *out, u32 own, u32 columns, u32 count,      \
                               u32 accumulate) {                                                             \
        unpad(padded, out, own, columns, count, accumulate);                                                 \
    }

#define CONVOLUTION(NAME, T)                                                                                 \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        unfold_##NAME(const T *__restrict__ x, T *__restrict__ windows, u32 height, u32 width, u32 channels, \
                      u32 rows, u32 columns, u32 kernel_h, u32 kernel_w, u32 stride_h, u32 stride_w,         \
                      u32 padding_h, u32 padding_w, u32 vectors, u32 count) {                                \
        unfold(x, windows, height, width, channels, rows, columns, kernel_h, kernel_w, stride_h, stride_w,   \
               padding_h, padding_w, vectors, count);                                                        \
    }                                                                                                        \
    KERNEL pad_##NAME(const T *__restrict__ x, T *__restrict__ padded, u32 own, u32 columns, u32 count) {    \
        pad(x, padded, own, columns, count);                                                                 \
    }                                                                                                        \
    UNPAD(NAME, T, f32, float)                                                                               \
    UNPAD(f32, float, NAME, T)

#define FINISH(NAME, T)                                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        finish_##NAME(T *y, const T *__restrict__ bias, const T *__restrict__ residual, u32 channels,        \
                      u32 count, u32 relu, u32 vector) {                                                     \
        finish(y, bias, residual, channels, count, relu, vector);                                            \
    }

FOR_EACH_HALF(CONVOLUTION)
FOR_EACH_TYPE(FINISH)
UNPAD(f32, float, f32, float)
