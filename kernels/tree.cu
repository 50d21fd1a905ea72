// The sum over ranks whose memory this GPU reaches: one pass that reads every rank's values over the links between GPUs,
// adds them as a balanced binary tree in rank order, each node rounded to the type, and writes the sum. Values that were
// brought here before are added by the same kernels.
#include "common.cuh"

// Launch: THREADS threads and as many blocks as the caller likes: few leave the multiprocessors to others, and the links
// are full when enough loads are under way. A thread has UNROLL vectors of every rank in flight before the first is used,
// 16 loads of 16 bytes. All pointers are 16-byte aligned; elements are counted in vectors. Floor: every rank's values once
// over the link that brings them in, and where `everywhere`, the sum once over it for every other rank.

// 16 bytes of one rank: four f32, or eight bf16 in pairs.
struct alignas(16) Words { u32 at[4]; };

// Other ranks' memory is read once: it would only take the place of something else in the cache.
__device__ __forceinline__ Words load_once(const Words *from) {
    Words held;
    asm volatile("ld.relaxed.sys.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(held.at[0]), "=r"(held.at[1]), "=r"(held.at[2]), "=r"(held.at[3])
                 : "l"(from));
    return held;
}

template <typename T> __device__ __forceinline__ u32 sum(u32 a, u32 b);
template <> __device__ __forceinline__ u32 sum<float>(u32 a, u32 b) {
    return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
}
template <> __device__ __forceinline__ u32 sum<bf16>(u32 a, u32 b) {
    const float low = __uint_as_float(a << 16) + __uint_as_float(b << 16);
    const float high = __uint_as_float(a & 0xffff0000u) + __uint_as_float(b & 0xffff0000u);
    return pack_bf16(low, high);
}
template <typename T> __device__ __forceinline__ void add(Words &to, const Words &from) {
#pragma unroll
    for (int i = 0; i < 4; i++) to.at[i] = sum<T>(to.at[i], from.at[i]);
}

// Adds the ranks' `vectors` vectors. Every place is read and written by one thread, which reads all ranks' before it
// writes: where the sum goes may be where a value was.
template <typename T, int RANKS>
__device__ __forceinline__ void tree(Words *const (&ranks)[RANKS], Words *own, u64 vectors, u32 everywhere) {
    constexpr int UNROLL = LOADS / RANKS;
    const u64 stride = u64(gridDim.x) * (THREADS * UNROLL);
    for (u64 first = u64(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x; first < vectors; first += stride) {
        Words held[UNROLL][RANKS];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const u64 at = first + i * THREADS;
            if (at < vectors) {
#pragma unroll
                for (int rank = 0; rank < RANKS; rank++) held[i][rank] = load_once(ranks[rank] + at);
            }
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const u64 at = first + i * THREADS;
            if (at >= vectors) continue;
#pragma unroll
            for (int step = 1; step < RANKS; step *= 2) {
#pragma unroll
                for (int left = 0; left + step < RANKS; left += 2 * step) add<T>(held[i][left], held[i][left + step]);
            }
            if (everywhere) {
#pragma unroll
                for (int rank = 0; rank < RANKS; rank++) ranks[rank][at] = held[i][0];
            } else {
                own[at] = held[i][0];
            }
        }
    }
}

#define SUM_OF(NAME, T)                                                                                                \
    KERNEL __launch_bounds__(THREADS) tree_2_##NAME(Words *a, Words *b, Words *own, u64 vectors, u32 everywhere) {   \
        Words *const ranks[2] = {a, b};                                                                                \
        tree<T>(ranks, own, vectors, everywhere);                                                                      \
    }                                                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                                  \
    tree_4_##NAME(Words *a, Words *b, Words *c, Words *d, Words *own, u64 vectors, u32 everywhere) {                 \
        Words *const ranks[4] = {a, b, c, d};                                                                          \
        tree<T>(ranks, own, vectors, everywhere);                                                                      \
    }                                                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                                  \
    tree_8_##NAME(Words *a, Words *b, Words *c, Words *d, Words *e, Words *f, Words *g, Words *h, Words *own,        \
                    u64 vectors, u32 everywhere) {                                                                     \
        Words *const ranks[8] = {a, b, c, d, e, f, g, h};                                                              \
        tree<T>(ranks, own, vectors, everywhere);                                                                      \
    }

FOR_EACH_TYPE(SUM_OF)
