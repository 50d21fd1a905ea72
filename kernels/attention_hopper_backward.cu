// Backward attention on Hopper: one kernel owns queries, the other keys. See attention_hopper.cuh.
#include "attention_hopper_columns.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A consumer: 64 rows against all columns that they meet.
template <bool OWN_KEYS> struct Consumer {
    Memory memory;
    float scale;
    u32 group;
    Dropout dropout;
    RingPosition<OWN_TILES> own_position;
    RingPosition<STAGES> position;
    float logsumexp[2], delta[2];  // of the own rows, if they are queries

    __device__ __forceinline__ void skip(u32 count) {
        for (; count > 0; --count) {
            memory.ring.take(position);
            memory.ring.release(position.index);
            position.next();
        }
    }
    __device__ __forceinline__ void own_done() {
        memory.own_ring.release(own_position.index);
        own_position.next();
    }

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
    // Turns scores into weights.
    __device__ __forceinline__ void weights(float (&p)[COLUMNS / 2], u32 base) const {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            Vector<float, 2> less;
            if (OWN_KEYS) less = shared_pair(base + n * 32);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                p[n * 4 + i] =
                    exp2_fast(fmaf(p[n * 4 + i], scale, -(OWN_KEYS ? less.at[i % 2] : logsumexp[i / 2])));
        }
    }
    // Turns gradients of weights, ds, into gradients of scores.
    template <typename Weight>
    __device__ __forceinline__ void slopes(float (&ds)[COLUMNS / 2], u32 base, const Kept<COLUMNS / 2> &kept,
                                           Weight weight) const {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            Vector<float, 2> less;
            if (OWN_KEYS) less = shared_pair(base + 256 + n * 32);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (IS_DROPPED) ds[n * 4 + i] = kept.at(n * 4 + i) ? ds[n * 4 + i] * dropout.scale : 0.0f;
                ds[n * 4 + i] =
                    weight(n * 4 + i) * (ds[n * 4 + i] - (OWN_KEYS ? less.at[i % 2] : delta[i / 2]));
            }
        }
    }

    // acc0 = sum of ds * first tiles, acc1 = sum of p * second tiles (OWN_KEYS), over the stages of all
    // members: of each, `others` are diagonal tiles of other consumers, and `count` follow, the first of
    // which is the diagonal tile of these rows if it `has_diagonal`, and `further` are of other consumers'
    // windows. `row` is the position of the first row, and `line` the index of the sequence and first query
    // head. Other consumers run while this one waits.
    __device__ __forceinline__ void block(u32 line, u32 row, u32 members, u32 others, u32 count, u32 further,
                                          bool has_diagonal, u32 window, float (&acc0)[D / 2],
                                          float (&acc1)[D / 2]) {
        memory.own_ring.take(own_position);
        const u32 own = after(memory.own + own_position.index * OWN_BYTES);
        const u32 left = descriptor(own + group * 64 * 128, ROWS);
        if constexpr (!OWN_KEYS) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 at = own + 2 * OWN_TILE + (own_row(group) + half * 8) * 4;
                logsumexp[half] = shared_number(at), delta[half] = shared_number(at + 4 * ROWS);
            }
        }
        u32 add = 0;
        do {
            skip(others);
            member(left, line, row, count, add, has_diagonal, window, acc0, acc1);
            if constexpr (IS_WINDOWED) skip(further);
            add = 1, ++line;
        } while (OWN_KEYS && --members > 0);
        own_done();
    }

    // The stages of one member.
    __device__ __forceinline__ void member(u32 left, u32 line, u32 row, u32 count, u32 add,
                                           bool has_diagonal, u32 window, float (&acc0)[D / 2],
                                           float (&acc1)[D / 2]) {
        const u32 all = count;
        float p[COLUMNS / 2], ds[COLUMNS / 2];
        memory.ring.take(position);
        u32 here = position.index, diagonal = has_diagonal;
        do {
            u32 packed_p[COLUMNS / 16][4], packed_ds[COLUMNS / 16][4];
            Kept<COLUMNS / 2> kept;
            const u32 first = descriptor(memory.stages, COLUMNS) + here * AT(STAGE_BYTES),
                      second = first + AT(COLUMN_BYTES);
            const u32 base =
                after(memory.stages + here * STAGE_BYTES + 2 * COLUMN_BYTES) + threadIdx.x % 4 * 8;
            products_begin();
            times_transposed(p, left, first);
            products_commit();
            times_transposed(ds, left + AT(OWN_TILE), second);
            products_commit();
            u32 next = here;
            if (count > 1) {
                position.next();
                memory.ring.take(position);
                next = position.index;
            }
            if constexpr (IS_DROPPED) {
                const u32 steps = (all - count) * COLUMNS;  // from the diagonal tile
                draw<OWN_KEYS>(kept, dropout, line, row, OWN_KEYS ? row + steps : row - steps);
            }
            products_wait<1>();
            pin(p);
            if (OWN_KEYS ? diagonal : add == 0) mask(p);
            if constexpr (IS_WINDOWED) hide<OWN_KEYS>(p, own_row(0), all - count, window);
            weights(p, base);
            if constexpr (OWN_KEYS) {
                pack(packed_p, p);
                u32 packed_kept[COLUMNS / 16][4];
                if constexpr (IS_DROPPED) {
                    drop(p, kept);
                    pack(packed_kept, p);
                }
                products_begin();
                times(acc1, IS_DROPPED ? packed_kept : packed_p, second, add);
                products_commit();
            }
            products_wait<OWN_KEYS>();
            pin(ds);
            if constexpr (OWN_KEYS)
                slopes(ds, base, kept, [&](int i) {  // rounded weights take fewer registers
                    const u32 pair = packed_p[i / 8][i / 2 % 4];
                    return i % 2 ? Word<Half>::last(pair) : Word<Half>::first(pair);
                });
            else
                slopes(ds, base, kept, [&](int i) { return p[i]; });
            pack(packed_ds, ds);
            products_begin();
            times(acc0, packed_ds, first, add);
            products_commit();
            products_wait<0>();
            pin(acc0);
            if constexpr (OWN_KEYS) pin(acc1);
            memory.ring.release(here);
            here = next, add = 1, diagonal = 0;
        } while (--count > 0);
        position.next();
    }
};

