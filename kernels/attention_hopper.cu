// Causal attention in bf16 on Hopper's warpgroup products (wgmma, sm_90a), for HEAD_DIM 64 and 128. Same algorithm and same
// interface as attention.cu; elsewhere this family is empty.
//
// A block is one producer warpgroup, which copies tiles into a ring of shared memory, and two consumer warpgroups of 64 rows
// each, which multiply. Weights go from the accumulators of one product to the left operand of the next in registers. One
// block a multiprocessor lives for the whole launch and takes pairs of row blocks (i, n - 1 - i), all of one length, so that
// copies for the next pair run ahead while the last is stored.
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define D HEAD_DIM
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)
#define GROUP 128  // threads of a warpgroup
#define BLOCK (3 * GROUP)
#define ROWS 128           // positions that a block owns, 64 by each consumer
#define PANELS (D / 64)    // a tile is panels of 64 columns, each row of one is 128 bytes
#define CONSUMER_WARPS 8

__device__ __forceinline__ u32 shared_address(const void *p) { return u32(__cvta_generic_to_shared(p)); }

// A value that is the same in all lanes, so that the compiler keeps what follows from it out of their registers.
__device__ __forceinline__ u32 uniform(u32 x) { return __shfl_sync(ALL_LANES, x, 0); }

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

extern __shared__ u8 shared_memory[];

// ---- mbarriers

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ bool passed(u32 barrier, u32 phase) {
    u32 done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
    return done != 0;
}
__device__ __forceinline__ void wait(u32 barrier, u32 phase) {
    while (!passed(barrier, phase)) {}
}

// A place in a ring of `SIZE`, and how often it went round.
template <u32 SIZE> struct Place {
    u32 index = 0, phase = 0;
    __device__ __forceinline__ void next() {
        if (++index == SIZE) index = 0, phase ^= 1;
    }
};

// ---- wgmma

// A tile in shared memory whose rows of 128 bytes are swizzled in groups of 8. `leading` is the distance of panels where the
// product runs along rows (transposed operands).
__device__ __forceinline__ u64 descriptor(u32 address, u32 leading) {
    return u64((address & 0x3ffff) >> 4) | u64(leading >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving uses of accumulators over a wait.
template <int N> __device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define F8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32_(d, i) F8(d, i), F8(d, i + 8), F8(d, i + 16), F8(d, i + 24)
#define D32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define D64 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// d[64, 2 * N] (+)= a[64, 16] * b, both in shared memory, b with rows along its columns.
__device__ __forceinline__ void product(float (&d)[32], u64 a, u64 b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " D32 ", %32, %33, p, 1, 1, 0, 0;}"
                 : F32_(d, 0) : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void product(float (&d)[64], u64 a, u64 b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " D64 ", %64, %65, p, 1, 1, 0, 0;}"
                 : F32_(d, 0), F32_(d, 32) : "l"(a), "l"(b), "r"(add));
}
// The same with a in registers; TRANSPOSED: b's rows run along the sum.
template <int TRANSPOSED> __device__ __forceinline__ void product(float (&d)[32], const u32 (&a)[4], u64 b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " D32 ", {%32,%33,%34,%35}, %36, p, 1, 1, %38;}"
                 : F32_(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED));
}
template <int TRANSPOSED> __device__ __forceinline__ void product(float (&d)[64], const u32 (&a)[4], u64 b, int add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " D64 ", {%64,%65,%66,%67}, %68, p, 1, 1, %70;}"
                 : F32_(d, 0), F32_(d, 32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED));
}

// 64 rows as left operands: in registers where they fit, else in shared memory.
#define LEFT_IN_REGISTERS (D == 64)
struct Left {
    u32 a[LEFT_IN_REGISTERS ? D / 16 : 1][4];
    u32 address;

