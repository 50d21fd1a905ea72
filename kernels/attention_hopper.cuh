// Causal attention in half precision with Hopper's warpgroup matmuls (wgmma, sm_90a), for HEAD_DIM 64, 80,
// 128 and 256: code shared by the forward and the backward kernels. For other architectures both are empty
// and attention.cu is used: the same algorithm, with results that differ by rounding only. Operands as there.
//
// A block is one producer warpgroup and CONSUMERS (2 or 3) consumer warpgroups, which multiply 64 rows each.
// Three warps of the producer copy every third tile each and the fourth relays: copies count as ordinary
// stores, wgmma reads through the asynchronous proxy, and the fence between the two would cost consumers more
// than it costs an otherwise idle warp. Weights go from the accumulators of one matmul to the left operand of
// the next in registers. One block a multiprocessor lives for the whole launch and takes pairs of row blocks
// (i, n - 1 - i), all of about one length, so that copies for the next pair run ahead while the last is
// stored.
//
// Only where WINDOWED is defined do queries see the last `window` keys up to their own, fewer than there are
// positions: the code for it would make the kernels of other models slower. Tiles outside of all windows of a
// block are not copied, and consumers skip those outside of their own rows' windows.
//
// Only where PIECE is defined are queries those of a piece of a sequence, from position `first_position` on,
// a multiple of 64, and keys those of all `rows_of_keys` positions, of which the piece sees those up to its
// end.
//
// Only where DROPPED is defined are weights dropped, those that attention_masks.cuh drops: positions 8 apart
// share four random words, and a thread has the weights of such squares. It draws them while matmuls run, and
// keeps one bit for each of its weights. Sums of kept weights are scaled once, at their end.
//
// Shapes: as in attention.cu. Letters as in CONTRIBUTING.md.
#pragma once
#include "hopper.cuh"
#include "maximum.cuh"
#include "philox.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define D HEAD_DIM
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)
#define GROUP 128  // threads of a warpgroup
#define COPIERS 3  // warps
#define RELAY 3    // the warp
#define BLOCK (GROUP + CONSUMERS * GROUP)
#ifdef SHARED_ROWS  // consumers work on the same rows
#define ROWS CONSUMER_ROWS
#else
#define ROWS (CONSUMER_ROWS * CONSUMERS)  // positions that a block owns
#endif
#define PANELS ((D + 63) / 64)     // parts of a tile, of 64 columns each
#define OWN_TILE (ROWS * PANELS * 128)

#ifdef WINDOWED
constexpr bool IS_WINDOWED = true;
#define WINDOW window
#define WINDOW_PARAMETER , u32 window
#define WINDOW_ARGUMENT , window
#else
constexpr bool IS_WINDOWED = false;
#define WINDOW 0u
#define WINDOW_PARAMETER
#define WINDOW_ARGUMENT
#endif

#ifdef PIECE
constexpr bool IS_PIECE = true;
#define POSITION first_position
#define ROWS_OF_KEYS rows_of_keys
#define PIECE_PARAMETERS , u32 first_position, u32 rows_of_keys
#define PIECE_ARGUMENTS , first_position, rows_of_keys
#else
constexpr bool IS_PIECE = false;
#define POSITION 0u
#define ROWS_OF_KEYS time
#define PIECE_PARAMETERS
#define PIECE_ARGUMENTS
#endif

#ifdef DROPPED
constexpr bool IS_DROPPED = true;
#define DROPOUT Dropout{key0, key1, threshold, kept_scale}
#define DROPOUT_PARAMETERS , u32 key0, u32 key1, u32 threshold, float kept_scale
#else
constexpr bool IS_DROPPED = false;
#define DROPOUT Dropout{0, 0, 0, 1.0f}
#define DROPOUT_PARAMETERS
#endif

extern __shared__ u8 shared_memory[];

