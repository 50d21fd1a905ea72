// Forward attention on Hopper. See attention_hopper.cuh.
#include "attention_hopper.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define KEY_TILE (KEYS * PANELS * 128)

// Shared memory: the queries of two blocks, a ring of key and value tiles, barriers.
struct Memory {
    u32 queries, tiles;
    Ring<QUERY_TILES> query_ring;
    Ring<SLOTS> ring;
    __device__ explicit Memory(u8 *memory) {
        queries = (shared_address(memory) + 1023) & ~1023u;
        tiles = queries + QUERY_TILES * OWN_TILE;
        query_ring.barriers = tiles + SLOTS * KEY_TILE;
        ring.barriers = query_ring.barriers + Ring<QUERY_TILES>::BYTES;
    }
};

// Index of the last tile of keys that a block of queries meets, of which the first of all is at `position`.
__device__ __forceinline__ u32 last_tile(u32 block, u32 time, u32 position) {
    return (position + min((block + 1) * ROWS, time) - 1) / KEYS;
}

// Index of the first tile of keys that queries from `row` on see.
__device__ __forceinline__ u32 first_tile(u32 row, u32 window) {
    return IS_WINDOWED && row >= window ? (row - window + 1) / KEYS : 0;
}

// Calls f(array, tile) for keys and values of each tile, from the last back: the order of the copies.
template <typename F>
__device__ __forceinline__ void for_tiles(const Half *k, const Half *v, u32 begin, u32 last, F f) {
    for (u32 left = last + 1; left > begin; --left) {
        f(k, left - 1);
        f(v, left - 1);
    }
}

// The running softmax of rows row and row + 8.
struct Softmax {
    float largest[2] = {-INFINITE, -INFINITE}, total[2] = {0.0f, 0.0f};

    // Turns scores into weights; `shrink` is the factor for earlier sums.
    __device__ __forceinline__ void step(float (&s)[KEYS / 2], float scale, float (&shrink)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float here[4] = {largest[half], s[half * 2], s[half * 2 + 4], s[half * 2 + 8]};
#pragma unroll
            for (int i = 0; i < KEYS / 2; i += 4)
                here[i / 4 % 4] = fmaxf(here[i / 4 % 4], fmaxf(s[i + half * 2], s[i + half * 2 + 1]));
            float most = fmaxf(fmaxf(here[0], here[1]), fmaxf(here[2], here[3]));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            shrink[half] = exp2_fast((largest[half] - most) * scale);
            largest[half] = most;
        }
        float sum[4] = {total[0] * shrink[0], total[1] * shrink[1], 0.0f, 0.0f};
        const float offset[2] = {largest[0] * scale, largest[1] * scale};
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) {
            s[i] = exp2_fast(fmaf(s[i], scale, -offset[i / 2 % 2]));
            sum[i / 2 % 2 + i % 2 * 2] += s[i];
        }
        total[0] = sum[0] + sum[2], total[1] = sum[1] + sum[3];
    }
};

// Consumers take turns to begin matmuls, so that one computes weights while the matmuls of the other run.
__device__ __forceinline__ void turn_wait(u32 group) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}
__device__ __forceinline__ void turn_pass(u32 group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
}

// Loops over keys from the diagonal back, so that only the first tile is masked. The matmul of weights and
// values of one tile runs while the softmax of the next is computed.
struct Consumer {
    Memory memory;
    float scale;
    u32 group;
    Dropout dropout;
    RingPosition<QUERY_TILES> query_position;
    RingPosition<SLOTS> position;

    __device__ __forceinline__ u32 tile(u32 index) const {
        return descriptor(memory.tiles, KEYS) + index * AT(KEY_TILE);
    }
    // Waits for the next tile of the ring; returns its index there.
    __device__ __forceinline__ u32 take() {
        memory.ring.take(position);
        const u32 index = position.index;
        position.next();
        return index;
    }
    __device__ __forceinline__ void skip_tiles(u32 count) {
        for (count *= 2; count > 0; --count) memory.ring.release(take());
    }
    __device__ __forceinline__ void queries_done() {
        memory.query_ring.release(query_position.index);
        query_position.next();
    }

