// Operands of the backward pass of attention on Hopper, and the producer that brings them: the rows that a
// block owns, and columns, the positions that they meet. See attention_hopper.cuh.
#pragma once
#include "attention_hopper.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#ifndef EXCHANGE_BYTES
#define EXCHANGE_BYTES 0
#endif
// Whether copiers fill a stage together, because stages are too few for one each.
constexpr bool TOGETHER = STAGES < COPIERS;

#define COLUMN_BYTES (COLUMNS * PANELS * 128)
#define STAGE_BYTES (2 * COLUMN_BYTES + 1024)  // two tiles, then log-sum-exps and deltas
#define OWN_BYTES (2 * OWN_TILE + (8 * ROWS + 1023) / 1024 * 1024)  // two tiles, then log-sum-exps and deltas

// Shared memory: own rows, a ring of stages, what consumers exchange, barriers.
struct Memory {
    u32 own, stages, exchange;
    Ring<OWN_TILES> own_ring;
    Ring<STAGES> ring;
    __device__ explicit Memory(u8 *memory) {
        own = (shared_address(memory) + 1023) & ~1023u;
        stages = own + OWN_TILES * OWN_BYTES;
        exchange = stages + STAGES * STAGE_BYTES;
        own_ring.barriers = exchange + EXCHANGE_BYTES;
        ring.barriers = own_ring.barriers + Ring<OWN_TILES>::BYTES;
    }
};

struct Operands {
    const Half *dy, *q, *k, *v;
    const float *statistics;  // log-sum-exps in powers of two, then deltas, each [batch, heads, time]
    u32 batch, time, heads, group, q_stride, kv_stride;
#ifdef WINDOWED
    u32 window;
#else
    static constexpr u32 window = 0;
#endif
#ifdef PIECE
    u32 position, rows_of_keys;  // the position of the first query, and rows of a sequence of keys
    __device__ u32 rows() const { return rows_of_keys; }
#else
    static constexpr u32 position = 0;
    __device__ u32 rows() const { return time; }
#endif
    // Number of keys up to the last query (OWN_KEYS), or of queries.
    template <bool OWN_KEYS> __device__ u32 own_end() const { return OWN_KEYS ? position + time : time; }
    // Offset of a sequence's first row in query head `head`, and in the key and value head that it reads.
    __device__ u64 q_start(u32 head, u32 sequence) const {
        return u64(sequence) * time * q_stride + head * D;
    }
    __device__ u64 kv_start(u32 head, u32 sequence) const {
        return u64(sequence) * rows() * kv_stride + head / group * D;
    }
    // Query heads that one block of threads takes, one after the other: with OWN_KEYS a part of those that
    // share a key head.
    u32 own_members;
    template <bool OWN_KEYS> __device__ u32 members() const { return OWN_KEYS ? own_members : 1; }
    // Where the gradients of keys of query heads from `head` on go, in elements from the start of the array,
    // and the distance of its rows: the layout of keys, or of attention_parts.cu.
    __device__ u64 gradient_start(u32 head, u32 sequence) const {
        if (own_members == group) return kv_start(head, sequence);
        return u64(sequence) * own_end<true>() * gradient_stride() + head / own_members * D;
    }
    __device__ u32 gradient_stride() const {
        return own_members == group ? kv_stride : heads / own_members * D;
    }
    __device__ Source gradient(u32 head, u32 sequence) const {
        const u64 stride = u64(heads) * D;
        return {dy + u64(sequence) * time * stride + head * D, stride};
    }
};

// Index of the first tile of queries that see the tile `index` of keys. Queries begin at `position`.
__device__ __forceinline__ u32 first_tile(u32 index, u32 position) {
    return IS_PIECE ? max(index, position / COLUMNS) - position / COLUMNS : index;
}

// Number of column tiles that 64 rows meet within windows, if there are as many.
__device__ __forceinline__ u32 tiles_of_window(u32 window) { return (window + 2 * COLUMNS - 2) / COLUMNS; }

// Number of column tiles that a block of rows meets: from the diagonal to the last queries (OWN_KEYS), or
// from the first keys to the diagonal.
template <bool OWN_KEYS>
__device__ __forceinline__ u32 columns_met(u32 block, u32 time, u32 window, u32 position) {
    constexpr u32 OWN = ROWS / COLUMNS;
    const u32 all = (time + COLUMNS - 1) / COLUMNS;
    const u32 met = OWN_KEYS ? all - first_tile(block * OWN, position)
                             : min((block + 1) * OWN, all) + position / COLUMNS;
    if constexpr (!IS_WINDOWED) return met;
    const u32 seen = tiles_of_window(window);
    if (OWN_KEYS) return min(met, OWN - 1 + seen);
    return block * OWN + 1 > seen ? met - (block * OWN + 1 - seen) : met;
}

// Index of the last column tile that a block of queries meets.
__device__ __forceinline__ u32 last_column(u32 block, u32 time) {
    return min((block + 1) * (ROWS / COLUMNS), (time + COLUMNS - 1) / COLUMNS) - 1;
}

