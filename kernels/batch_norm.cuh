// Rows of [rows, channels] that blocks share, and sums over them.
#pragma once
#include "common.cuh"

// Launch: grid [blocks, tiles] of THREADS. A block owns `lanes` vectors of N channels, side by side; thread
// (lane, strand) keeps what belongs to its channels in registers and processes FLIGHT rows at once. The
// blocks of a tile take turns, so that all of them sweep the array together: sums from its last row to its
// first, the rest from the first, since L2 then still has the rows that the kernel before touched last. The
// host launches as many blocks as fit the GPU at once. Sums: the strands of a block are added in order, then
// the blocks (runs) by a second kernel.

// Rows of a thread whose loads are on their way together: FLIGHT_BYTES of an array.
template <typename T> struct Flight {
    static const u32 ROWS = FLIGHT_BYTES / (WIDE * sizeof(T));
};

// The vector of channels of a thread, and its rows.
template <int N> struct Owned {
    u32 lanes, lane, strand, strands, channel, channels;
    bool idle;
    __device__ __forceinline__ Owned(u32 lanes, u32 channels) : lanes(lanes), channels(channels) {
        lane = threadIdx.x & (lanes - 1);
        strand = threadIdx.x / lanes;
        strands = THREADS / lanes;
        channel = (blockIdx.y * lanes + lane) * N;
        idle = channel >= channels;
    }
    // Calls `visit(at, load(at))` with the first element of each of the thread's rows; FLIGHT loads are
    // issued before the first is used.
    template <bool FROM_LAST, u32 FLIGHT, typename Load, typename Visit>
    __device__ __forceinline__ void rows(u32 rows, Load load, Visit visit) const {
        const u32 step = strands * FLIGHT, turns = (rows + step - 1) / step;
        const u64 next = u64(strands) * channels;
        for (u32 turn = blockIdx.x; turn < turns; turn += gridDim.x) {
            const u32 row = (FROM_LAST ? turns - 1 - turn : turn) * step + strand;
            u64 at = u64(row) * channels + channel;
            if (row + (FLIGHT - 1) * strands < rows) {
                decltype(load(at)) held[FLIGHT];
#pragma unroll
                for (u32 i = 0; i < FLIGHT; i++) held[i] = load(at + i * next);
#pragma unroll
                for (u32 i = 0; i < FLIGHT; i++) visit(at + i * next, held[i]);
            } else {
#pragma unroll 1
                for (u32 last = row; last < rows; last += strands, at += next) visit(at, load(at));
            }
        }
    }
};

// A row of ARRAYS arrays.
template <typename T, int N, int ARRAYS> struct Held {
    Vector<T, N> of[ARRAYS];
    __device__ __forceinline__ float at(int array, int i) const { return to_f32(of[array].at[i]); }
};

// Adds the strands' sums in order, a channel per thread, and writes the block's part of `partial`.
template <int N>
__device__ __forceinline__ void add_strands(const Owned<N> &own, const Floats<N> &mine, float *partial) {
    __shared__ float sums[THREADS * N];
    const u32 width = own.lanes * N;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) sums[own.strand * width + own.lane * N + i] = mine.at[i];
    __syncthreads();
    const u32 first = blockIdx.y * width;
    for (u32 column = threadIdx.x; column < width; column += THREADS) {
        if (first + column < own.channels) {
            float total = 0.0f;
#pragma unroll 8
            for (u32 other = 0; other < own.strands; other++) total += sums[other * width + column];
            partial[first + column] = total;
        }
    }
}

// The two sums of a channel over all runs of `partial`. A block owns WARPS channels: the runs that a thread
// adds are WARP apart, then a warp adds its lanes.
#define WARPS (THREADS / WARP)
struct Sums {
    u32 channel;
    float first, second;
    // Whether the thread is to write the channel's results.
    bool writes;
    __device__ __forceinline__ Sums(const float *partial, u32 channels, u32 runs) {
        __shared__ float sums[2][WARP][WARPS + 1];
        const u32 column = threadIdx.x % WARPS, strand = threadIdx.x / WARPS;
        channel = blockIdx.x * WARPS + column;
        first = second = 0.0f;
        if (channel < channels) {
#pragma unroll 4
            for (u32 run = strand; run < runs; run += WARP) {
                first += partial[u64(run) * 2 * channels + channel];
                second += partial[(u64(run) * 2 + 1) * channels + channel];
            }
        }
        sums[0][strand][column] = first;
        sums[1][strand][column] = second;
        __syncthreads();
        const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        channel = blockIdx.x * WARPS + warp;
        first = warp_sum(sums[0][lane][warp]);
        second = warp_sum(sums[1][lane][warp]);
        writes = lane == 0 && channel < channels;
    }
};