    // Skips tiles of keys and values; consumers still take turns.
    __device__ __forceinline__ void skip_in_turn(u32 count) {
        for (; count > 0; --count) {
            turn_wait(group);
            turn_pass(group);
            skip_tiles(1);
        }
    }
    // Hides keys of `tile` before the windows of queries from `first` on.
    __device__ __forceinline__ void hide(float (&s)[KEYS / 2], u32 first, u32 tile, u32 window) const {
        if (tile * KEYS + window > first + 63) return;
        const int distance = int(first + own_row(0)) - int(tile * KEYS + threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i)
            if (distance - (i / 4 * 8 + i % 2 - i / 2 % 2 * 8) >= int(window)) s[i] = -INFINITE;
        pin(s);  // keeps this a branch
    }

    // 64 queries from position `first` on against the tiles from `begin` to `last`, which holds the diagonal,
    // so that each query has met a key that it sees when tiles follow in which it sees none. `line` is the
    // index of the sequence and head.
    __device__ __forceinline__ void rows(u32 line, u32 first, u32 begin, u32 last, u32 window,
                                         Softmax &softmax, float (&out)[D / 2]) {
        float s[KEYS / 2], shrink[2];
        Kept<KEYS / 2> kept;
        u32 p[KEYS / 16][4];
        const u32 queries =
            descriptor(memory.queries + query_position.index * OWN_TILE + group * 64 * 128, ROWS);
        u32 keys = take();
        // Values are copied before the next keys: a wait for those keys covers these values.
        RingPosition<SLOTS> values = position;
        position.next();
        turn_wait(group);
        products_begin();
        times_transposed(s, queries, tile(keys));
        products_commit();
        turn_pass(group);
        if constexpr (IS_DROPPED) draw<false>(kept, dropout, line, first, last * KEYS);
        products_wait<0>();
        pin(s);
        memory.ring.release(keys);
        const int distance = int(first + own_row(0)) - int(last * KEYS + threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i)
            if (i / 4 * 8 + i % 2 - i / 2 % 2 * 8 > distance) s[i] = -INFINITE;
        if constexpr (IS_WINDOWED) hide(s, first, last, window);
        softmax.step(s, scale, shrink);
        if constexpr (IS_DROPPED) drop(s, kept);
        pack(p, s);
        int add = 0;
        for (u32 left = last; left > begin; --left) {
            keys = take();
            const RingPosition<SLOTS> next_values = position;
            position.next();
            turn_wait(group);
            products_begin();
            times_transposed(s, queries, tile(keys));
            products_commit();
            times(out, p, tile(values.index), add);
            products_commit();
            turn_pass(group);
            add = 1;
            if constexpr (IS_DROPPED) draw<false>(kept, dropout, line, first, (left - 1) * KEYS);
            products_wait<1>();
            pin(s);
            memory.ring.release(keys);
            if constexpr (IS_WINDOWED) hide(s, first, left - 1, window);
            softmax.step(s, scale, shrink);
            if constexpr (IS_DROPPED) drop(s, kept);
            products_wait<0>();
            pin(out);
            memory.ring.release(values.index);
            values = next_values;
#pragma unroll
            for (int i = 0; i < D / 2; ++i) out[i] *= shrink[i / 2 % 2];
            pack(p, s);
        }
        queries_done();
        memory.ring.take(values);
        products_begin();
        times(out, p, tile(values.index), add);
        products_commit();
        products_wait<0>();
        pin(out);
        memory.ring.release(values.index);
    }
};

