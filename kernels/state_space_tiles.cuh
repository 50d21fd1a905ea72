// Scans of selective state spaces in half precision: numbers of tokens that scale rows and columns of tiles.
// B is a key, C a query and x a value, as in recurrent_chunk.cuh.
#pragma once
#include "recurrent_tiles.cuh"

// Numbers of the tokens of a chunk, in the order of the workspace. Decays count from the chunk's beginning
// on; those of tokens that do not see the state before the chunk are 0.
enum Scale {
    SINCE,  // decay
    UNTIL,  // decay from the token to the chunk's end * time step
    SUM,    // logarithm of the decay, whether or not the token sees the state
    STEP,   // time step
    SCALES
};
#define SCALE_BYTES (SCALES * CHUNK * 4)

// The first column of a group's B, and that of its C, in a row of the operands.
__device__ __forceinline__ u32 key_column(const Sizes &sizes, u32 group) {
    return sizes.value * sizes.values + group * sizes.width;
}
__device__ __forceinline__ u32 query_column(const Sizes &sizes, u32 group) {
    return key_column(sizes, group) + sizes.key * sizes.width;
}

// The elements of a head's transposed state that a thread has: from row `row` and column lane % 4 * 2 on.
__device__ __forceinline__ void load_state(float (&state)[WIDTH / 2], const float *from, u32 row,
                                           const Sizes &sizes) {
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        const u32 v = row + i % 4 / 2 * 8, c = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        state[i] = from && c < sizes.width && v < sizes.values ? from[u64(c) * sizes.values + v] : 0.0f;
    }
}
__device__ __forceinline__ void store_state(float *to, const float (&state)[WIDTH / 2], u32 row,
                                            const Sizes &sizes) {
    if (!to) return;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        const u32 v = row + i % 4 / 2 * 8, c = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (c < sizes.width && v < sizes.values) to[u64(c) * sizes.values + v] = state[i];
    }
}
