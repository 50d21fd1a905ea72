// Random words that are functions of key and counter: Philox 4x32-10, as in crates/philox.
#pragma once
#include "common.cuh"

struct Words {
    u32 at[4];
};

__device__ __forceinline__ Words philox(u32 key0, u32 key1, u32 c0, u32 c1, u32 c2, u32 c3) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// A dropout mask: an element is dropped if its word is below the threshold, and otherwise multiplied by the
// scale. A threshold of 0 drops nothing.
struct Dropout {
    u32 key0, key1, threshold;
    float scale;
    __device__ __forceinline__ float factor(u32 word) const { return word < threshold ? 0.0f : scale; }
};