// Grid [min(multiprocessors, pairs * heads * batch)], 384 threads, shared QUERY_TILES tiles of 128 queries,
// SLOTS tiles of keys and 2 KiB: one block a multiprocessor, because a consumer's 240 registers hold a tile
// of scores, its weights and the output. Floor: 2 matmuls, 2 * batch * heads * time^2 * HEAD_DIM FLOP (the
// causal half); at HEAD_DIM 64 the exponentials take as long. `cells`: null, or where the largest magnitude
// of the output goes.
KERNEL __launch_bounds__(BLOCK, 1)
    OF_HALF(forward)(Half *__restrict__ out, float *__restrict__ logsumexp,
                             const Half *__restrict__ q, const Half *__restrict__ k,
                             const Half *__restrict__ v, u32 batch, u32 time, u32 heads, u32 group,
                             u32 q_stride, u32 kv_stride, float scale,
                             u32 *cells WINDOW_PARAMETER PIECE_PARAMETERS DROPOUT_PARAMETERS) {
    const Memory memory(shared_memory);
    const u32 width = heads * D, warp = uniform(threadIdx.x / WARP);
    if (threadIdx.x == 0) memory.query_ring.init(COPIERS), memory.ring.init(1);
    __syncthreads();
    const Work work(time, heads, batch);
    if (warp < GROUP / WARP) {
        few_registers<24>();
        u32 turn = warp;
        RingPosition<QUERY_TILES> query_position;
        RingPosition<SLOTS> position;
        for_work(work, heads, [&](u32 block, u32 head, u32 sequence) {
            if (warp == RELAY) {
                memory.query_ring.relay(query_position);
                for_tiles(k, v, first_tile(block * ROWS, WINDOW), last_tile(block, time, POSITION),
                    [&](const Half *, u32) { memory.ring.relay(position); });
                return;
            }
            const Half *queries = q + u64(sequence) * time * q_stride + head * D;
            memory.query_ring.fill_together(query_position, [&](u32 index) {
                copy_tile<ROWS, COPIERS>(memory.queries + index * OWN_TILE, {queries, q_stride}, block * ROWS,
                                         time, warp);
            });
            const u64 start = u64(sequence) * ROWS_OF_KEYS * kv_stride + head / group * D;
            const u32 begin = first_tile(block * ROWS, WINDOW);
            for_tiles(k, v, begin, last_tile(block, time, POSITION), [&](const Half *array, u32 tile) {
                memory.ring.fill(position, turn, [&](u32 index) {
                    copy_tile<KEYS>(memory.tiles + index * KEY_TILE, {array + start, kv_stride}, tile * KEYS,
                                    POSITION + time);
                });
            });
        });
        finish_copies();
    } else {
        many_registers<24>();
        Consumer consumer = {memory, scale * LOG2E, warp / 4 - 1, DROPOUT};
        if (consumer.group == 1) turn_pass(1);
        for_work(work, heads, [&](u32 block, u32 head, u32 sequence) {
            const u32 first = block * ROWS + consumer.group * 64, row = first + own_row(0);
            const u32 last = last_tile(block, time, POSITION),
                      diagonal = min((POSITION + first + 63) / KEYS, last);
            const u32 begin = first_tile(block * ROWS, WINDOW), own_begin = first_tile(first, WINDOW);
            memory.query_ring.take(consumer.query_position);
            if (first >= time) {
                // All 64 rows lie past the end.
                consumer.queries_done();
                for (u32 left = last + 1; left > begin; --left) {
                    turn_wait(consumer.group);
                    turn_pass(consumer.group);
                    consumer.skip_tiles(1);
                }
                return;
            }
            Softmax softmax;
            float acc[D / 2];
            if constexpr (KEYS < ROWS || IS_PIECE) {
                // Tiles that only later rows see; consumers still take turns.
                for (u32 left = last - diagonal; left > 0; --left) {
                    turn_wait(consumer.group);
                    turn_pass(consumer.group);
                    consumer.skip_tiles(1);
                }
            } else {
                consumer.skip_tiles(last - diagonal);
            }
            consumer.rows(sequence * heads + head, POSITION + first, own_begin, diagonal, WINDOW, softmax,
                          acc);
            if constexpr (IS_WINDOWED) consumer.skip_in_turn(own_begin - begin);
            float total[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                total[half] = softmax.total[half] + __shfl_xor_sync(ALL_LANES, softmax.total[half], 1);
                total[half] += __shfl_xor_sync(ALL_LANES, total[half], 2);
            }
            const float kept = consumer.dropout.scale;
            const u32 most = store_rows(out + u64(sequence) * time * width + head * D, width, row, time, acc,
                                        kept / total[0], kept / total[1]);
            if (cells) record_pair(most, cells);
            float *line = logsumexp + (u64(sequence) * heads + head) * time;
            if (threadIdx.x % 4 == 0) {
                if (row < time) line[row] = softmax.largest[0] * scale + LN2 * __log2f(total[0]);
                if (row + 8 < time) line[row + 8] = softmax.largest[1] * scale + LN2 * __log2f(total[1]);
            }
        });
    }
}

#endif