    // `tile` has ROWS rows; takes those from `row` on.
    __device__ __forceinline__ void take(u32 tile, u32 row) {
        address = tile + row * 128;
        if constexpr (LEFT_IN_REGISTERS) {
            const u32 lane = threadIdx.x % WARP, line = row + threadIdx.x % GROUP / WARP * 16 + lane % 16;
#pragma unroll
            for (int k = 0; k < D / 16; ++k)
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(a[k][0]), "=r"(a[k][1]), "=r"(a[k][2]), "=r"(a[k][3])
                             : "r"(tile + line * 128 + (((2 * k + lane / 16) ^ (line & 7)) << 4)) : "memory");
        }
    }
    // d[64, 2 * N] = left[64, D] * tile[N rows, D], transposed.
    template <int N> __device__ __forceinline__ void times_transposed(float (&d)[N], u32 tile) const {
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            const u64 b = descriptor(tile + k / 4 * (N * 2 * 128) + k % 4 * 32, 16);
            if constexpr (LEFT_IN_REGISTERS)
                product<0>(d, a[k], b, k > 0);
            else
                product(d, descriptor(address + k / 4 * (ROWS * 128) + k % 4 * 32, 16), b, k > 0);
        }
    }
};

// d[64, D] (+)= a[64, 16 * K] * tile[16 * K rows, D].
template <int K> __device__ __forceinline__ void times(float (&d)[D / 2], const u32 (&a)[K][4], u32 tile, int add) {
#pragma unroll
    for (int k = 0; k < K; ++k) product<1>(d, a[k], descriptor(tile + k * 16 * 128, K * 16 * 128), add || k > 0);
}

// Accumulators of one product as the left operand of the next.
template <int N> __device__ __forceinline__ void pack(u32 (&a)[N / 8][4], const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) a[i / 4][i % 4] = pack_bf16(x[2 * i], x[2 * i + 1]);
}

// ---- copies

// A third of one head of one sequence.
struct Source {
    const bf16 *from;
    u64 stride;
};

// `barrier` counts this thread once what it has begun to copy is there.
__device__ __forceinline__ void arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Copies are writes as by ordinary stores, wgmma reads through the asynchronous proxy: a consumer has this between them.
__device__ __forceinline__ void copies_to_products() {
#ifndef NOFENCE
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Begins the copy of `N` rows from `first` on; rows past the end are zeros.
template <int N> __device__ __forceinline__ void copy_tile(u32 tile, Source source, u32 first, u32 time) {
    constexpr u32 CHUNKS = D / 8, STEP = GROUP / CHUNKS;
    const u32 row = threadIdx.x % GROUP / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const bf16 *from = source.from + u64(first + row) * source.stride + chunk * 8;
    const u32 to = tile + chunk / 8 * (N * 128) + row * 128 + (chunk % 8 << 4);
#pragma unroll
    for (u32 i = 0; i < N; i += STEP) {
        const bool inside = first + row + i < time;
        const u32 target = (to + i * 128) ^ ((row + i & 7) << 4);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(inside ? from : source.from),
                     "r"(inside ? 16 : 0) : "memory");
        from += STEP * source.stride;
    }
}

// ---- work

// Items of a launch: pairs of row blocks of one head. Heads vary slowest, so that L2 serves what blocks share.
struct Work {
    u32 blocks, pairs, items;
    __device__ Work(u32 time, u32 heads, u32 batch)
        : blocks((time + ROWS - 1) / ROWS), pairs((blocks + 1) / 2), items(pairs * heads * batch) {}
};

// f(block, head, sequence) for all that falls to this block of threads.
template <typename F> __device__ __forceinline__ void for_work(const Work &work, u32 heads, F f) {
    for (u32 item = blockIdx.x; item < work.items; item += gridDim.x) {
        const u32 pair = item % work.pairs, line = item / work.pairs;
        for (u32 half = 0; half < 2; ++half) {
            const u32 block = half == 0 ? work.blocks - 1 - pair : pair;
            if (half == 1 && block == work.blocks - 1 - pair) break;
            f(block, line % heads, line / heads);
        }
    }
}

// Registers of a thread: LOW of 128 producers and of 256 consumers what is left.
template <int LOW> __device__ __forceinline__ void producer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOW));
}
template <int LOW> __device__ __forceinline__ void consumer_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(252 - LOW / 2 & ~7));
}

