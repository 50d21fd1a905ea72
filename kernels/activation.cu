// Element-wise activations and their gradients.
#include "activation.cuh"
#include "elementwise.cuh"

template <typename Function> struct Value {
    __device__ float operator()(float x) const { return Function::value(x); }
};
template <typename Function> struct Gradient {
    __device__ float operator()(float dy, float saved) const { return Function::gradient(dy, saved); }
};

#define FOR_ACTIVATION(KIND, FUNCTION, NAME, T)                                                \
    KERNEL KIND##_##NAME(const T *x, T *out, u64 count, u32 vector) {                          \
        unary(x, out, Value<FUNCTION<Exact>>{}, count, vector);                                       \
    }                                                                                          \
    KERNEL KIND##_gradient_##NAME(const T *dy, const T *saved, T *out, u64 count, u32 vector) { \
        binary(dy, saved, out, Gradient<FUNCTION<Exact>>{}, count, vector);                           \
    }
#define FOR_TYPE(NAME, T) FOR_EACH_ACTIVATION(FOR_ACTIVATION, NAME, T)

FOR_EACH_TYPE(FOR_TYPE)
