// Functions of the elements of one array, and of two that broadcast.
#include "elementwise.cuh"
#include "layout.cuh"

// Each function with its derivative; `number` is its parameter, if any.
#define FUNCTION(NAME, VALUE, SLOPE)                                                \
    struct NAME {                                                                   \
        float number;                                                               \
        __device__ __forceinline__ float value(float x) const { return VALUE; }     \
        __device__ __forceinline__ float slope(float x) const { return SLOPE; }     \
    };
FUNCTION(Exp, expf(x), expf(x))
FUNCTION(Log, logf(x), 1.0f / x)
FUNCTION(Sqrt, sqrtf(x), 0.5f / sqrtf(x))
FUNCTION(Reciprocal, 1.0f / x, -1.0f / (x * x))
FUNCTION(Square, x *x, 2.0f * x)
FUNCTION(Tanh, tanhf(x), 1.0f - tanhf(x) * tanhf(x))
FUNCTION(Scale, x *number, number)
FUNCTION(Shift, x + number, 1.0f)
FUNCTION(SoftCap, number *tanhf(x / number), 1.0f - tanhf(x / number) * tanhf(x / number))

template <typename F> struct Value {
    F function;
    __device__ float operator()(float x) const { return function.value(x); }
};
template <typename F> struct Slope {
    F function;
    __device__ float operator()(float dy, float x) const { return dy * function.slope(x); }
};

#define FOR_FUNCTION(NAME, T, FUNCTION, LOWER)                                                             \
    KERNEL LOWER##_##NAME(const T *x, T *out, float number, u64 count, u32 vector) {                       \
        unary(x, out, Value<FUNCTION>{{number}}, count, vector);                                           \
    }                                                                                                      \
    KERNEL LOWER##_back_##NAME(const T *dy, const T *x, T *out, float number, u64 count, u32 vector) {     \
        binary(dy, x, out, Slope<FUNCTION>{{number}}, count, vector);                                      \
    }

struct Add {
    __device__ __forceinline__ static float value(float a, float b) { return a + b; }
};
struct Subtract {
    __device__ __forceinline__ static float value(float a, float b) { return a - b; }
};
struct Multiply {
    __device__ __forceinline__ static float value(float a, float b) { return a * b; }
};
struct Divide {
    __device__ __forceinline__ static float value(float a, float b) { return a / b; }
};

// Launch: THREADS threads, one element of the result each; operands are read at strides, 0 where repeated.
#define FOR_PAIR(NAME, T, FUNCTION, LOWER)                                                                 \
    KERNEL LOWER##_##NAME(const T *a, const T *b, T *out, u32 size1, u32 size2, u32 size3, LAYOUT(a),      \
                          LAYOUT(b), u64 count) {                                                          \
        const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x;                                            \
        if (at < count)                                                                                    \
            out[at] = from_f32<T>(FUNCTION::value(to_f32(a[LAYOUT_OF(a).index(at, size1, size2, size3)]),  \
                                                  to_f32(b[LAYOUT_OF(b).index(at, size1, size2, size3)]))); \
    }

#define FOR_TYPE(NAME, T)                              \
    FOR_FUNCTION(NAME, T, Exp, exp)                    \
    FOR_FUNCTION(NAME, T, Log, log)                    \
    FOR_FUNCTION(NAME, T, Sqrt, sqrt)                  \
    FOR_FUNCTION(NAME, T, Reciprocal, reciprocal)      \
    FOR_FUNCTION(NAME, T, Square, square)              \
    FOR_FUNCTION(NAME, T, Tanh, tanh)                  \
    FOR_FUNCTION(NAME, T, Scale, scale)                \
    FOR_FUNCTION(NAME, T, Shift, shift)                \
    FOR_FUNCTION(NAME, T, SoftCap, soft_cap)           \
    FOR_PAIR(NAME, T, Add, add)                        \
    FOR_PAIR(NAME, T, Subtract, subtract)              \
    FOR_PAIR(NAME, T, Multiply, multiply)              \
    FOR_PAIR(NAME, T, Divide, divide)

FOR_EACH_TYPE(FOR_TYPE)