// The barriers of a ring: `copied` by the lanes of copiers, `full` by the relay, `empty` by the consumers'
// lanes, each for its own reads.
template <u32 SIZE> struct Ring {
    u32 barriers;

    static constexpr u32 BYTES = 24 * SIZE;
    __device__ u32 copied(u32 index) const { return barriers + index * 8; }
    __device__ u32 full(u32 index) const { return barriers + (SIZE + index) * 8; }
    __device__ u32 empty(u32 index) const { return barriers + (2 * SIZE + index) * 8; }
    // `copiers` fill each stage.
    __device__ void init(u32 copiers) const {
        for (u32 i = 0; i < SIZE; ++i) {
            barrier_init(copied(i), copiers * WARP);
            barrier_init(full(i), 1);
            barrier_init(empty(i), CONSUMERS * GROUP);
        }
    }
    // The relay: passes on each stage in the order of the copies.
    __device__ __forceinline__ void relay(RingPosition<SIZE> &position) const {
        wait(copied(position.index), position.phase);
        publish_stores();
        if (threadIdx.x % WARP == 0) arrive(full(position.index));
        position.next();
    }
    // A copier: `copy` runs in the copier whose turn it is, which alone waits for the stage. Nobody else can
    // fill it, so that its parity cannot turn twice during the wait; and since SIZE is at least COPIERS, or 2
    // more where consumers empty stages out of order, the wait for the copier's last stage covers the round
    // before.
    template <typename F> __device__ __forceinline__ void fill(RingPosition<SIZE> &position, u32 &turn,
                                                               F copy) const {
        if (turn == 0) {
            wait(empty(position.index), position.phase ^ 1);
            copy(position.index);
            arrive_after_copies(copied(position.index));
        }
        position.next();
        turn = turn == 0 ? COPIERS - 1 : turn - 1;
    }
    // Each of all copiers, where they fill a stage together.
    template <typename F> __device__ __forceinline__ void fill_together(RingPosition<SIZE> &position,
                                                                        F copy) const {
        wait(empty(position.index), position.phase ^ 1);
        copy(position.index);
        arrive_after_copies(copied(position.index));
        position.next();
    }
    // A consumer.
    __device__ __forceinline__ void take(const RingPosition<SIZE> &position) const {
        wait(full(position.index), position.phase);
    }
    __device__ __forceinline__ void release(u32 index) const { arrive(empty(index)); }
};

// d[64, 2 * N] (+)= a[64, 16] * b, both in shared memory, b with rows along its columns.
__device__ __forceinline__ void product(float (&d)[32], u32 a, u32 b, int add) {
    asm volatile(
        "{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %34, 0;\n"
        "mov.b64 a, {%32, 0x40000040}; mov.b64 b, {%33, 0x40000040};\n" WGMMA
        "m64n64k16.f32." HALF_TYPE "." HALF_TYPE " {" LOW "}, a, b, p, 1, 1, 0, 0;}"
        : F32(d, 0)
        : "r"(a), "r"(b), "r"(add));
}
__device__ __forceinline__ void product(float (&d)[64], u32 a, u32 b, int add) {
    asm volatile(
        "{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %66, 0;\n"
        "mov.b64 a, {%64, 0x40000040}; mov.b64 b, {%65, 0x40000040};\n" WGMMA
        "m64n128k16.f32." HALF_TYPE "." HALF_TYPE " {" LOW "," HIGH "}, a, b, p, 1, 1, 0, 0;}"
        : F32(d, 0), F32(d, 32)
        : "r"(a), "r"(b), "r"(add));
}
// The same with a in registers and b with rows along the depth.
__device__ __forceinline__ void product(float (&d)[32], const u32 (&a)[4], u32 b, int add) {
    register_product<true>(d, a, b, add);
}
__device__ __forceinline__ void product(float (&d)[64], const u32 (&a)[4], u32 b, int add) {
    register_product<true>(d, a, b, add);
}
__device__ __forceinline__ void product(float (&d)[40], const u32 (&a)[4], u32 b, int add) {
    asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %45, 0; mov.b64 b, {%44, 0x40000040};\n" WGMMA
                 "m64n80k16.f32." HALF_TYPE "." HALF_TYPE " {" LOW
                 ",%32,%33,%34,%35,%36,%37,%38,%39}, {%40,%41,%42,%43}, b, p, 1, 1, 1;}"
                 : F32(d, 0), F4(d, 32), F4(d, 36)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}
