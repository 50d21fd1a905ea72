// Token embedding, with or without learned positions, and the gradients of both tables without float atomics.
//
// Shapes: tokens_bl, documents_bl, out_bld; table_vd, positions_ld and their gradients. Letters as in
// CONTRIBUTING.md.
#include "common.cuh"

// RARE: the list of a token that occurs more often is sorted, and its row summed, by whole blocks. ABSENT:
// the number of a token whose row is in another part of a divided table; its row is -0, and it has no
// gradient.

template <int N> __device__ __forceinline__ void add(Floats<N> &sum, const Floats<N> &values) {
#pragma unroll
    for (int i = 0; i < N; i++) sum.at[i] += values.at[i];
}

// out[row] = table[tokens[row]] + positions[row % time]; positions may be null. Launch: a warp per row, 8
// rows per block. Floor: a table row and the output row of every token; positions stay in L2.
template <int N, typename T>
__device__ __forceinline__ void forward(const u32 *tokens_bl, const T *table_vd, const T *positions_ld,
                                        T *out_bld, u32 rows, u32 time, u32 vocab, u32 width) {
    const u32 row = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (row >= rows) return;
    const u32 token = tokens_bl[row];
    const T *position = positions_ld + u64(row % time) * width;
    if (token == ABSENT) {
        Floats<N> values;
#pragma unroll
        for (int i = 0; i < N; i++) values.at[i] = -0.0f;
        for (u32 at = threadIdx.x % WARP * N; at < width; at += WARP * N)
            write(out_bld + u64(row) * width + at, positions_ld ? read<N>(position + at) : values);
        return;
    }
    if (token >= vocab) __trap();
    const T *from = table_vd + u64(token) * width;
    T *to = out_bld + u64(row) * width;
#pragma unroll 4
    for (u32 at = threadIdx.x % WARP * N; at < width; at += WARP * N) {
        Floats<N> values = read<N>(from + at);
        if (positions_ld) add(values, read<N>(position + at));
        write(to + at, values);
    }
}

// Numbers of tokens in the part of a table whose rows begin with token `first`. Launch: a thread per token.
KERNEL __launch_bounds__(THREADS)
    local_tokens(const u32 *__restrict__ tokens, u32 *__restrict__ out, u32 count, u32 first, u32 rows) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    const u32 number = tokens[at] - first;
    out[at] = tokens[at] >= first && number < rows ? number : ABSENT;
}

// Positions of tokens in their documents. Launch: a thread per token.
KERNEL __launch_bounds__(THREADS)
    positions(const u32 *__restrict__ documents, u32 *__restrict__ out, u32 tokens, u32 time) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at < tokens) out[at] = at % time - documents[at];
}

// The table's gradient: a counting sort lists the positions of every token, then each row of the table adds
// the gradients at its positions in order. Counts and lists are integers, so they do not depend on
// scheduling, except for the order inside the list of a rare token, which its reader sorts.

// counts[token] += 1 for every token but `padding`. Launch: a thread per token.
KERNEL __launch_bounds__(THREADS)
    count_tokens(const u32 *__restrict__ tokens, u32 *counts, u32 rows, u32 vocab, u32 padding) {
    const u32 row = blockIdx.x * THREADS + threadIdx.x;
    const u32 token = row < rows ? tokens[row] : ABSENT;
    const bool present = token != ABSENT && token != padding;
    if (present && token >= vocab) __trap();
    // One addition for all threads of a warp with the same token, so that frequent tokens do not contend.
    const u32 same = __match_any_sync(ALL_LANES, token);
    if (present && (same & ((1u << (threadIdx.x % WARP)) - 1)) == 0) atomicAdd(counts + token, __popc(same));
}

// starts[v] = number of tokens below v, for v up to and including vocab; tokens with more than RARE
// occurrences go to `frequent`, their number to starts[vocab + 1]. Launch: one block of WIDE_THREADS threads,
// each with a run of consecutive v.
KERNEL __launch_bounds__(WIDE_THREADS) start_lists(const u32 *__restrict__ counts, u32 *__restrict__ starts,
                                                   u32 *__restrict__ frequent, u32 vocab) {
    __shared__ u32 totals[WARP], heavy;
    if (threadIdx.x == 0) heavy = 0;
    const u32 run = (vocab + WIDE_THREADS - 1) / WIDE_THREADS;
    const u32 first = min(vocab, threadIdx.x * run), end = min(vocab, first + run);
    u32 own = 0;
#pragma unroll 4
    for (u32 v = first; v < end; v++) own += counts[v];
    u32 below = own;
    for (u32 offset = 1; offset < WARP; offset *= 2) {
        const u32 other = __shfl_up_sync(ALL_LANES, below, offset);
        if (threadIdx.x % WARP >= offset) below += other;
    }
    if (threadIdx.x % WARP == WARP - 1) totals[threadIdx.x / WARP] = below;
    __syncthreads();
    u32 start = below - own;
    for (u32 warp = 0; warp < threadIdx.x / WARP; warp++) start += totals[warp];
    for (u32 v = first; v < end; v++) {
        const u32 count = counts[v];
        starts[v] = start;
        start += count;
        if (count > RARE) frequent[atomicAdd(&heavy, 1u)] = v;
    }
    if (threadIdx.x == WIDE_THREADS - 1) starts[vocab] = start;
    __syncthreads();
    if (threadIdx.x == 0) starts[vocab + 1] = heavy;
}

