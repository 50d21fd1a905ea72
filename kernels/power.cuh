// Powers in f64 with the same bits as the host's `libm::pow`.
#pragma once
#include "common.cuh"

// An f64 whose operations are rounded one by one: the compiler fuses none of them.
struct Exact { double value; };
__device__ __forceinline__ Exact operator+(Exact a, Exact b) { return {__dadd_rn(a.value, b.value)}; }
__device__ __forceinline__ Exact operator-(Exact a, Exact b) { return {__dsub_rn(a.value, b.value)}; }
__device__ __forceinline__ Exact operator*(Exact a, Exact b) { return {__dmul_rn(a.value, b.value)}; }
__device__ __forceinline__ Exact operator/(Exact a, Exact b) { return {__ddiv_rn(a.value, b.value)}; }

__device__ __forceinline__ Exact from_words(u32 high, u32 low) {
    return {__hiloint2double(int(high), int(low))};
}
__device__ __forceinline__ u32 high_word(Exact x) { return u32(__double2hiint(x.value)); }
__device__ __forceinline__ u32 low_word(Exact x) { return u32(__double2loint(x.value)); }
__device__ __forceinline__ Exact without_low_word(Exact x) { return from_words(high_word(x), 0); }

// Returns x^y for 0 <= x < 1, x a normal number or 0, and y >= 1; 0 if the power is below 2^-1000. The
// operations and their order are those of FreeBSD's e_pow.c:
//
// Copyright (C) 2004 by Sun Microsystems, Inc. All rights reserved. Permission to use, copy, modify, and
// distribute this software is freely granted, provided that this notice is preserved.
__device__ Exact power(Exact x, u32 y) {
    if (x.value == 0.0 || y == 1) return x;
    if (y == 2) return x * x;
    // log2(x) = t1 + t2, from x = 2^n a and the logarithm of a by (a - b) / (a + b), b = 1 or 1.5.
    const u32 mantissa = high_word(x) & 0xfffffu;
    const bool wide = mantissa > 0x3988eu && mantissa < 0xbb67au;
    const bool up = mantissa >= 0xbb67au;
    const u32 high = (mantissa | 0x3ff00000u) - (up ? 0x100000u : 0u);
    const Exact n = {double(int(high_word(x) >> 20) - 0x3ff + (up ? 1 : 0))};
    const Exact a = from_words(high, low_word(x)), b = {wide ? 1.5 : 1.0}, one = {1.0}, three = {3.0};
    Exact u = a - b, v = one / (a + b);
    const Exact ss = u * v, s_high = without_low_word(ss);
    const Exact a_high = from_words(((high >> 1) | 0x20000000u) + 0x80000u + (wide ? 0x40000u : 0u), 0);
    const Exact a_low = a - (a_high - b);
    const Exact s_low = v * ((u - s_high * a_high) - s_high * a_low);
    Exact s2 = ss * ss;
    const Exact series[] = {{2.06975017800338417784e-01}, {2.30660745775561754067e-01},
                            {2.72728123808534006489e-01}, {3.33333329818377432918e-01},
                            {4.28571428578550184252e-01}, {5.99999999999994648725e-01}};
    Exact sum = series[0];
    for (int i = 1; i < 6; i++) sum = series[i] + s2 * sum;
    Exact r = s2 * s2 * sum;
    r = r + s_low * (s_high + ss);
    s2 = s_high * s_high;
    const Exact t_high = without_low_word(three + s2 + r), t_low = r - ((t_high - three) - s2);
    u = s_high * t_high;
    v = s_low * t_high + t_low * ss;
    Exact p_high = without_low_word(u + v), p_low = v - (p_high - u);
    const Exact offset_high = {wide ? 5.84962487220764160156e-01 : 0.0};
    const Exact offset_low = {wide ? 1.35003920212974897128e-08 : 0.0};
    const Exact z_high = Exact{9.61796700954437255859e-01} * p_high;
    const Exact scale = {9.61796693925975554329e-01}, scale_low = {-7.02846165095275826516e-09};
    const Exact z_low = scale_low * p_high + p_low * scale + offset_low;
    const Exact t1 = without_low_word(((z_high + z_low) + offset_high) + n);
    const Exact t2 = z_low - (((t1 - n) - offset_high) - z_high);
    // y log2(x) = p_high + p_low.
    const Exact exponent = {double(y)}, exponent_high = without_low_word(exponent);
    p_low = (exponent - exponent_high) * t1 + exponent * t2;
    p_high = exponent_high * t1;
    Exact z = p_low + p_high;
    if (z.value < -1000.0) return {0.0};
    // 2^(p_high + p_low): a power of two times the power of the rest.
    const u32 magnitude = high_word(z) & 0x7fffffffu;
    int whole = 0;
    if (magnitude > 0x3fe00000u) {
        const u32 rounded = high_word(z) + (0x100000u >> ((magnitude >> 20) - 0x3ff + 1));
        const u32 shift = ((rounded & 0x7fffffffu) >> 20) - 0x3ff;
        const Exact t = from_words(rounded & ~(0xfffffu >> shift), 0);
        whole = -int(((rounded & 0xfffffu) | 0x100000u) >> (20 - shift));
        p_high = p_high - t;
    }
    const Exact t = without_low_word(p_low + p_high);
    u = t * Exact{6.93147182464599609375e-01};
    v = (p_low - (t - p_high)) * Exact{6.93147180559945286227e-01} + t * Exact{-1.90465429995776804525e-09};
    z = u + v;
    const Exact w = v - (z - u), square = z * z;
    const Exact terms[] = {{4.13813679705723846039e-08}, {-1.65339022054652515390e-06},
                           {6.61375632143793436117e-05}, {-2.77777777770155933842e-03},
                           {1.66666666666666019037e-01}};
    sum = terms[0];
    for (int i = 1; i < 5; i++) sum = terms[i] + square * sum;
    const Exact rest = z - square * sum;
    r = (z * rest) / (rest - Exact{2.0}) - (w + z * w);
    z = one - (r - z);
    return from_words(high_word(z) + (u32(whole) << 20), low_word(z));
}
