// The sum of several parts in the order of any binary tree over them, each node rounded to the type.
#pragma once
#include "common.cuh"

// The order of a tree over up to PARTS parts: JOIN_BITS bits for each part, the number of times that the last
// two sums are added after it.
template <int PARTS> struct Order {
    u64 words[PARTS * JOIN_BITS / 64];
};

// Loads an element.
template <typename T> __device__ __forceinline__ T load_unit(const T *from) { return *from; }

// Adds an element.
template <typename T> __device__ __forceinline__ void add_unit(T &to, const T &from) {
    to = from_f32<T>(to_f32(to) + to_f32(from));
}

// The sum at unit `at` of `count` parts of type T in the order of any tree; a unit is an element, or a vector
// of elements that has a `load_unit` and an `add_unit` of its own. SIZE parts are loaded at once. Sums that
// wait for their right sibling, at most DEPTH, stay in registers: all their indices are constants once the
// loops are unrolled, and the comparisons are the same in all threads.
template <typename T, int SIZE, int DEPTH, typename Unit, typename Source, typename Joins>
__device__ __forceinline__ Unit tree_at(const Source &source, const Joins &order, u32 count, u64 at) {
    Unit waiting[DEPTH] = {};
    u32 height = 0;
#pragma unroll 1
    for (u32 group = 0; group < count; group += SIZE) {
        const u32 bit = JOIN_BITS * group;
        const u64 joins_of_group = order.words[bit / 64] >> (bit % 64);
        Unit held[SIZE];
#pragma unroll
        for (int i = 0; i < SIZE; i++)
            if (group + i < count) held[i] = load_unit(static_cast<const Unit *>(source.part(group + i)) + at);
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            if (group + i >= count) continue;
            Unit right = held[i];
            u32 joins = u32(joins_of_group >> (JOIN_BITS * i)) & ((1u << JOIN_BITS) - 1);
            for (; joins > 0; joins--) {
                height--;
                Unit left = waiting[0];
#pragma unroll
                for (int depth = 1; depth < DEPTH; depth++)
                    if (depth == height) left = waiting[depth];
                add_unit<T>(left, right);
                right = left;
            }
#pragma unroll
            for (int depth = 0; depth < DEPTH; depth++)
                if (depth == height) waiting[depth] = right;
            height++;
        }
    }
    return waiting[0];
}
