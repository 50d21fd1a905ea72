// Backward attention on Hopper for HEAD_DIM 256: one kernel owns queries, the other keys. See
// attention_hopper.cuh and attention_hopper_columns.cuh.
//
// The sums of 64 rows would fill the registers of a warpgroup. So both consumers work on the same 64 rows:
// consumer 0 computes weights and consumer 1 gradients of weights, they exchange the results through shared
// memory, first weights, then gradients of scores, and each multiplies them by its half of the head's
// columns.
#include "attention_hopper_columns.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

static_assert(CONSUMERS == 2 && ROWS == COLUMNS && D % 128 == 0, "two halves of whole panels");
#define HALF_COLUMNS (D / 2)
#define WEIGHTS 1  // barriers: weights are in shared memory, or gradients of scores
#define SLOPES 2

typedef u32 Packed[COLUMNS / 16][4];

__device__ __forceinline__ void pass_on(u32 barrier) {
    asm volatile("bar.arrive %0, 256;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait_for(u32 barrier) {
    asm volatile("bar.sync %0, 256;" ::"r"(barrier) : "memory");
}

// Offset of a thread's 16 bytes of number `i`.
__device__ __forceinline__ u32 exchanged(int i) { return (i * GROUP + threadIdx.x % GROUP) * 16; }
// Hands packed results to the thread of the other consumer that has the same rows and columns.
__device__ __forceinline__ void give(u32 to, const Packed &x) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i)
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + exchanged(i)), "r"(x[i][0]),
                     "r"(x[i][1]), "r"(x[i][2]), "r"(x[i][3])
                     : "memory");
}
__device__ __forceinline__ void get(Packed &x, u32 from) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i][2]), "=r"(x[i][3])
                     : "r"(from + exchanged(i))
                     : "memory");
}

template <bool OWN_KEYS> struct Consumer {
    Memory memory;
    float scale;
    u32 group;
    RingPosition<OWN_TILES> own_position;
    RingPosition<STAGES> position;
    float own[2];  // log-sum-exps (consumer 0) or deltas of the own rows, if they are queries

    // Hides future keys in the diagonal tile, in which row i and column i are one position.
    __device__ __forceinline__ void mask(float (&s)[COLUMNS / 2]) const {
        const int distance = int(own_row(0)) - int(threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) {
            const int d = i / 4 * 8 + i % 2 - i / 2 % 2 * 8;
            if (OWN_KEYS ? distance > d : d > distance) s[i] = -INFINITE;
        }
        pin(s);  // keeps this a branch
    }
    // Turns scores into packed weights (consumer 0).
    __device__ __forceinline__ void weights(Packed &packed, float (&p)[COLUMNS / 2], u32 base) const {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            Vector<float, 2> less;
            if (OWN_KEYS) less = shared_pair(base + n * 32);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                p[n * 4 + i] =
                    exp2_fast(fmaf(p[n * 4 + i], scale, -(OWN_KEYS ? less.at[i % 2] : own[i / 2])));
        }
        pack(packed, p);
    }
    // Turns gradients of weights into packed gradients of scores (consumer 1). The former stay as they are:
    // they are accumulators of the next matmul, and one is on its way.
    __device__ __forceinline__ void slopes(Packed &packed, const float (&ds)[COLUMNS / 2],
                                           const Packed &weights, u32 base) const {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            Vector<float, 2> less;
            if (OWN_KEYS) less = shared_pair(base + 256 + n * 32);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 pair = weights[n / 2][n % 2 * 2 + half];
                const float *x = ds + n * 4 + half * 2;
                packed[n / 2][n % 2 * 2 + half] =
                    pack_half(Word<Half>::first(pair) * (x[0] - (OWN_KEYS ? less.at[0] : own[half])),
                              Word<Half>::last(pair) * (x[1] - (OWN_KEYS ? less.at[1] : own[half])));
            }
        }
    }

    // Starts the matmul of the own rows and a stage: scores, or gradients of weights.
    __device__ __forceinline__ void start(float (&s)[COLUMNS / 2], u32 left, u32 stage) const {
        const u32 tile = descriptor(memory.stages, COLUMNS) + stage * AT(STAGE_BYTES);
        products_begin();
        times_transposed(s, left, tile + group * AT(COLUMN_BYTES));
        products_commit();
    }

    // Half of acc0 = sum of ds * first tiles and acc1 = sum of p * second tiles (OWN_KEYS), over `count`
    // stages of each member, of which the first is the diagonal tile if it `has_diagonal`.
    __device__ __forceinline__ void block(u32 members, u32 count, bool has_diagonal, u32 window,
                                          float (&acc0)[HALF_COLUMNS / 2], float (&acc1)[HALF_COLUMNS / 2]) {
        memory.own_ring.take(own_position);
        const u32 rows = after(memory.own + own_position.index * OWN_BYTES);
        const u32 left = descriptor(rows, ROWS) + group * AT(OWN_TILE);
        if constexpr (!OWN_KEYS) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                own[half] = shared_number(rows + 2 * OWN_TILE + (group * ROWS + own_row(0) + half * 8) * 4);
        }
        u32 add = 0, all = OWN_KEYS ? count * members : count, until_diagonal = 0;
        float s[COLUMNS / 2];
        memory.ring.take(position);
        u32 here = position.index;
        position.next();
        start(s, left, here);
        products_wait<0>();
        pin(s);
        do {
            Packed packed_p, packed_ds;
            const u32 half = 2 * group * AT(COLUMNS * 128) * (D / 256);
            const u32 first = descriptor(memory.stages, COLUMNS) + here * AT(STAGE_BYTES) + half,
                      second = first + AT(COLUMN_BYTES);
            const u32 base =
                after(memory.stages + here * STAGE_BYTES + 2 * COLUMN_BYTES) + threadIdx.x % 4 * 8;
            if (group == 0) {
                if (until_diagonal == 0 && has_diagonal) mask(s);
                if constexpr (IS_WINDOWED)
                    hide<OWN_KEYS>(s, own_row(0), until_diagonal == 0 ? 0 : count - until_diagonal, window);
                weights(packed_p, s, base);
                give(memory.exchange, packed_p);
                pass_on(WEIGHTS);
            } else {
                wait_for(WEIGHTS);
                get(packed_p, memory.exchange);
            }
            if (until_diagonal == 0) until_diagonal = count;
            --until_diagonal;
            if constexpr (OWN_KEYS) {
                products_begin();
                times(acc1, packed_p, second, add);
                products_commit();
            }
            if (group == 1) {
                slopes(packed_ds, s, packed_p, base);
                give(memory.exchange + EXCHANGE_BYTES / 2, packed_ds);
                pass_on(SLOPES);
            }
            u32 next = here;
            if (all > 1) {
                memory.ring.take(position);
                next = position.index;
                position.next();
                start(s, left, next);
            }
            if (group == 0) {
                wait_for(SLOPES);
                get(packed_ds, memory.exchange + EXCHANGE_BYTES / 2);
            }
            products_begin();
            times(acc0, packed_ds, first, add);
            products_commit();
            products_wait<0>();
            pin(s);
            pin(acc0);
            if constexpr (OWN_KEYS) pin(acc1);
            memory.ring.release(here);
            here = next, add = 1;
        } while (--all > 0);
        memory.own_ring.release(own_position.index);
        own_position.next();
    }
};

