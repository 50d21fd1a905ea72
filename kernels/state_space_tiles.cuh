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

// A warp's transposed state, 16 columns of a head, by slices of its rows.
typedef float State[SLICES][SLICE / 2];

// Loads the elements of a head's state that a thread has: from column `row` and row lane % 4 * 2 on; zeros
// without a source.
__device__ __forceinline__ void load_state(State &state, const float *from, u32 row, const Sizes &sizes) {
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++)
#pragma unroll
        for (int i = 0; i < SLICE / 2; i++) {
            const u32 v = row + i % 4 / 2 * 8, c = slice * SLICE + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
            const bool inside = from && c < sizes.width && v < sizes.values;
            state[slice][i] = inside ? from[u64(c) * sizes.values + v] : 0.0f;
        }
}
__device__ __forceinline__ void store_state(float *to, const State &state, u32 row, const Sizes &sizes) {
    if (!to) return;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++)
#pragma unroll
        for (int i = 0; i < SLICE / 2; i++) {
            const u32 v = row + i % 4 / 2 * 8, c = slice * SLICE + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
            if (c < sizes.width && v < sizes.values) to[u64(c) * sizes.values + v] = state[slice][i];
        }
}

// Stores a state as rows of WIDTH in half precision; `to` is the element of the head's first column.
__device__ __forceinline__ void store_rounded(Half *to, const State &state, u32 row, const Sizes &sizes) {
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++)
        store_rows<SLICE / 8>(to + slice * SLICE, WIDTH, row, sizes.values, SLICE, state[slice]);
}

// acc[16, CHUNK] = state * the rows of a tile, transposed. Calls `meanwhile` during the first matmul.
template <typename Meanwhile>
__device__ __forceinline__ void read_state(float (&acc)[CHUNK / 2], const State &state, u32 tile,
                                           Meanwhile meanwhile) {
    u32 packed[SLICE_STEPS][4];
    pack<SLICE / 8>(packed, state[0]);
    times_transposed<SLICE_STEPS, CHUNK / 8, true>(acc, packed, tile);
    meanwhile();
    finish_product<0>(acc, packed);
#pragma unroll
    for (int slice = 1; slice < SLICES; slice++) {
        pack<SLICE / 8>(packed, state[slice]);
        times_transposed<SLICE_STEPS, CHUNK / 8>(acc, packed, tile + slice * SLICE_TILE);
        finish_product<0>(acc, packed);
    }
}

// Begins state = kept * state + a[16, CHUNK] * a tile.
__device__ __forceinline__ void change_state(State &state, float kept, const u32 (&a)[TOKEN_STEPS][4],
                                             u32 tile) {
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++)
#pragma unroll
        for (int i = 0; i < SLICE / 2; i++) state[slice][i] *= kept;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++)
        times<TOKEN_STEPS, SLICE / 8>(state[slice], a, tile + slice * SLICE_TILE);
}
__device__ __forceinline__ void finish_state(State &state, const u32 (&a)[TOKEN_STEPS][4]) {
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) finish_product<0>(state[slice], a);
}