// 64 rows from `first` on: row g and g + 8 of each warp's 16, each times its factor. A quad swaps its parts so that each
// thread stores 16 bytes.
__device__ __forceinline__ void store_rows(bf16 *to, u64 stride, u32 row, u32 time, const float (&acc)[D / 2], float factor0,
                                           float factor1) {
    const u32 quad = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float factor = half == 0 ? factor0 : factor1;
#pragma unroll
        for (int n = 0; n < D / 8; n += 4) {
            u32 x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                x[i] = pack_bf16(acc[(n + i) * 4 + half * 2] * factor, acc[(n + i) * 4 + half * 2 + 1] * factor);
            // Transposes 4 by 4 among the quad, in two rounds.
            const u32 a = __shfl_xor_sync(ALL_LANES, quad & 1 ? x[0] : x[1], 1);
            const u32 b = __shfl_xor_sync(ALL_LANES, quad & 1 ? x[2] : x[3], 1);
            if (quad & 1) x[0] = a, x[2] = b; else x[1] = a, x[3] = b;
            const u32 c = __shfl_xor_sync(ALL_LANES, quad & 2 ? x[0] : x[2], 2);
            const u32 d = __shfl_xor_sync(ALL_LANES, quad & 2 ? x[1] : x[3], 2);
            if (quad & 2) x[0] = c, x[1] = d; else x[2] = c, x[3] = d;
            if (row + half * 8 < time)
                store<4>(reinterpret_cast<u32 *>(to + u64(row + half * 8) * stride + (n + quad) * 8),
                         Vector<u32, 4>{{x[0], x[1], x[2], x[3]}});
        }
    }
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// ---- forward

#define KEYS 128  // keys of a tile
#define FORWARD_SLOTS (D == 64 ? 12 : 6)
#define TILE_BYTES (128 * D * 2)
#ifndef PINGPONG
#define PINGPONG 1
#endif

// Shared memory: the block's queries, a ring of key and value tiles, barriers.
struct ForwardMemory {
    u32 queries, ring, full, empty, queries_full, queries_empty;
    __device__ explicit ForwardMemory(u8 *memory) {
        queries = (shared_address(memory) + 1023) & ~1023u;
        ring = queries + TILE_BYTES;
        full = ring + FORWARD_SLOTS * TILE_BYTES, empty = full + 8 * FORWARD_SLOTS;
        queries_full = empty + 8 * FORWARD_SLOTS, queries_empty = queries_full + 8;
    }
    __device__ void init() const {
        for (u32 slot = 0; slot < FORWARD_SLOTS; ++slot) {
            barrier_init(full + 8 * slot, GROUP);
            barrier_init(empty + 8 * slot, CONSUMER_WARPS);
        }
        barrier_init(queries_full, GROUP);
        barrier_init(queries_empty, CONSUMER_WARPS);
    }
};

// The running softmax of rows g and g + 8 of a warp.
struct Softmax {
    float largest[2] = {-INFINITE, -INFINITE}, total[2] = {0.0f, 0.0f};

    // Turns scores into weights; gives what earlier sums are multiplied by.
    __device__ __forceinline__ void step(float (&s)[KEYS / 2], float scale, float (&shrink)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float here = largest[half];
#pragma unroll
            for (int i = half * 2; i < KEYS / 2; i += 4) here = fmaxf(here, fmaxf(s[i], s[i + 1]));
            here = quad_max(here);
            shrink[half] = exp2_fast((largest[half] - here) * scale);
            largest[half] = here;
            const float offset = here * scale;
            float sum = 0.0f;
#pragma unroll
            for (int i = half * 2; i < KEYS / 2; i += 4) {
                s[i] = exp2_fast(fmaf(s[i], scale, -offset));
                s[i + 1] = exp2_fast(fmaf(s[i + 1], scale, -offset));
                sum += s[i] + s[i + 1];
            }
            total[half] = total[half] * shrink[half] + sum;
        }
    }
};

__device__ __forceinline__ void turn_wait(u32 group) {
    if (PINGPONG) asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}
__device__ __forceinline__ void turn_pass(u32 group) {
    if (PINGPONG) asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
}

// Consumer: one block of queries. Keys are walked from the diagonal back, so that only the first tile is masked; the
// products of a tile are under way while the softmax of the next is computed.
struct ForwardConsumer {
    ForwardMemory memory;
    Place<FORWARD_SLOTS> place;
    u32 queries_phase = 0;
    float scale;

    __device__ __forceinline__ u32 take() const {
        wait(memory.full + 8 * place.index, place.phase);
        copies_to_products();
        return uniform(memory.ring + place.index * TILE_BYTES);
    }
    __device__ __forceinline__ void release(u32 slot) const {
        if (threadIdx.x % WARP == 0) arrive(memory.empty + 8 * slot);
    }

