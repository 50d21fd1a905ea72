// Initial values: functions of a stream's key and an element's number, with the bits that the host computes.
//
// Logarithm, sine and cosine are those of crates/philox in f64: the polynomials of FreeBSD's msun (Sun
// Microsystems, 1993; e_log.c, k_sin.c, k_cos.c, e_rem_pio2.c), with each operation rounded in that order.
#include "philox.cuh"

// A double whose operations are rounded one by one: the compiler fuses none of them.
struct Real {
    double value;
    __device__ __forceinline__ Real(double value) : value(value) {}
};
__device__ __forceinline__ Real operator+(Real a, Real b) { return __dadd_rn(a.value, b.value); }
__device__ __forceinline__ Real operator-(Real a, Real b) { return __dadd_rn(a.value, -b.value); }
__device__ __forceinline__ Real operator*(Real a, Real b) { return __dmul_rn(a.value, b.value); }
__device__ __forceinline__ Real operator/(Real a, Real b) { return __ddiv_rn(a.value, b.value); }

__device__ __forceinline__ u32 high_word(Real x) { return u32(__double2hiint(x.value)); }

// The natural logarithm of x in (0, 1], not subnormal: x = 2^exponent * (1 + f), and s = f / (2 + f).
__device__ __forceinline__ Real logarithm(Real x) {
    const u32 SQRT_HALF = 0x3fe6a09e, ONE = 0x3ff00000;
    if (x.value == 1.0) return 0.0;
    const u32 high = high_word(x) + (ONE - SQRT_HALF);
    const Real exponent = double(int(high >> 20) - 0x3ff);
    const Real reduced = __hiloint2double(int((high & 0xfffff) + SQRT_HALF), __double2loint(x.value));
    const Real f = reduced - 1.0, half_square = Real(0.5) * f * f, s = f / (f + 2.0);
    const Real z = s * s, w = z * z;
    const Real even = w * (w * (w * 1.531383769920937332e-01 + 2.222219843214978396e-01)
                           + 3.999999999940941908e-01);
    const Real odd = z * (w * (w * (w * 1.479819860511658591e-01 + 1.818357216161805012e-01)
                               + 2.857142874366239149e-01) + 6.666666666666735130e-01);
    const Real rest = odd + even;
    // ln 2 in two parts, of which products of the first with an exponent are exact.
    return s * (half_square + rest) + exponent * 1.90821492927058770002e-10 - half_square + f
        + exponent * 6.93147180369123816490e-01;
}

// An angle in [-pi/4, pi/4] in two parts, and the number of quarter turns that were taken from it.
struct Reduced {
    Real first, second;
    int turns;
};

// pi/2 in three parts of 33 bits, each with all that follows it.
#define HALF_PI_1 1.57079632673412561417e+00
#define HALF_PI_1_REST 6.07710050650619224932e-11
#define HALF_PI_2 6.07710050630396597660e-11
#define HALF_PI_2_REST 2.02226624879595063154e-21
#define HALF_PI_3 2.02226624871116645580e-21
#define HALF_PI_3_REST 8.47842766036889956997e-32

__device__ __forceinline__ int exponent_of(Real x) { return int(high_word(x) >> 20 & 0x7ff); }

// Near a multiple of pi/2 the parts of pi/2 are taken away one after the other, as far as bits cancel.
__device__ Reduced reduced_nearby(Real x) {
    const Real ROUND = 6755399441055744.0;
    const Real turns = x * 6.36619772367581382433e-01 + ROUND - ROUND;
    Real rest = x - turns * HALF_PI_1, taken = turns * HALF_PI_1_REST;
    Real first = rest - taken;
    if (exponent_of(x) - exponent_of(first) > 16) {
        Real before = rest;
        taken = turns * HALF_PI_2;
        rest = before - taken;
        taken = turns * HALF_PI_2_REST - ((before - rest) - taken);
        first = rest - taken;
        if (exponent_of(x) - exponent_of(first) > 49) {
            before = rest;
            taken = turns * HALF_PI_3;
            rest = before - taken;
            taken = turns * HALF_PI_3_REST - ((before - rest) - taken);
            first = rest - taken;
        }
    }
    return {first, (rest - first) - taken, int(turns.value)};
}

// Reduces x in [0, 2 pi].
__device__ __forceinline__ Reduced reduced(Real x) {
    const u32 high = high_word(x);
    if (high <= 0x3fe921fb) return {x, 0.0, 0};
    if (high == 0x3ff921fb || high == 0x400921fb || high == 0x4012d97c || high == 0x401921fb)
        return reduced_nearby(x);
    const int turns = high <= 0x4002d97c ? 1 : high <= 0x400f6a7a ? 2 : high <= 0x4015fdbc ? 3 : 4;
    const Real rest = x - Real(turns) * HALF_PI_1, taken = Real(turns) * HALF_PI_1_REST;
    const Real first = rest - taken;
    return {first, (rest - first) - taken, turns};
}