// Both: grid [min(multiprocessors, pairs * heads * batch)], 384 threads, shared 2 tiles of 64 rows and 1 KiB,
// STAGES of two tiles of 64 rows and 1 KiB, 16 KiB that consumers exchange, and 2 KiB. Otherwise as in
// attention_hopper_backward.cu.
template <bool OWN_KEYS>
__device__ __forceinline__ void backward(Half *first, Half *second, const Operands &from, float scale,
                                         u32 *first_cells, u32 *second_cells) {
    constexpr int FEW = 40;
    const Memory memory(shared_memory);
    const u32 warp = uniform(threadIdx.x / WARP), time = from.time;
    if (threadIdx.x == 0) memory.own_ring.init(COPIERS), memory.ring.init(TOGETHER ? COPIERS : 1);
    __syncthreads();
    if (warp < GROUP / WARP) {
        few_registers<FEW>();
        bring<OWN_KEYS>(memory, from, warp);
    } else {
        many_registers<FEW>();
        Consumer<OWN_KEYS> consumer = {memory, scale * LOG2E, warp / 4 - 1};
        const u32 members = from.members<OWN_KEYS>(), lines = from.heads / members;
        const Work work(from.own_end<OWN_KEYS>(), lines, from.batch);
        for_work(work, lines, [&](u32 block, u32 line, u32 sequence) {
            const u32 head = line * members, row = block * ROWS + own_row(0);
            float acc0[HALF_COLUMNS / 2], acc1[HALF_COLUMNS / 2];
            const bool has_diagonal = !IS_PIECE || !OWN_KEYS || block >= from.position / COLUMNS;
            const u32 count = columns_met<OWN_KEYS>(block, time, from.window, from.position);
            consumer.block(members, count, has_diagonal, from.window, acc0, acc1);
            const u32 column = consumer.group * HALF_COLUMNS;
            if constexpr (OWN_KEYS) {
                const u64 start = from.gradient_start(head, sequence) + column, end = from.own_end<true>();
                const u32 stride = from.gradient_stride();
                const u32 most = store_rows(first + start, stride, row, end, acc0, scale, scale);
                if (first_cells) record_pair(most, first_cells);
                const u32 other = store_rows(second + start, stride, row, end, acc1, 1.0f, 1.0f);
                if (second_cells) record_pair(other, second_cells);
            } else {
                const u32 most = store_rows(first + from.q_start(head, sequence) + column, from.q_stride, row,
                                            time, acc0, scale, scale);
                if (first_cells) record_pair(most, first_cells);
            }
        });
    }
}

#define BACKWARD_OPERANDS                                                                                 \
    const Half *__restrict__ dy, const Half *__restrict__ q, const Half *__restrict__ k,                  \
        const Half *__restrict__ v, const float *__restrict__ statistics, u32 batch, u32 time, u32 heads, \
        u32 group, u32 q_stride, u32 kv_stride, float scale
#define BACKWARD_ARGUMENTS(MEMBERS)                                                                        \
    {dy, q, k, v, statistics, batch, time, heads, group, q_stride, kv_stride WINDOW_ARGUMENT                \
     PIECE_ARGUMENTS, MEMBERS}

KERNEL __launch_bounds__(BLOCK, 1)
    OF_HALF(backward_query)(Half *__restrict__ dq, BACKWARD_OPERANDS,
                            u32 *cells WINDOW_PARAMETER PIECE_PARAMETERS) {
    backward<false>(dq, nullptr, BACKWARD_ARGUMENTS(1), scale, cells, nullptr);
}

KERNEL __launch_bounds__(BLOCK, 1)
    OF_HALF(backward_key_value)(Half *__restrict__ dk, Half *__restrict__ dv, u32 members,
                                BACKWARD_OPERANDS, u32 *dk_cells,
                                u32 *dv_cells WINDOW_PARAMETER PIECE_PARAMETERS) {
    backward<true>(dk, dv, BACKWARD_ARGUMENTS(members), scale, dk_cells, dv_cells);
}

#endif