// Both: grid [min(multiprocessors, pairs * heads * batch)], 384 threads, shared 2 (HEAD_DIM 128: 1) times two
// tiles of 128 rows and 1 KiB, 8 (4) stages of two tiles of 64 rows and 1 KiB, and 2 KiB. Floors: 4 matmuls
// for keys and values, 3 for queries, each batch * heads * time^2 * HEAD_DIM FLOP (the causal half). first is
// dq, or dk with OWN_KEYS; second is dv. They have the layout of q, k and v, or if `members` is less than
// `group` of attention_parts.cu. With OWN_KEYS a block of threads adds `members` query heads of a key and
// value head in their order. Cells: null, or where the largest magnitudes of first and second go.
template <bool OWN_KEYS>
__device__ __forceinline__ void backward(Half *first, Half *second, const Operands &from, float scale,
                                         u32 *first_cells, u32 *second_cells, const Dropout &dropout) {
    // Producers keep their addresses, more of them with windows, and consumers of keys two sums.
    constexpr int FEW_OF_QUERIES = !IS_WINDOWED ? 56 : CONSUMERS == 2 ? 88 : 80;
    constexpr int FEW = !OWN_KEYS ? FEW_OF_QUERIES : CONSUMERS == 2 ? 40 : 32;
    const Memory memory(shared_memory);
    const u32 warp = uniform(threadIdx.x / WARP), time = from.time;
    if (threadIdx.x == 0) memory.own_ring.init(COPIERS), memory.ring.init(1);
    __syncthreads();
    if (warp < GROUP / WARP) {
        few_registers<FEW>();
        bring<OWN_KEYS>(memory, from, warp);
    } else {
        many_registers<FEW>();
        Consumer<OWN_KEYS> consumer = {memory, scale * LOG2E, warp / 4 - 1, dropout};
        const u32 members = from.members<OWN_KEYS>(), lines = from.heads / members;
        const Work work(from.own_end<OWN_KEYS>(), lines, from.batch);
        for_work(work, lines, [&](u32 block, u32 line, u32 sequence) {
            const u32 head = line * members;
            const u32 row = block * ROWS + own_row(consumer.group);
            float acc0[D / 2], acc1[D / 2];
            const u32 count = columns_met<OWN_KEYS>(block, time, from.window, from.position),
                      diagonal = block * CONSUMERS + consumer.group;
            if (diagonal * COLUMNS >= from.own_end<OWN_KEYS>()) {
                // All 64 rows lie past the end.
                memory.own_ring.take(consumer.own_position);
                consumer.own_done();
                consumer.skip(count * members);
                return;
            }
            // The first tiles of the block are the diagonals of other consumers.
            const u32 last = IS_WINDOWED ? last_column(block, time) : count - 1;
            u32 others = OWN_KEYS ? consumer.group : last - diagonal;
            bool has_diagonal = true;
            if constexpr (IS_PIECE) {
                const u32 before = from.position / COLUMNS;  // tiles of keys before the first query
                others = OWN_KEYS ? first_tile(diagonal, from.position) -
                                        first_tile(block * CONSUMERS, from.position)
                                  : others - before;
                has_diagonal = !OWN_KEYS || diagonal >= before;
            }
            const u32 own = IS_WINDOWED ? min(count - others, tiles_of_window(from.window)) : count - others;
            consumer.block(sequence * from.heads + head, diagonal * COLUMNS, members, others, own,
                           count - others - own, has_diagonal, from.window, acc0, acc1);
            if constexpr (OWN_KEYS) {
                const u64 start = from.gradient_start(head, sequence), end = from.own_end<true>();
                const u32 stride = from.gradient_stride();
                const u32 most = store_rows(first + start, stride, row, end, acc0, scale, scale);
                if (first_cells) record_pair(most, first_cells);
                const u32 other = store_rows(second + start, stride, row, end, acc1, dropout.scale,
                                             dropout.scale);
                if (second_cells) record_pair(other, second_cells);
            } else {
                const u32 most = store_rows(first + from.q_start(head, sequence), from.q_stride, row, time,
                                            acc0, scale, scale);
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
                            u32 *cells WINDOW_PARAMETER PIECE_PARAMETERS DROPOUT_PARAMETERS) {
    backward<false>(dq, nullptr, BACKWARD_ARGUMENTS(1), scale, cells, nullptr, DROPOUT);
}

KERNEL __launch_bounds__(BLOCK, 1)
    OF_HALF(backward_key_value)(Half *__restrict__ dk, Half *__restrict__ dv, u32 members,
                                BACKWARD_OPERANDS, u32 *dk_cells,
                                u32 *dv_cells WINDOW_PARAMETER PIECE_PARAMETERS DROPOUT_PARAMETERS) {
    backward<true>(dk, dv, BACKWARD_ARGUMENTS(members), scale, dk_cells, dv_cells, DROPOUT);
}

#endif