    __device__ __forceinline__ void block(u32 block, u32 group, u32 row, Softmax &softmax, float (&out)[D / 2]) {
        float s[KEYS / 2], shrink[2];
        u32 p[KEYS / 16][4];
        Left queries;
        wait(memory.queries_full, queries_phase);
        queries_phase ^= 1;
        if (!LEFT_IN_REGISTERS) copies_to_products();
        queries.take(memory.queries, group * 64);
        if (LEFT_IN_REGISTERS && threadIdx.x % WARP == 0) arrive(memory.queries_empty);
        u32 tile = take();
        turn_wait(group);
        products_begin();
        queries.times_transposed(s, tile);
        products_commit();
        turn_pass(group);
        products_wait<0>();
        pin(s);
        release(place.index);
        place.next();
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i)
            if (block * KEYS + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 > row + i / 2 % 2 * 8) s[i] = -INFINITE;
        softmax.step(s, scale, shrink);
        pack(p, s);
        int add = 0;
        for (u32 left = block; left > 0; --left) {
            const u32 keys = take(), keys_slot = place.index;
            turn_wait(group);
            products_begin();
            queries.times_transposed(s, keys);
            products_commit();
            place.next();
            const u32 values = take(), values_slot = place.index;
            products_begin();
            times(out, p, values, add);
            products_commit();
            turn_pass(group);
            add = 1;
            place.next();
            products_wait<1>();
            pin(s);
            release(keys_slot);
            softmax.step(s, scale, shrink);
            products_wait<0>();
            pin(out);
            release(values_slot);
#pragma unroll
            for (int i = 0; i < D / 2; ++i) out[i] *= shrink[i / 2 % 2];
            pack(p, s);
        }
        if (!LEFT_IN_REGISTERS && threadIdx.x % WARP == 0) arrive(memory.queries_empty);
        tile = take();
        products_begin();
        times(out, p, tile, add);
        products_commit();
        products_wait<0>();
        pin(out);
        release(place.index);
        place.next();
    }
};

// Grid [min(multiprocessors, pairs * heads * batch)], 384 threads, shared 7 tiles of 128 rows and 2 KiB: one block a
// multiprocessor, for consumers of 240 registers hold a tile of scores, its weights and the output at once.
// Floor: 2 products, 2 * batch * heads * time^2 * HEAD_DIM FLOP (the causal half); at HEAD_DIM 64 as long for exponentials.
KERNEL __launch_bounds__(BLOCK, 1) attention_forward_hopper(bf16 *__restrict__ out, float *__restrict__ logsumexp,
                                                            const bf16 *__restrict__ qkv, u32 batch, u32 time, u32 heads,
                                                            float scale) {
    const ForwardMemory memory(shared_memory);
    const u32 width = heads * D;
    const u64 stride = 3 * u64(width);
    if (threadIdx.x == 0) memory.init();
    __syncthreads();
    const Work work(time, heads, batch);
    if (threadIdx.x < GROUP) {
        producer_registers<40>();
        Place<FORWARD_SLOTS> place;
        u32 queries_phase = 1;
        for_work(work, heads, [&](u32 block, u32 head, u32 sequence) {
            const bf16 *queries = qkv + u64(sequence) * time * stride + head * D;
            auto tile = [&](u32 third, u32 index) {
                wait(memory.empty + 8 * place.index, place.phase ^ 1);
                copy_tile<KEYS>(memory.ring + place.index * TILE_BYTES, {queries + third * width, stride}, index * KEYS, time);
                arrive_after_copies(memory.full + 8 * place.index);
                place.next();
            };
            wait(memory.queries_empty, queries_phase);
            queries_phase ^= 1;
            copy_tile<ROWS>(memory.queries, {queries, stride}, block * ROWS, time);
            arrive_after_copies(memory.queries_full);
            tile(1, block);
            for (u32 left = block; left > 0; --left) {
                tile(1, left - 1);
                tile(2, left);
            }
            tile(2, 0);
        });
        asm volatile("cp.async.wait_all;" ::: "memory");
    } else {
        consumer_registers<40>();
        const u32 group = uniform(threadIdx.x / GROUP) - 1;
        ForwardConsumer consumer = {memory, {}, 0, scale * LOG2E};
        if (group == 1) turn_pass(group);
        for_work(work, heads, [&](u32 block, u32 head, u32 sequence) {
            const u32 row = block * ROWS + group * 64 + threadIdx.x % GROUP / WARP * 16 + threadIdx.x % WARP / 4;
            Softmax softmax;
            float acc[D / 2];
            consumer.block(block, group, row, softmax, acc);
            const float total0 = quad_sum(softmax.total[0]), total1 = quad_sum(softmax.total[1]);
            store_rows(out + u64(sequence) * time * width + head * D, width, row, time, acc, 1.0f / total0, 1.0f / total1);
            float *line = logsumexp + (u64(sequence) * heads + head) * time;
            if (threadIdx.x % 4 == 0) {
                if (row < time) line[row] = softmax.largest[0] * scale + LN2 * __log2f(total0);
                if (row + 8 < time) line[row + 8] = softmax.largest[1] * scale + LN2 * __log2f(total1);
            }
        });
    }
}

