// Rotary position embeddings: the rotation of a head, half-split as Hugging Face stores it.
#pragma once
#include "common.cuh"

// Rotates elements i and i + width / 2 of a head by one angle, or back.
template <int N>
__device__ __forceinline__ void rotate(Floats<N> &low, Floats<N> &high, const Floats<N> &cosines,
                                       const Floats<N> &sines) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float a = low.at[i], b = high.at[i];
        low.at[i] = fmaf(a, cosines.at[i], -(b * sines.at[i]));
        high.at[i] = fmaf(b, cosines.at[i], a * sines.at[i]);
    }
}
template <int N>
__device__ __forceinline__ void rotate_back(Floats<N> &low, Floats<N> &high, const Floats<N> &cosines,
                                            const Floats<N> &sines) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float a = low.at[i], b = high.at[i];
        low.at[i] = fmaf(a, cosines.at[i], b * sines.at[i]);
        high.at[i] = fmaf(b, cosines.at[i], -(a * sines.at[i]));
    }
}

// Returns the row of the table for a token: its distance from the start of its document.
__device__ __forceinline__ u32 position(const u32 *documents, u32 row, u32 time) {
    const u32 at = row % time;
    return documents ? at - documents[row] : at;
}
