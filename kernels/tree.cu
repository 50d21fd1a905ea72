// The sum of several parts, as a balanced binary tree in their order with each node rounded to the type. A
// part may be in the memory of another GPU, which is then read over the link between them.
#include "common.cuh"

// Launch: THREADS threads, any number of blocks: few blocks leave multiprocessors to other kernels, and
// suffice to fill the links. A thread loads UNROLL vectors of every part before it uses the first, LOADS
// loads of 16 bytes in all. All pointers are 16-byte aligned; elements are counted in vectors. Floor: every
// part once through memory or over its link; with `everywhere`, also the sum once into every part.

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
    }

FOR_EACH_TYPE(SUM_OF)

// Addresses of up to MOST_PARTS parts, aligned for their elements.
struct Parts {
    const void *at[MOST_PARTS];
};

// Adds `count` parts, from 1 to MOST_PARTS, one element at a time. Launch: THREADS threads, any number of
// blocks. Sums of complete subtrees wait in `held` by their level, as the digits of a binary counter of the
// parts added so far; the left subtree of every node thus has the largest power of two below its number of
// parts.
// One thread reads and writes each element, all parts before the sum, so the sum may overwrite a part.
template <typename T>
__device__ __forceinline__ void tree_of_any(const Parts &parts, u32 count, T *own, u64 elements) {
    const auto added = [](T left, T right) { return from_f32<T>(to_f32(left) + to_f32(right)); };
    const u64 stride = u64(gridDim.x) * THREADS;
    for (u64 i = u64(blockIdx.x) * THREADS + threadIdx.x; i < elements; i += stride) {
        T held[LEVELS];
        for (u32 part = 0; part < count; part++) {
            T sum = static_cast<const T *>(parts.at[part])[i];
            u32 level = 0;
            for (; (part >> level & 1u) != 0; level++) sum = added(held[level], sum);
            held[level] = sum;
        }
        // What is left are the digits of `count`; lower levels stand to the right of higher ones.
        u32 level = __ffs(int(count)) - 1;
        T sum = held[level];
        for (level++; (count >> level) != 0; level++)
            if ((count >> level & 1u) != 0) sum = added(held[level], sum);
        own[i] = sum;
    }
}

#define SUM_OF_ANY(NAME, T)                                                          \
    KERNEL __launch_bounds__(THREADS)                                                \
        tree_any_##NAME(const Parts parts, u32 count, T *own, u64 elements) {        \
        tree_of_any<T>(parts, count, own, elements);                                 \
    }

FOR_EACH_TYPE(SUM_OF_ANY)
