// Gated feed-forward: h = activation(gate) * up, where a row holds the gate's columns, then those of up; or
// with a clamp h = activation(min(gate, limit)) * (up within -limit to limit, + offset), as in gpt-oss.
//
// Shapes: pair_t2f, h_tf. Letters as in CONTRIBUTING.md.
#include "gate.cuh"
#include "maximum.cuh"

// Launch: THREADS threads, each with one item of N columns of h: more items per thread take so many registers
// that fewer loads are in flight. Floor forward: gate and up in, h out. Floor backward: gate, up and dh in,
// their gradients out in place, and h in place of dh, which the weight gradient of the next layer reads.
// `cells`: null, or where the largest magnitude of the gradients goes.
template <int N, typename Function, typename Form, typename T>
__device__ __forceinline__ void forward(const T *pair_t2f, T *h_tf, u32 items, u32 width, Form form) {
    const u32 each = width / N, item = blockIdx.x * THREADS + threadIdx.x;
    if (item >= items) return;
    const T *from = pair_t2f + u64(item / each) * 2 * width + item % each * N;
    const Floats<N> gate = read<N>(from);
    Floats<N> up = read<N>(from + width);
#pragma unroll
    for (int j = 0; j < N; j++) up.at[j] = form.up(up.at[j]) * Function::value(form.gate(gate.at[j]));
    write(h_tf + u64(item) * N, up);
}

template <int N, typename Function, typename Form, typename T>
__device__ __forceinline__ void backward(T *pair_t2f, T *h_tf, u32 *cells, u32 items, u32 width, Form form) {
    const u32 each = width / N, item = blockIdx.x * THREADS + threadIdx.x;
    Maximum most;
    if (item < items) {
        T *at = pair_t2f + u64(item / each) * 2 * width + item % each * N;
        Floats<N> gate = read<N>(at), up = read<N>(at + width), slope = read<N>(h_tf + u64(item) * N);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float x = form.gate(gate.at[j]), y = form.up(up.at[j]), dh = slope.at[j];
            const float value = Function::value(x);
            gate.at[j] = form.passes_gate(gate.at[j]) ? Function::gradient(dh * y, x) : 0.0f;
            up.at[j] = form.passes_up(up.at[j]) ? dh * value : 0.0f;
            slope.at[j] = value * y;
        }
        write(at, gate);
        write(at + width, up);
        write(h_tf + u64(item) * N, slope);
        most.add(gate);
        most.add(up);
    }
    if (cells) record<T>(most, cells);
}

#define KERNELS_OF(FORWARD, BACKWARD, FUNCTION, T, FORM, ...)                                               \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        FORWARD(const T *__restrict__ pair, T *__restrict__ h, u32 items, u32 width,                        \
                u32 vector __VA_ARGS__) {                                                                   \
        if (vector)                                                                                         \
            forward<16 / sizeof(T), FUNCTION<MathFor<T>::Math>>(pair, h, items, width, FORM);               \
        else                                                                                                \
            forward<1, FUNCTION<MathFor<T>::Math>>(pair, h, items, width, FORM);                            \
    }                                                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                                       \
        BACKWARD(T *__restrict__ pair, T *__restrict__ h, u32 items, u32 width, u32 vector,                 \
                 u32 *cells __VA_ARGS__) {                                                                  \
        if (vector)                                                                                         \
            backward<16 / sizeof(T), FUNCTION<MathFor<T>::Math>>(pair, h, cells, items, width, FORM);       \
        else                                                                                                \
            backward<1, FUNCTION<MathFor<T>::Math>>(pair, h, cells, items, width, FORM);                    \
    }
#define FOR_ACTIVATION(KIND, FUNCTION, NAME, T)                                                             \
    KERNELS_OF(KIND##_##NAME, KIND##_gradient_##NAME, FUNCTION, T, Plain())                                 \
    KERNELS_OF(KIND##_clamped_##NAME, KIND##_clamped_gradient_##NAME, FUNCTION, T, CLAMP(limit, offset),    \
               , float limit, float offset)
#define FOR_TYPE(NAME, T) FOR_EACH_ACTIVATION(FOR_ACTIVATION, NAME, T)

FOR_EACH_TYPE(FOR_TYPE)
