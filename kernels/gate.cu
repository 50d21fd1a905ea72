// Gated feed-forward: h = activation(gate) * up, where a row holds the gate's columns, then those of up.
#include "activation.cuh"

// Launch: THREADS threads; a thread has UNROLL items of N columns of h, all of whose operands are loaded
// before the first result is stored. Floor forward: gate and up in, h out. Floor backward: gate, up and dh
// in, their gradients out in place, and h in place of dh, which the weight gradient of the next layer reads.
template <int N, typename Function, typename T>
__device__ __forceinline__ void forward(const T *pair, T *h, u32 items, u32 width) {
    const u32 each = width / N, first = blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
    Floats<N> gate[UNROLL], up[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u32 item = first + i * THREADS;
        if (item < items) {
            const T *from = pair + u64(item / each) * 2 * width + item % each * N;
            gate[i] = read<N>(from);
            up[i] = read<N>(from + width);
        }
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u32 item = first + i * THREADS;
        if (item < items) {
#pragma unroll
            for (int j = 0; j < N; j++) up[i].at[j] *= Function::value(gate[i].at[j]);
            write(h + u64(item) * N, up[i]);
        }
    }
}

template <int N, typename Function, typename T>
__device__ __forceinline__ void backward(T *pair, T *h, u32 items, u32 width) {
    const u32 each = width / N, first = blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
    Floats<N> gate[UNROLL], up[UNROLL], slope[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u32 item = first + i * THREADS;
        if (item < items) {
            const T *from = pair + u64(item / each) * 2 * width + item % each * N;
            gate[i] = read<N>(from);
            up[i] = read<N>(from + width);
            slope[i] = read<N>(h + u64(item) * N);
        }
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const u32 item = first + i * THREADS;
        if (item < items) {
            T *to = pair + u64(item / each) * 2 * width + item % each * N;
#pragma unroll
            for (int j = 0; j < N; j++) {
                const float x = gate[i].at[j], y = up[i].at[j], dh = slope[i].at[j];
                const float value = Function::value(x);
                gate[i].at[j] = Function::gradient(dh * y, x);
                up[i].at[j] = dh * value;
                slope[i].at[j] = value * y;
            }
            write(to, gate[i]);
            write(to + width, up[i]);
            write(h + u64(item) * N, slope[i]);
        }
    }
}

#define FOR_ACTIVATION(KIND, FUNCTION, NAME, T)                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                 \
        KIND##_##NAME(const T *__restrict__ pair, T *__restrict__ h, u32 items, u32 width, u32 vector) { \
        if (vector)                                                                                   \
            forward<16 / sizeof(T), FUNCTION>(pair, h, items, width);                                 \
        else                                                                                          \
            forward<1, FUNCTION>(pair, h, items, width);                                              \
    }                                                                                                 \
    KERNEL __launch_bounds__(THREADS)                                                                 \
        KIND##_gradient_##NAME(T *__restrict__ pair, T *__restrict__ h, u32 items, u32 width, u32 vector) { \
        if (vector)                                                                                   \
            backward<16 / sizeof(T), FUNCTION>(pair, h, items, width);                                \
        else                                                                                          \
            backward<1, FUNCTION>(pair, h, items, width);                                             \
    }
#define FOR_TYPE(NAME, T) FOR_EACH_ACTIVATION(FOR_ACTIVATION, NAME, T)

FOR_EACH_TYPE(FOR_TYPE)
