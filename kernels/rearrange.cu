// Copies between layouts, in words of 2 to 16 bytes: the widest that both layouts allow.
#include "layout.cuh"

// The indices of a word in up to four dimensions. The host merges dimensions, so that most copies have one
// or two; inner dimensions of one element need no division.
template <typename Number> struct Indices {
    Number at[4];
    __device__ __forceinline__ Indices(Number linear, u32 size1, u32 size2, u32 size3) {
        Number rest = linear / size3;
        at[3] = linear - rest * size3, at[2] = 0, at[1] = 0;
        if (size2 > 1) at[2] = rest % size2, rest /= size2;
        if (size1 > 1) at[1] = rest % size1, rest /= size1;
        at[0] = rest;
    }
    __device__ __forceinline__ u64 within(const Layout &layout) const {
        return layout.offset + at[0] * layout.stride0 + at[1] * layout.stride1 + at[2] * layout.stride2 +
               at[3] * layout.stride3;
    }
};

template <typename T, typename Number>
__device__ __forceinline__ void copy(const T *x, T *out, u32 size1, u32 size2, u32 size3, const Layout &from,
                                     const Layout &to, Number count) {
    const Number first = Number(blockIdx.x) * (THREADS * WORDS) + threadIdx.x;
    T held[WORDS];
    u64 target[WORDS];
#pragma unroll
    for (u32 i = 0; i < WORDS; i++) {
        // No sum overflows: `first` may be near the largest number.
        if (first < count && i * THREADS < count - first) {
            const Indices<Number> indices(first + i * THREADS, size1, size2, size3);
            held[i] = x[indices.within(from)];
            target[i] = indices.within(to);
        }
    }
#pragma unroll
    for (u32 i = 0; i < WORDS; i++)
        if (first < count && i * THREADS < count - first) out[target[i]] = held[i];
}

// Launch: THREADS threads, WORDS words each, all of whose loads are in flight together. Floor: every element
// in and out once; strides beyond a sector transfer whole sectors.
#define OF_BYTES(BYTES, T)                                                                         \
    KERNEL __launch_bounds__(THREADS)                                                              \
        copy##BYTES(const T *__restrict__ x, T *__restrict__ out, u32 size1, u32 size2, u32 size3, \
                    LAYOUT(x), LAYOUT(out), u64 count) {                                           \
        if (count >> 32)                                                                           \
            copy<T, u64>(x, out, size1, size2, size3, LAYOUT_OF(x), LAYOUT_OF(out), count);        \
        else                                                                                       \
            copy<T, u32>(x, out, size1, size2, size3, LAYOUT_OF(x), LAYOUT_OF(out), u32(count));   \
    }

typedef Vector<u32, 4> Word16;
OF_BYTES(2, u16)
OF_BYTES(4, u32)
OF_BYTES(8, u64)
OF_BYTES(16, Word16)
