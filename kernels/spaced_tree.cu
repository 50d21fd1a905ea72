// The sum of many parts at equal distances in memory, as a binary tree in their order with each node rounded
// to the type: shards of a bucket that a rank received from all others.
#include "tree.cuh"

// Launch: THREADS threads, any number of blocks; a thread loads GROUP parts of an element before it adds the
// first. Elements rather than vectors: a shard of many ranks is short, and more threads read more of it at a
// time. Floor: every part once through memory, and the sum.

// Addresses of up to MOST_ELSEWHERE parts.
struct Elsewhere {
    const void *at[MOST_ELSEWHERE];
};

// Parts at equal distances, but for those from `first` to `end`.
struct Spaced {
    const char *anchor;
    u64 stride;
    u32 anchor_index, first, end;
    const Elsewhere &elsewhere;

    __device__ __forceinline__ const void *part(u32 index) const {
        if (index >= first && index < end) return elsewhere.at[index - first];
        // Modulo 2^64, also for parts before the anchor.
        return anchor + stride * (u64(index) - u64(anchor_index));
    }
};

#define SUM_OF(NAME, T)                                                                       \
    KERNEL __launch_bounds__(THREADS)                                                         \
        spaced_tree_##NAME(const char *anchor, u64 stride, const Elsewhere elsewhere, T *own, \
                           u64 elements, u32 anchor_index, u32 first, u32 end, u32 count,     \
                           const Order<MOST_PARTS> order) {                                   \
        const Spaced parts = {anchor, stride, anchor_index, first, end, elsewhere};           \
        const u64 threads = u64(gridDim.x) * THREADS;                                         \
        for (u64 at = u64(blockIdx.x) * THREADS + threadIdx.x; at < elements; at += threads)  \
            own[at] = tree_at<T, GROUP, MOST_DEPTH, T>(parts, order, count, at);              \
    }

FOR_EACH_TYPE(SUM_OF)