// Writes the positions of rare tokens into their lists, in any order; counts their counts down to 0. Launch:
// a thread per token.
KERNEL __launch_bounds__(THREADS) list_rare(const u32 *__restrict__ tokens, const u32 *__restrict__ starts,
                                            u32 *counts, u32 *__restrict__ lists, u32 rows,
                                            u32 padding) {
    const u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows || tokens[row] == padding) return;
    const u32 token = tokens[row];
    if (token == ABSENT) return;
    const u32 start = starts[token];
    if (starts[token + 1] - start <= RARE) lists[start + atomicSub(counts + token, 1u) - 1] = row;
}

// Writes the list of every frequent token in increasing order: blocks take frequent tokens in turn and scan
// all tokens, and a vote in every warp gives the positions in the list. Launch: WIDE_THREADS threads, a block
// for each possible frequent token, at most 1024. Tokens come from L2.
KERNEL __launch_bounds__(WIDE_THREADS)
    list_frequent(const u32 *__restrict__ tokens, const u32 *__restrict__ starts,
                  const u32 *__restrict__ frequent, u32 *__restrict__ lists, u32 rows, u32 vocab) {
    __shared__ u32 votes[2][WARP];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 many = starts[vocab + 1];
    for (u32 index = blockIdx.x; index < many; index += gridDim.x) {
        const u32 token = frequent[index];
        u32 at_index = starts[token];
        u32 turn = 0;
        for (u32 first = 0; first < rows; first += WIDE_THREADS, turn ^= 1) {
            const u32 row = first + threadIdx.x;
            const bool mine = row < rows && tokens[row] == token;
            const u32 vote = __ballot_sync(ALL_LANES, mine);
            if (lane == 0) votes[turn][warp] = __popc(vote);
            // Two alternating buffers: a warp that runs ahead meets this barrier before it can overwrite
            // votes that others read.
            __syncthreads();
            const u32 counted = votes[turn][lane];
            u32 before = lane < warp ? counted : 0, all = counted;
            before = warp_sum_u32(before);
            all = warp_sum_u32(all);
            if (mine) lists[at_index + before + __popc(vote & ((1u << lane) - 1))] = row;
            at_index += all;
        }
        __syncthreads();
    }
}

// Gradients of rare tokens, and of tokens that do not occur. Launch: a warp for a row and a piece of WARP * N
// columns, 8 rows per block, grid [rows / 8, pieces]. Floor: dy once, the table's gradient once.
template <int N, typename T, typename Out>
__device__ __forceinline__ void rare_rows(const T *dy_td, const u32 *starts, const u32 *lists, Out *table_vd,
                                          u32 vocab, u32 width, u32 accumulate) {
    const u32 row = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const u32 lane = threadIdx.x % WARP;
    if (row >= vocab) return;
    const u32 start = starts[row];
    const u32 count = starts[row + 1] - start;
    if (count > RARE || (count == 0 && accumulate)) return;
    // Every thread holds a position; `rank` is the number of smaller ones.
    const u32 position = lane < count ? lists[start + lane] : 0xffffffffu;
    u32 rank = 0;
    for (u32 other = 0; other < count; other++) rank += __shfl_sync(ALL_LANES, position, other) < position;
    const u32 column = (blockIdx.y * WARP + lane) * N;
    const bool inside = column < width;
    Out *target = table_vd + u64(row) * width + column;
    Floats<N> sum = {};
    if (accumulate && inside) sum = read<N>(target);
#pragma unroll 4
    for (u32 turn = 0; turn < count; turn++) {
        const u32 owner = __ffs(__ballot_sync(ALL_LANES, lane < count && rank == turn)) - 1;
        const u32 next = __shfl_sync(ALL_LANES, position, owner);
        if (inside) add(sum, read<N>(dy_td + u64(next) * width + column));
    }
    if (inside) write(target, sum);
}

