// The operands of a gate, as they are or within bounds.
#pragma once
#include "activation.cuh"

// The operands of the two factors, and whether gradients pass to them.
struct Plain {
    __device__ __forceinline__ float gate(float x) const { return x; }
    __device__ __forceinline__ float up(float x) const { return x; }
    __device__ __forceinline__ bool passes_gate(float) const { return true; }
    __device__ __forceinline__ bool passes_up(float) const { return true; }
};
// NaN for NaN.
struct Clamp {
    float limit, offset;
    __device__ __forceinline__ float gate(float x) const { return x > limit ? limit : x; }
    __device__ __forceinline__ float up(float x) const {
        return (x > limit ? limit : x < -limit ? -limit : x) + offset;
    }
    __device__ __forceinline__ bool passes_gate(float x) const { return !(x > limit); }
    __device__ __forceinline__ bool passes_up(float x) const { return !(fabsf(x) > limit); }
};

#define CLAMP(limit, offset) \
    Clamp { limit, offset }