__device__ __forceinline__ void product(float (&d)[128], const u32 (&a)[4], u32 b, int add) {
    asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %133, 0; mov.b64 b, {%132, 0x40000040};\n" WGMMA
                 "m64n256k16.f32." HALF_TYPE "." HALF_TYPE " {" LOW "," HIGH "," HIGHER "," HIGHEST
                 "}, {%128,%129,%130,%131}, b, p, 1, 1, 1;}"
                 : F32(d, 0), F32(d, 32), F32(d, 64), F32(d, 96)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

// d[64, 2 * N] = 64 rows of a tile of ROWS rows * the 2 * N rows of another, transposed, both [.., D]. `left`
// stays in shared memory: the compiler of CUDA 13.0 overwrote it when it was kept in registers over a loop.
template <int N> __device__ __forceinline__ void times_transposed(float (&d)[N], u32 left, u32 tile) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        product(d, left + AT(k / 4 * ROWS * 128 + k % 4 * 32), tile + AT(k / 4 * N * 256 + k % 4 * 32),
                k > 0);
}
// d[64, 2 * N] (+)= a[64, 16 * K] * tile[16 * K rows, 2 * N].
template <int K, int N>
__device__ __forceinline__ void times(float (&d)[N], const u32 (&a)[K][4], u32 tile, int add) {
#pragma unroll
    for (int k = 0; k < K; ++k) product(d, a[k], tile + AT(k * 16 * 128), k > 0 ? 1 : add);
}

// Packs the accumulators of one matmul as the left operand of the next.
template <int N> __device__ __forceinline__ void pack(u32 (&a)[N / 8][4], const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) a[i / 4][i % 4] = pack_half(x[2 * i], x[2 * i + 1]);
}

// ---- dropout

// One bit for each of N accumulators of a thread.
template <int N> struct Kept {
    u32 words[N / 32];
    __device__ __forceinline__ bool at(int i) const { return words[i / 32] >> i % 32 & 1; }
};

// Draws which weights are kept of 64 rows from position `row` on and 2 * N columns from `column` on, both
// multiples of 16. Rows are queries and columns keys, or with OWN_KEYS the reverse. `line` is the index of a
// sequence and query head.
template <bool OWN_KEYS, int N>
__device__ __forceinline__ void draw(Kept<N> &kept, const Dropout &dropout, u32 line, u32 row, u32 column) {
    const u32 own = row / 2 + threadIdx.x % GROUP / WARP * 8 + threadIdx.x % WARP / 4;
    const u32 other = column / 2 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int word = 0; word < N / 32; ++word) {
        u32 bits = 0;
        // Not unrolled: draws of several squares at once would take registers that matmuls have.
#pragma unroll 1
        for (u32 n = 0; n < 32; n += 8)
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const u32 across = other + word * 32 + n + odd;
                const Words words = philox(dropout.key0, dropout.key1, OWN_KEYS ? across : own,
                                           OWN_KEYS ? own : across, line, 0);
                u32 square = 0;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int far_row = i / 2, far_column = i % 2;
                    const u32 drawn = words.at[OWN_KEYS ? far_column * 2 + far_row : i];
                    square |= u32(drawn >= dropout.threshold) << far_column * 4 + far_row * 2 + odd;
                }
                bits |= square << n;
            }
        kept.words[word] = bits;
    }
}

// Sets dropped weights to 0.
template <int N> __device__ __forceinline__ void drop(float (&p)[N], const Kept<N> &kept) {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = kept.at(i) ? p[i] : 0.0f;
}

// ---- copies

// Queries, keys, values or dy of one head of one sequence.
struct Source {
    const Half *from;
    u64 stride;
};