// Gradients of frequent tokens. A block owns a row and COLUMNS columns: all threads load the next STAGE
// positions into registers while one thread per column adds the previous ones, in order, from shared memory.
// So each of thousands of positions costs a few cycles instead of a memory latency. Launch: THREADS threads,
// grid [most frequent tokens, pieces].
#define STAGE 128
template <typename T, typename Out>
__device__ __forceinline__ void frequent_rows(const T *dy_td, const u32 *starts, const u32 *frequent,
                                              const u32 *lists, Out *table_vd, u32 vocab, u32 width,
                                              u32 accumulate) {
    __shared__ float staged[STAGE][COLUMNS];
    constexpr u32 STRIDE = THREADS / COLUMNS;
    const u32 many = starts[vocab + 1];
    const u32 lane = threadIdx.x % COLUMNS, strand = threadIdx.x / COLUMNS;
    const u32 column = blockIdx.y * COLUMNS + lane;
    const bool inside = column < width;
    for (u32 index = blockIdx.x; index < many; index += gridDim.x) {
        const u32 token = frequent[index];
        const u32 start = starts[token], count = starts[token + 1] - start;
        Out *target = table_vd + u64(token) * width + column;
        float sum = accumulate && strand == 0 && inside ? to_f32(*target) : 0.0f;
        T next[STAGE / STRIDE];
        const auto fetch = [&](u32 first) {
#pragma unroll
            for (u32 i = 0; i < STAGE / STRIDE; i++) {
                const u32 at = first + strand + i * STRIDE;
                if (at < count && inside) next[i] = dy_td[u64(lists[start + at]) * width + column];
            }
        };
        fetch(0);
        for (u32 first = 0; first < count; first += STAGE) {
            // Rows past the end are loaded as well, but never added.
#pragma unroll
            for (u32 i = 0; i < STAGE / STRIDE; i++) staged[strand + i * STRIDE][lane] = to_f32(next[i]);
            __syncthreads();
            fetch(first + STAGE);
            if (strand == 0) {
                const u32 filled = min(u32(STAGE), count - first);
#pragma unroll 16
                for (u32 i = 0; i < filled; i++) sum += staged[i][lane];
            }
            __syncthreads();
        }
        if (strand == 0 && inside) *target = from_f32<Out>(sum);
    }
}

// positions[t] (+)= sum over the batch of dy[b][t], in the order of b; rows from `time` on add nothing.
// Launch: a thread per N columns of a row of `positions`. Floor: dy once.
template <int N, typename T, typename Out>
__device__ __forceinline__ void position_rows(const T *dy_bld, Out *positions_ld, u32 batch, u32 time,
                                              u32 context, u32 width, u32 accumulate) {
    const u32 vectors = width / N;
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    const u32 row = index / vectors;
    const u32 column = index % vectors * N;
    if (row >= context || (row >= time && accumulate)) return;
    Out *target = positions_ld + u64(row) * width + column;
    Floats<N> sum = {};
    if (accumulate) sum = read<N>(target);
    if (row < time) {
        const T *from = dy_bld + u64(row) * width + column;
#pragma unroll 8
        for (u32 b = 0; b < batch; b++) add(sum, read<N>(from + u64(b) * time * width));
    }
    write(target, sum);
}

#define FOR_TYPE(NAME, T)                                                                             \
    KERNEL __launch_bounds__(THREADS) forward_##NAME(                                                 \
        const u32 *__restrict__ tokens, const T *__restrict__ table, const T *__restrict__ positions, \
        T *__restrict__ out, u32 rows, u32 time, u32 vocab, u32 width, u32 vector) {                  \
        if (vector)                                                                                   \
            forward<16 / sizeof(T)>(tokens, table, positions, out, rows, time, vocab, width);         \
        else                                                                                          \
            forward<1>(tokens, table, positions, out, rows, time, vocab, width);                      \
    }

FOR_EACH_TYPE(FOR_TYPE)

// T: type of dy. OUT: type of the tables' gradients, which are summed in f32 and rounded once.
#define FOR_TYPES(NAME, T, OUT)                                                                          \
    KERNEL __launch_bounds__(THREADS) rare_rows_##NAME(                                                  \
        const T *__restrict__ dy, const u32 *__restrict__ starts, const u32 *__restrict__ lists,         \
        OUT *__restrict__ table, u32 vocab, u32 width, u32 accumulate, u32 vector) {                     \
        if (vector)                                                                                      \
            rare_rows<16 / sizeof(T)>(dy, starts, lists, table, vocab, width, accumulate);               \
        else                                                                                             \
            rare_rows<1>(dy, starts, lists, table, vocab, width, accumulate);                            \
    }                                                                                                    \
    KERNEL __launch_bounds__(THREADS) frequent_rows_##NAME(                                              \
        const T *__restrict__ dy, const u32 *__restrict__ starts, const u32 *__restrict__ frequent,      \
        const u32 *__restrict__ lists, OUT *__restrict__ table, u32 vocab, u32 width, u32 accumulate) {  \
        frequent_rows(dy, starts, frequent, lists, table, vocab, width, accumulate);                     \
    }                                                                                                    \
    KERNEL __launch_bounds__(THREADS)                                                                    \
        position_rows_##NAME(const T *__restrict__ dy, OUT *__restrict__ positions, u32 batch, u32 time, \
                             u32 context, u32 width, u32 accumulate, u32 vector) {                       \
        if (vector)                                                                                      \
            position_rows<16 / sizeof(T)>(dy, positions, batch, time, context, width, accumulate);       \
        else                                                                                             \
            position_rows<1>(dy, positions, batch, time, context, width, accumulate);                    \
    }

#define FOR_HALF(NAME, T) FOR_TYPES(NAME##_f32, T, float) FOR_TYPES(NAME##_##NAME, T, T)

FOR_TYPES(f32_f32, float, float)
FOR_EACH_HALF(FOR_HALF)