// Hides scores outside of windows in the tile `steps` tiles from the diagonal, of 64 rows.
template <bool OWN_KEYS>
__device__ __forceinline__ void hide(float (&s)[COLUMNS / 2], u32 row, u32 steps, u32 window) {
    if (steps * COLUMNS + COLUMNS <= window) return;
    const int distance = int(row) - int(threadIdx.x % 4 * 2), limit = int(window) - int(steps * COLUMNS);
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) {
        const int d = i / 4 * 8 + i % 2 - i / 2 % 2 * 8;
        if ((OWN_KEYS ? d - distance : distance - d) >= limit) s[i] = -INFINITE;
    }
    pin(s);  // keeps this a branch
}

template <bool OWN_KEYS>
__device__ __forceinline__ void bring(const Memory &memory, const Operands &from, u32 warp) {
    u32 turn = warp;
    RingPosition<OWN_TILES> own_position;
    RingPosition<STAGES> position;
    const u32 time = from.time, members = from.members<OWN_KEYS>(), lines = from.heads / members;
    const Work work(from.own_end<OWN_KEYS>(), lines, from.batch);
    for_work(work, lines, [&](u32 block, u32 line, u32 sequence) {
        const u32 count = columns_met<OWN_KEYS>(block, time, from.window, from.position);
        if (warp == RELAY) {
            memory.own_ring.relay(own_position);
            for (u32 step = 0; step < count * members; ++step) memory.ring.relay(position);
            return;
        }
        u32 head = line * members;
        const u64 kv_start = from.kv_start(head, sequence);
        Source queries = {from.q + from.q_start(head, sequence), from.q_stride};
        const Source keys = {from.k + kv_start, from.kv_stride}, values = {from.v + kv_start, from.kv_stride};
        Source dy = from.gradient(head, sequence);
        const float *logsumexp = from.statistics + (u64(sequence) * from.heads + head) * time;
        const float *delta = logsumexp + u64(from.batch) * from.heads * time;
        memory.own_ring.fill_together(own_position, [&](u32 index) {
            const u32 to = memory.own + index * OWN_BYTES, first = block * ROWS;
            copy_tile<ROWS, COPIERS>(to, OWN_KEYS ? keys : queries, first, from.own_end<OWN_KEYS>(), warp);
            copy_tile<ROWS, COPIERS>(to + OWN_TILE, OWN_KEYS ? values : dy, first,
                                     from.own_end<OWN_KEYS>(), warp);
            if (!OWN_KEYS && warp == 0) copy_numbers<ROWS>(to + 2 * OWN_TILE, logsumexp, first, time);
            if (!OWN_KEYS && warp == 1) copy_numbers<ROWS>(to + 2 * OWN_TILE + 4 * ROWS, delta, first, time);
        });
        const u32 last = IS_WINDOWED ? last_column(block, time) : count - 1;
        auto first_column = [&](u32 step) {
            if constexpr (IS_PIECE && OWN_KEYS)
                return (first_tile(block * (ROWS / COLUMNS), from.position) + step) * COLUMNS;
            return (OWN_KEYS ? block * (ROWS / COLUMNS) + step : last - step) * COLUMNS;
        };
        for (u32 member = 0; member < members; ++member) {
            // Past the end queries and dy are 0, and so is every contribution of such a query.
            for (u32 step = 0; step < count; ++step)
                if constexpr (TOGETHER)
                    memory.ring.fill_together(position, [&](u32 index) {
                        const u32 to = memory.stages + index * STAGE_BYTES, first = first_column(step);
                        copy_tile<COLUMNS, COPIERS>(to, OWN_KEYS ? queries : keys, first,
                                                    from.own_end<!OWN_KEYS>(), warp);
                        copy_tile<COLUMNS, COPIERS>(to + COLUMN_BYTES, OWN_KEYS ? dy : values, first,
                                                    from.own_end<!OWN_KEYS>(), warp);
                        if (OWN_KEYS && warp < 2)
                            copy_numbers<COLUMNS>(to + 2 * COLUMN_BYTES + warp * 256,
                                                  warp ? delta : logsumexp, first, time);
                    });
                else
                    memory.ring.fill(position, turn, [&](u32 index) {
                        const u32 to = memory.stages + index * STAGE_BYTES;
                        const u32 first = first_column(step);
                        copy_tile<COLUMNS>(to, OWN_KEYS ? queries : keys, first, from.own_end<!OWN_KEYS>());
                        copy_tile<COLUMNS>(to + COLUMN_BYTES, OWN_KEYS ? dy : values, first,
                                           from.own_end<!OWN_KEYS>());
                        if (OWN_KEYS) copy_numbers<COLUMNS>(to + 2 * COLUMN_BYTES, logsumexp, first, time);
                        if (OWN_KEYS) copy_numbers<COLUMNS>(to + 2 * COLUMN_BYTES + 256, delta, first, time);
                    });
            if (OWN_KEYS) {
                queries.from += D, dy.from += D;
                logsumexp += time, delta += time;
            }
        }
    });
    finish_copies();
}

// Two neighbours in shared memory. `address` comes from `after`, which keeps the compiler from moving the
// load before the wait.
__device__ __forceinline__ Vector<float, 2> shared_pair(u32 address) {
    Vector<float, 2> pair;
    asm("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.at[0]), "=f"(pair.at[1]) : "r"(address));
    return pair;
}
__device__ __forceinline__ float shared_number(u32 address) {
    float number;
    asm("ld.shared.f32 %0, [%1];" : "=f"(number) : "r"(address));
    return number;
}
__device__ __forceinline__ u32 after(u32 x) {
    asm volatile("" : "+r"(x)::"memory");
    return x;
}

#endif