// Starts one warp's copy of `N` rows from `first` on, or of part `part` of PARTS of them; rows past the end
// are zeros. The 8 lanes of one chunk of 16 bytes have 8 rows, which the swizzle spreads over all banks.
template <int N, int PARTS = 1>
__device__ __forceinline__ void copy_tile(u32 tile, Source source, u32 first, u32 time, u32 part = 0) {
    const u32 row = threadIdx.x % 8, chunk = threadIdx.x % WARP / 8;
    const u32 to = tile + row * 128 + ((chunk ^ row) << 4);
    const Half *from = source.from + u64(first + row + part * 8) * source.stride + chunk * 8;
    const bool whole = first + N <= time;
#pragma unroll 4
    for (u32 i = part * 8; i < N; i += 8 * PARTS) {
        const u32 bytes = whole || first + row + i < time ? 16 : 0;
        const Half *here = bytes ? from : source.from;
#pragma unroll
        for (u32 four = 0; four < (D + 31) / 32; ++four) {
            if (D % 32 != 0 && four * 32 + chunk * 8 >= D) break;
            const u32 target = (to ^ four % 2 * 64) + four / 2 * N * 128 + i * 128;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target),
                         "l"(here + four * 32), "r"(bytes)
                         : "memory");
        }
        from += 8 * PARTS * source.stride;
    }
}
// The same for `N` numbers.
template <int N>
__device__ __forceinline__ void copy_numbers(u32 to, const float *line, u32 first, u32 time) {
#pragma unroll
    for (u32 i = threadIdx.x % WARP; i < N; i += WARP) {
        const bool inside = first + i < time;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + i * 4),
                     "l"(inside ? line + first + i : line), "r"(inside ? 4 : 0)
                     : "memory");
    }
}
__device__ __forceinline__ void finish_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- work

// Items of a launch: pairs of row blocks of one head. Heads vary slowest, so that L2 serves operands that
// blocks share.
struct Work {
    u32 blocks, pairs, items;
    __device__ Work(u32 time, u32 heads, u32 batch)
        : blocks((time + ROWS - 1) / ROWS), pairs((blocks + 1) / 2), items(pairs * heads * batch) {}
};

// Calls f(block, head, sequence) for all items of this block of threads. Each round begins with another pair,
// so that no block of threads always gets the pair whose last block is cut short. With PIECE pairs of keys
// differ in length, and each line begins far from where the last began.
template <typename F> __device__ __forceinline__ void for_work(const Work &work, u32 heads, F f) {
    const u32 lines = max(gridDim.x / work.pairs, 1);
    for (u32 item = blockIdx.x; item < work.items; item += gridDim.x) {
        const u32 line = item / work.pairs, turn = IS_PIECE ? line * (work.pairs * 5 / 8) : line / lines;
        const u32 pair = (item + turn) % work.pairs, other = work.blocks - 1 - pair;
        for (u32 half = pair == other; half < 2; ++half)
            f(half == 0 ? other : pair, line % heads, line / heads);
    }
}

// Registers of a thread in producers, FEW, and in consumers: together all of a multiprocessor.
template <int FEW> __device__ __forceinline__ void few_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEW));
}
template <int FEW> __device__ __forceinline__ void many_registers() {
    constexpr int ALL = CONSUMERS == 2 ? 504 : 512, MANY = (ALL - FEW) / CONSUMERS;
    static_assert(FEW % 8 == 0 && MANY % 8 == 0 && FEW + CONSUMERS * MANY == ALL);
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MANY));
}

// Row of the block whose accumulators a consumer's thread has; it also has the row 8 further.
__device__ __forceinline__ u32 own_row(u32 group) {
    return group * 64 + threadIdx.x % GROUP / WARP * 16 + threadIdx.x % WARP / 4;
}

// Stores row and row + 8 of 64 rows, each times its factor. A quad swaps its parts so that each thread stores
// 16 bytes. Returns the largest magnitudes of the stored elements, a pair in half precision.
template <int N>
__device__ __forceinline__ u32 store_rows(Half *to, u64 stride, u32 row, u32 time, const float (&acc)[N],
                                          float factor0, float factor1) {
    constexpr int TILES = N / 4;  // of 8 columns
    const u32 quad = threadIdx.x % 4;
    u32 largest = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float factor = half == 0 ? factor0 : factor1;
        Half *line = to + u64(row + half * 8) * stride + quad * 8;
#pragma unroll
        for (int n = 0; n < TILES; n += 4) {
            u32 x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = n + i < TILES ? (n + i) * 4 + half * 2 : -1;
                x[i] = at < 0 ? 0 : pack_half(acc[at] * factor, acc[at + 1] * factor);
            }
            if (row + half * 8 < time) {
#pragma unroll
                for (int i = 0; i < 4; ++i) largest = larger_pair(largest, x[i]);
            }
            transpose_quad(x);
            if (row + half * 8 < time && (TILES % 4 == 0 || n + quad < TILES))
                store<4>(reinterpret_cast<u32 *>(line + n * 8), Vector<u32, 4>{{x[0], x[1], x[2], x[3]}});
        }
    }
    return largest;
}

#endif
