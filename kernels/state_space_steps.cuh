// Time steps of state spaces.
#pragma once
#include "common.cuh"

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ float limited(float step, float low, float high) {
    return fminf(fmaxf(step, low), high);
}
