// Tables of tensors that one launch works on: for each tensor, and one past the last, its first block.
#pragma once
#include "common.cuh"

// Returns the last tensor that begins at or before a block, to which the block belongs.
__device__ __forceinline__ u32 owner_of(const u32 *firsts, u32 count, u32 block) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (firsts[middle] <= block) low = middle;
        else high = middle;
    }
    return low;
}