// ---- backward

#define COLUMNS 64  // positions of a tile that comes through the ring
#define COLUMN_BYTES (COLUMNS * D * 2)
#define STAGE_BYTES (2 * COLUMN_BYTES + 1024)  // two tiles, then log-sum-exps and deltas
#define STAGES (D == 64 ? 10 : 4)

// Shared memory: two tiles of the block's own rows and their log-sum-exps and deltas, a ring of stages, barriers.
struct BackwardMemory {
    u32 own, statistics, ring, full, empty, own_full, own_empty;
    __device__ explicit BackwardMemory(u8 *memory) {
        own = (shared_address(memory) + 1023) & ~1023u;
        statistics = own + 2 * TILE_BYTES;
        ring = statistics + 1024;
        full = ring + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
        own_full = empty + 8 * STAGES, own_empty = own_full + 8;
    }
    __device__ void init(u32 own_arrivals) const {
        for (u32 stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + 8 * stage, GROUP);
            barrier_init(empty + 8 * stage, CONSUMER_WARPS);
        }
        barrier_init(own_full, own_arrivals);
        barrier_init(own_empty, CONSUMER_WARPS);
    }
};

struct Operands {
    const bf16 *dy, *out, *qkv;
    const float *logsumexp;
    float *delta;
    u32 batch, time, heads;
    __device__ Source third(u32 index, u32 head, u32 sequence) const {
        const u64 stride = 3 * u64(heads) * D;
        return {qkv + u64(sequence) * time * stride + (index * heads + head) * D, stride};
    }
    __device__ Source like_output(const bf16 *x, u32 head, u32 sequence) const {
        const u64 stride = u64(heads) * D;
        return {x + u64(sequence) * time * stride + head * D, stride};
    }
};

// Tiles of columns that a block of rows meets, from the diagonal on: OWN_KEYS: later queries, else earlier keys.
template <bool OWN_KEYS> __device__ __forceinline__ u32 columns_met(u32 block, u32 time) {
    const u32 all = (time + COLUMNS - 1) / COLUMNS;
    return OWN_KEYS ? all - block * 2 : min(block * 2 + 2, all);
}

__device__ __forceinline__ float dot(const bf16 *a, const bf16 *b) {
    const auto x = load<8>(a), y = load<8>(b);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(to_f32(x.at[i]), to_f32(y.at[i]), sum);
    return sum;
}

// Producer of the kernel that owns queries: delta = sum of dy * out of each row, to memory for the other kernel and with the
// log-sum-exp to shared memory. D / 8 threads a row.
__device__ __forceinline__ void produce_statistics(const BackwardMemory &memory, const Operands &from, u32 block, u32 head,
                                                   u32 sequence) {
    constexpr u32 LANES = D / 8, STEP = GROUP / LANES;
    const Source dy = from.like_output(from.dy, head, sequence), out = from.like_output(from.out, head, sequence);
    const u64 line = (u64(sequence) * from.heads + head) * from.time;
    const u32 column = threadIdx.x % LANES * 8;
#pragma unroll 1
    for (u32 index = threadIdx.x / LANES; index < ROWS; index += STEP) {
        const u32 row = block * ROWS + index;
        const bool inside = row < from.time;
        const u64 at = inside ? u64(row) * dy.stride + column : 0;
        float delta = dot(dy.from + at, out.from + at);
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) delta += __shfl_xor_sync(ALL_LANES, delta, offset);
        if (column == 0) {
            if (inside) from.delta[line + row] = delta;
            const float logsumexp = inside ? from.logsumexp[line + row] * LOG2E : 0.0f;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(memory.statistics + index * 8), "f"(logsumexp), "f"(delta) : "memory");
        }
    }
}

