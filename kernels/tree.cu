// The sum of several parts, as a binary tree in their order with each node rounded to the type: kernels for
// the balanced tree over 2, 4 or 8 parts, and one for any tree. A part may be in the memory of another GPU,
// which is then read over the link between them.
#include "common.cuh"

// Launch: THREADS threads, any number of blocks: few blocks leave multiprocessors to other kernels, and
// suffice to fill the links. A thread loads UNROLL vectors of every part before it uses the first, LOADS
// loads of 16 bytes in all; for any tree one vector of GROUP parts. All pointers are 16-byte aligned;
// elements are counted in vectors. Floor: every part once through memory or over its link; with `everywhere`,
// also the sum once into every part, and with `targets` into those.

// 16 bytes of one part.
struct alignas(16) Words {
    u32 at[4];
};

// Loads without allocating in the first cache, because parts are read once.
__device__ __forceinline__ Words load_once(const Words *from) {
    Words held;
    asm volatile("ld.relaxed.sys.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(held.at[0]), "=r"(held.at[1]), "=r"(held.at[2]), "=r"(held.at[3])
                 : "l"(from));
    return held;
}

// The sum of two words, element by element.
template <typename T> __device__ __forceinline__ u32 sum(u32 a, u32 b) {
    const float first = Word<T>::first(a) + Word<T>::first(b);
    const float last = Word<T>::N == 1 ? first : Word<T>::last(a) + Word<T>::last(b);
    return Word<T>::round(first, last);
}
template <typename T> __device__ __forceinline__ void add(Words &to, const Words &from) {
#pragma unroll
    for (int i = 0; i < 4; i++) to.at[i] = sum<T>(to.at[i], from.at[i]);
}

// Adds `vectors` vectors of the parts. One thread reads and writes each vector, all parts before the sum, so
// the sum may overwrite a part.
template <typename T, int PARTS>
__device__ __forceinline__ void tree(Words *const (&parts)[PARTS], Words *own, u64 vectors, u32 everywhere) {
    constexpr int UNROLL = LOADS / PARTS;
    const u64 stride = u64(gridDim.x) * (THREADS * UNROLL);
    for (u64 first = u64(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x; first < vectors; first += stride) {
        Words held[UNROLL][PARTS];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const u64 at = first + i * THREADS;
            if (at < vectors) {
#pragma unroll
                for (int part = 0; part < PARTS; part++) held[i][part] = load_once(parts[part] + at);
            }
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const u64 at = first + i * THREADS;
            if (at >= vectors) continue;
#pragma unroll
            for (int step = 1; step < PARTS; step *= 2) {
#pragma unroll
                for (int left = 0; left + step < PARTS; left += 2 * step)
                    add<T>(held[i][left], held[i][left + step]);
            }
            if (everywhere) {
#pragma unroll
                for (int part = 0; part < PARTS; part++) parts[part][at] = held[i][0];
            } else {
                own[at] = held[i][0];
            }
        }
    }
}

// Parts of any tree whose vectors a thread loads before it adds the first.
#define GROUP 8

// Adds `vectors` vectors of `count` parts in the order of any tree: JOIN_BITS bits of `order` for each part,
// the number of times that the last two sums are added after it. Sums that wait for their right sibling stay
// in registers: all indices are constants once the loops are unrolled, and the comparisons are the same in
// all threads. As above, one thread reads and writes each vector. The sum goes to the parts whose bits
// `targets` has, or to `own` if it has none.
template <typename T>
__device__ __forceinline__ void any_tree(Words *const (&parts)[MOST_PARTS], Words *own, u64 vectors,
                                         u32 targets, u32 count, u64 order) {
    const u64 stride = u64(gridDim.x) * THREADS;
    for (u64 at = u64(blockIdx.x) * THREADS + threadIdx.x; at < vectors; at += stride) {
        Words waiting[MOST_DEPTH] = {};
        u32 height = 0;
#pragma unroll
        for (int group = 0; group < MOST_PARTS; group += GROUP) {
            if (group >= count) continue;
            Words held[GROUP];
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (group + i < count) held[i] = load_once(parts[group + i] + at);
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (group + i >= count) continue;
                Words right = held[i];
                u32 joins = u32(order >> (JOIN_BITS * (group + i))) & ((1u << JOIN_BITS) - 1);
                for (; joins > 0; joins--) {
                    height--;
                    Words left = waiting[0];
#pragma unroll
                    for (int depth = 1; depth < MOST_DEPTH; depth++)
                        if (depth == height) left = waiting[depth];
                    add<T>(left, right);
                    right = left;
                }
#pragma unroll
                for (int depth = 0; depth < MOST_DEPTH; depth++)
                    if (depth == height) waiting[depth] = right;
                height++;
            }
        }
        if (targets == 0) own[at] = waiting[0];
#pragma unroll
        for (int part = 0; part < MOST_PARTS; part++)
            if (targets >> part & 1) parts[part][at] = waiting[0];
    }
}

#define FOUR(P) Words *P##0, Words *P##1, Words *P##2, Words *P##3
#define NAMES(P) P##0, P##1, P##2, P##3

#define SUM_OF(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                    \
        tree_2_##NAME(Words *a, Words *b, Words *own, u64 vectors, u32 everywhere) {                     \
        Words *const parts[2] = {a, b};                                                                  \
        tree<T>(parts, own, vectors, everywhere);                                                        \
    }                                                                                                    \
    KERNEL __launch_bounds__(THREADS)                                                                    \
        tree_4_##NAME(Words *a, Words *b, Words *c, Words *d, Words *own, u64 vectors, u32 everywhere) { \
        Words *const parts[4] = {a, b, c, d};                                                            \
        tree<T>(parts, own, vectors, everywhere);                                                        \
    }                                                                                                    \
    KERNEL __launch_bounds__(THREADS)                                                                    \
        tree_8_##NAME(Words *a, Words *b, Words *c, Words *d, Words *e, Words *f, Words *g, Words *h,    \
                      Words *own, u64 vectors, u32 everywhere) {                                         \
        Words *const parts[8] = {a, b, c, d, e, f, g, h};                                                \
        tree<T>(parts, own, vectors, everywhere);                                                        \
    }                                                                                                    \
    KERNEL __launch_bounds__(THREADS)                                                                    \
        tree_any_##NAME(FOUR(a), FOUR(b), FOUR(c), FOUR(d), Words *own, u64 vectors, u32 targets,        \
                        u32 count, u64 order) {                                                          \
        Words *const parts[MOST_PARTS] = {NAMES(a), NAMES(b), NAMES(c), NAMES(d)};                       \
        any_tree<T>(parts, own, vectors, targets, count, order);                                         \
    }

FOR_EACH_TYPE(SUM_OF)