__device__ __forceinline__ Real sine_of(const Reduced &angle) {
    const Real x = angle.first, y = angle.second, z = x * x, w = z * z, v = z * x;
    const Real S1 = -1.66666666666666324348e-01;
    const Real r = z * (z * 2.75573137070700676789e-06 + -1.98412698298579493134e-04)
        + 8.33333333332248946124e-03 + z * w * (z * 1.58969099521155010221e-10 + -2.50507602534068634195e-08);
    if (angle.turns == 0) return x + v * (z * r + S1);
    return x - ((z * (y * 0.5 - v * r) - y) - v * S1);
}

__device__ __forceinline__ Real cosine_of(const Reduced &angle) {
    const Real x = angle.first, y = angle.second, z = x * x, w = z * z;
    const Real r = z * (z * (z * 2.48015872894767294178e-05 + -1.38888888888741095749e-03)
                        + 4.16666666666666019037e-02)
        + w * w * (z * (z * -1.13596475577881948265e-11 + 2.08757232129817482790e-09)
                   + -2.75573143513906633035e-07);
    const Real half = z * 0.5, most = Real(1.0) - half;
    return most + (((Real(1.0) - most) - half) + (z * r - x * y));
}

// One of the two normal numbers of a pair of words, by Box-Muller: the cosine's, or the sine's.
__device__ __forceinline__ float normal(u32 a, u32 b, bool is_sine) {
    const Real UNIT = 1.0 / 4294967296.0;
    const Real logarithmic = Real(-2.0) * logarithm((Real(double(a)) + 1.0) * UNIT);
    const Real radius = __dsqrt_rn(logarithmic.value);
    const Reduced angle = reduced(Real(6.283185307179586) * (Real(double(b)) * UNIT));
    const bool swaps = angle.turns & 1;
    const Real value = is_sine != swaps ? sine_of(angle) : cosine_of(angle);
    // Quarter turns change the sign: sin, cos, -sin, -cos, and cos, -sin, -cos, sin.
    const bool negative = (angle.turns + (is_sine ? 0 : 1)) & 2;
    return __double2float_rn((radius * (negative ? Real(-value.value) : value)).value);
}

// Elements of a stream: runs of `length` elements, of which the first begins at `first` and each next one
// `stride` elements after the one before.
struct Elements {
    u64 first, length, stride;
    __device__ __forceinline__ u64 at(u64 index) const {
        return first + index / length * stride + index % length;
    }
};

__device__ __forceinline__ Words words_of(u64 element, u32 key0, u32 key1) {
    return philox(key0, key1, u32(element / 4), u32(element / 4 >> 32), 0, 0);
}

// Launch: a thread for every element. Floor: out once through memory.
#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS) normal_##NAME(T *__restrict__ out, u64 count, u64 first, u64 length, \
                                                    u64 stride, u32 key0, u32 key1, float mean,            \
                                                    float deviation) {                                     \
        const u64 index = u64(blockIdx.x) * THREADS + threadIdx.x;                                         \
        if (index >= count) return;                                                                        \
        const u64 element = Elements{first, length, stride}.at(index);                                     \
        const Words words = words_of(element, key0, key1);                                                 \
        const bool later = element & 2;                                                                    \
        const float z = normal(later ? words.at[2] : words.at[0], later ? words.at[3] : words.at[1],       \
                               element & 1);                                                               \
        out[index] = from_f32<T>(__fadd_rn(mean, __fmul_rn(deviation, z)));                                \
    }                                                                                                      \
    KERNEL __launch_bounds__(THREADS) uniform_##NAME(T *__restrict__ out, u64 count, u64 first,            \
                                                     u64 length, u64 stride, u32 key0, u32 key1,           \
                                                     float low, float width) {                             \
        const u64 index = u64(blockIdx.x) * THREADS + threadIdx.x;                                         \
        if (index >= count) return;                                                                        \
        const u64 element = Elements{first, length, stride}.at(index);                                     \
        const Words words = words_of(element, key0, key1);                                                 \
        const bool later = element & 2, odd = element & 1;                                                 \
        const u32 word = later ? (odd ? words.at[3] : words.at[2]) : (odd ? words.at[1] : words.at[0]);    \
        const float value = float(word >> 8) * (1.0f / 16777216.0f);                                       \
        out[index] = from_f32<T>(__fadd_rn(low, __fmul_rn(width, value)));                                 \
    }

FOR_EACH_TYPE(FOR_TYPE)