template <bool OWN_KEYS> __device__ __forceinline__ void produce(const BackwardMemory &memory, const Operands &from) {
    Place<STAGES> place;
    u32 own_phase = 1;
    for_work(Work(from.time, from.heads, from.batch), from.heads, [&](u32 block, u32 head, u32 sequence) {
        const Source queries = from.third(0, head, sequence), keys = from.third(1, head, sequence);
        const Source values = from.third(2, head, sequence), dy = from.like_output(from.dy, head, sequence);
        wait(memory.own_empty, own_phase);
        own_phase ^= 1;
        copy_tile<ROWS>(memory.own, OWN_KEYS ? keys : queries, block * ROWS, from.time);
        copy_tile<ROWS>(memory.own + TILE_BYTES, OWN_KEYS ? values : dy, block * ROWS, from.time);
        arrive_after_copies(memory.own_full);
        if constexpr (!OWN_KEYS) {
            produce_statistics(memory, from, block, head, sequence);
            arrive(memory.own_full);
        }
        const u32 count = columns_met<OWN_KEYS>(block, from.time);
        for (u32 step = 0; step < count; ++step) {
            const u32 column = OWN_KEYS ? block * 2 + step : count - 1 - step;
            const u32 stage = memory.ring + place.index * STAGE_BYTES;
            wait(memory.empty + 8 * place.index, place.phase ^ 1);
            copy_tile<COLUMNS>(stage, OWN_KEYS ? queries : keys, column * COLUMNS, from.time);
            copy_tile<COLUMNS>(stage + COLUMN_BYTES, OWN_KEYS ? dy : values, column * COLUMNS, from.time);
            if constexpr (OWN_KEYS) {
                // Past the end both are 0, and so are all products with such a query's weights.
                const u32 index = threadIdx.x % 64, query = column * COLUMNS + index;
                const float *line = (threadIdx.x < 64 ? from.logsumexp : from.delta) + (u64(sequence) * from.heads + head) * from.time;
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(stage + 2 * COLUMN_BYTES + threadIdx.x * 4),
                             "l"(query < from.time ? line + query : line), "r"(query < from.time ? 4 : 0) : "memory");
            }
            arrive_after_copies(memory.full + 8 * place.index);
            place.next();
        }
    });
    asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ Vector<float, 2> shared_pair(u32 address) {
    Vector<float, 2> pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.at[0]), "=f"(pair.at[1]) : "r"(address));
    return pair;
}

