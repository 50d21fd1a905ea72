// The sum of several parts, as a binary tree in their order with each node rounded to the type: kernels for
// the balanced tree over 2, 4 or 8 parts, and one for any tree. A part may be in the memory of another GPU,
// which is then read over the link between them.
#include "tree.cuh"

// Launch: THREADS threads, any number of blocks: few blocks leave multiprocessors to other kernels, and
// suffice to fill the links. A thread loads UNROLL vectors of every part before it uses the first, LOADS
// loads of 16 bytes in all; for any tree one vector of GROUP parts. All pointers are 16-byte aligned, and
// elements are counted in vectors; any tree also adds `elements` instead, aligned as elements. Floor: every
// part once through memory or over its link; with `everywhere`, also the sum once into every part, and with
// `targets` into those.

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

// Parts of any tree that a thread loads before it adds the first.
#define GROUP 8

// Addresses of up to MOST_PARTS parts.
struct Parts {
    void *at[MOST_PARTS];

    __device__ __forceinline__ const void *part(u32 index) const { return at[index]; }
};

__device__ __forceinline__ Words load_unit(const Words *from) { return load_once(from); }
template <typename T> __device__ __forceinline__ void add_unit(Words &to, const Words &from) {
    add<T>(to, from);
}

// Adds `units` units of the parts. As above, one thread reads and writes each unit. The sum goes to the parts
// whose bits `targets` has, or to `own` if it has none.
template <typename T, typename Unit>
__device__ __forceinline__ void any_tree(const Parts &parts, const Order<MOST_PARTS> &order, u32 count,
                                         Unit *own, u64 units, u64 targets) {
    const u64 stride = u64(gridDim.x) * THREADS;
    for (u64 at = u64(blockIdx.x) * THREADS + threadIdx.x; at < units; at += stride) {
        const Unit sum = tree_at<T, GROUP, MOST_DEPTH, Unit>(parts, order, count, at);
        if (targets == 0) own[at] = sum;
        for (u64 left = targets; left != 0; left &= left - 1)
            static_cast<Unit *>(parts.at[__ffsll(static_cast<long long>(left)) - 1])[at] = sum;
    }
}

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
        tree_any_##NAME(const Parts parts, void *own, u64 vectors, u64 elements, u64 targets, u32 count, \
                        const Order<MOST_PARTS> order) {                                                 \
        any_tree<T>(parts, order, count, static_cast<Words *>(own), vectors, targets);                   \
        any_tree<T>(parts, order, count, static_cast<T *>(own), elements, targets);                      \
    }

FOR_EACH_TYPE(SUM_OF)