// Consumer: 64 rows against all columns they meet.
template <bool OWN_KEYS> struct BackwardConsumer {
    BackwardMemory memory;
    float scale;
    Place<STAGES> place;
    u32 own_phase = 0;
    float logsumexp[2], delta[2];  // of rows g and g + 8; the first in powers of two

    __device__ __forceinline__ void release(u32 stage) const {
        if (threadIdx.x % WARP == 0) arrive(memory.empty + 8 * stage);
    }
    __device__ __forceinline__ u32 take() const {
        wait(memory.full + 8 * place.index, place.phase);
        copies_to_products();
        return uniform(memory.ring + place.index * STAGE_BYTES);
    }
    __device__ __forceinline__ void skip() {
        take();
        release(place.index);
        place.next();
    }

    // Weights from scores.
    __device__ __forceinline__ void weights(float (&p)[COLUMNS / 2], const float (&s)[COLUMNS / 2], u32 stage) const {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            float less[2];
            if constexpr (OWN_KEYS) {
                const auto pair = shared_pair(stage + 2 * COLUMN_BYTES + (n * 8 + threadIdx.x % 4 * 2) * 4);
                less[0] = pair.at[0] * LOG2E, less[1] = pair.at[1] * LOG2E;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
                p[n * 4 + i] = exp2_fast(fmaf(s[n * 4 + i], scale, OWN_KEYS ? -less[i % 2] : -logsumexp[i / 2]));
        }
    }
    // Row g of the 64 and column c of the 64 are the same position.
    __device__ __forceinline__ void mask(float (&p)[COLUMNS / 2]) const {
        const u32 row = threadIdx.x % GROUP / WARP * 16 + threadIdx.x % WARP / 4;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) {
            const u32 r = row + i / 2 % 2 * 8, c = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
            if (OWN_KEYS ? r > c : c > r) p[i] = 0.0f;
        }
        pin(p);  // keeps this a branch
    }
    // Gradients of scores from those of weights, ds, and the weights; where keys are owned the rounded weights, whose
    // registers are fewer.
    template <typename Weight> __device__ __forceinline__ void slopes(float (&ds)[COLUMNS / 2], u32 stage, Weight weight) const {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            Vector<float, 2> pair;
            if constexpr (OWN_KEYS) pair = shared_pair(stage + 2 * COLUMN_BYTES + 256 + (n * 8 + threadIdx.x % 4 * 2) * 4);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                ds[n * 4 + i] = weight(n * 4 + i) * (ds[n * 4 + i] - (OWN_KEYS ? pair.at[i % 2] : delta[i / 2]));
        }
    }

    __device__ __forceinline__ void begin(Left (&left)[2], u32 group) {
        wait(memory.own_full, own_phase);
        own_phase ^= 1;
        if (!LEFT_IN_REGISTERS) copies_to_products();
        left[0].take(memory.own, group * 64);
        left[1].take(memory.own + TILE_BYTES, group * 64);
        if constexpr (!OWN_KEYS) {
            const u32 row = group * 64 + threadIdx.x % GROUP / WARP * 16 + threadIdx.x % WARP / 4;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const auto pair = shared_pair(memory.statistics + (row + half * 8) * 8);
                logsumexp[half] = pair.at[0], delta[half] = pair.at[1];
            }
        }
        if (LEFT_IN_REGISTERS) own_done();
    }
    __device__ __forceinline__ void own_done() const {
        __syncwarp();
        if (threadIdx.x % WARP == 0) arrive(memory.own_empty);
    }

    // acc0 = sum of ds * first tiles, acc1 = sum of p * second tiles (OWN_KEYS), over `count` stages, of which the first is
    // that in which the 64 rows meet themselves. EARLY: scores of the next stage are begun as soon as this one's are read,
    // so that products are under way while weights and slopes are computed; after the last stage its scores are made once
    // more and not used, for a branch there would make the compiler wait for each product.
    __device__ __forceinline__ void block(u32 group, u32 count, float (&acc0)[D / 2], float (&acc1)[D / 2]) {
        constexpr bool EARLY = !OWN_KEYS || D == 64;  // else there are too few registers
        float s[COLUMNS / 2], ds[COLUMNS / 2];
        Left left[2];
        begin(left, group);
        u32 stage = take(), before = 0, add = 0;
        if constexpr (EARLY) {
            products_begin();
            left[0].times_transposed(s, stage);
            products_commit();
            products_wait<0>();
            pin(s);
        }
        do {
            float p[COLUMNS / 2];
            u32 packed_p[COLUMNS / 16][4], packed_ds[COLUMNS / 16][4];
            const u32 here = place.index;
            place.next();
            products_begin();
            if constexpr (!EARLY) {
                left[0].times_transposed(s, stage);
                products_commit();
            }
            left[1].times_transposed(ds, stage + COLUMN_BYTES);
            products_commit();
            if constexpr (!EARLY) {
                products_wait<1>();
                pin(s);
                if (add) release(before);
            }
            weights(p, s, stage);
            if (add == 0) mask(p);
            u32 next = stage;
            if (EARLY && count > 1) next = take();
            if constexpr (OWN_KEYS) pack(packed_p, p);
            products_begin();
            if constexpr (OWN_KEYS) {
                times(acc1, packed_p, stage + COLUMN_BYTES, add);
                products_commit();
            }
            if constexpr (EARLY) {
                left[0].times_transposed(s, next);
                products_commit();
            }
            products_wait<OWN_KEYS + EARLY>();
            pin(ds);
            if (EARLY && add) release(before);
            if constexpr (OWN_KEYS)
                slopes(ds, stage, [&](int i) {  // the rounded weights have fewer registers
                    const u32 pair = packed_p[i / 8][i / 2 % 4];
                    return __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
                });
            else
                slopes(ds, stage, [&](int i) { return p[i]; });
            pack(packed_ds, ds);
            products_begin();
            times(acc0, packed_ds, stage, add);
            products_commit();
            if constexpr (EARLY) {
                products_wait<1>();
                pin(s);
            } else {
                products_wait<0>();
                pin(acc0);
                if constexpr (OWN_KEYS) pin(acc1);
                if (count > 1) next = take();
            }
            before = here, stage = next, add = 1;
        } while (--count > 0);
        products_wait<0>();
        pin(acc0);
        if constexpr (OWN_KEYS) pin(acc1);
        release(before);
        if (!LEFT_IN_REGISTERS) own_done();
    }
};

// Both: grid [min(multiprocessors, pairs * heads * batch)], 384 threads, shared 2 tiles of 128 rows, 6 (4 at HEAD_DIM 128)
// stages of 2 tiles of 64 rows and 1 KiB, and 2 KiB. Floors: 4 products for keys and values, 3 for queries, each
// batch * heads * time^2 * HEAD_DIM FLOP (the causal half).
template <bool OWN_KEYS> __device__ __forceinline__ void backward(bf16 *dqkv, const Operands &from, float scale) {
    constexpr int LOW = !OWN_KEYS ? 56 : D == 64 ? 40 : 32;
    const BackwardMemory memory(shared_memory);
    if (threadIdx.x == 0) memory.init(OWN_KEYS ? GROUP : 2 * GROUP);
    __syncthreads();
    if (threadIdx.x < GROUP) {
        producer_registers<LOW>();
        produce<OWN_KEYS>(memory, from);
    } else {
        consumer_registers<LOW>();
        const u32 group = uniform(threadIdx.x / GROUP) - 1, time = from.time;
        BackwardConsumer<OWN_KEYS> consumer = {memory, scale * LOG2E};
        for_work(Work(time, from.heads, from.batch), from.heads, [&](u32 block, u32 head, u32 sequence) {
            const u32 row = block * ROWS + group * 64 + threadIdx.x % GROUP / WARP * 16 + threadIdx.x % WARP / 4;
            float acc0[D / 2], acc1[D / 2];
            u32 count = columns_met<OWN_KEYS>(block, time);
            if ((block * 2 + group) * COLUMNS >= time) {
                // None of these 64 rows exists.
                wait(memory.own_full, consumer.own_phase);
                consumer.own_phase ^= 1;
                consumer.own_done();
                for (; count > 0; --count) consumer.skip();
                return;
            }
            // The first tile of the block is the other consumer's diagonal.
            const bool later = OWN_KEYS ? group == 1 : group == 0 && (block * 2 + 1) * COLUMNS < time;
            if (later) consumer.skip(), --count;
            consumer.block(group, count, acc0, acc1);
            const u64 stride = 3 * u64(from.heads) * D;
            bf16 *to = dqkv + u64(sequence) * time * stride + head * D;
            if constexpr (OWN_KEYS) {
                store_rows(to + from.heads * D, stride, row, time, acc0, scale, scale);
                store_rows(to + 2 * from.heads * D, stride, row, time, acc1, 1.0f, 1.0f);
            } else {
                store_rows(to, stride, row, time, acc0, scale, scale);
            }
        });
    }
}

// This one first: it also makes delta, from dy and out.
KERNEL __launch_bounds__(BLOCK, 1) attention_backward_query_hopper(
    bf16 *__restrict__ dqkv, float *__restrict__ delta, const bf16 *__restrict__ dy, const bf16 *__restrict__ qkv,
    const bf16 *__restrict__ out, const float *__restrict__ logsumexp, u32 batch, u32 time, u32 heads, float scale) {
    backward<false>(dqkv, {dy, out, qkv, logsumexp, delta, batch, time, heads}, scale);
}

KERNEL __launch_bounds__(BLOCK, 1) attention_backward_key_value_hopper(
    bf16 *__restrict__ dqkv, float *__restrict__ delta, const bf16 *__restrict__ dy, const bf16 *__restrict__ qkv,
    const float *__restrict__ logsumexp, u32 batch, u32 time, u32 heads, float scale) {
    backward<true>(dqkv, {dy, nullptr, qkv, logsumexp, delta, batch, time, heads}, scale);
}

#endif
