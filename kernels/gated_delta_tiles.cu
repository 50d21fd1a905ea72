// The gated delta rule in half precision on tensor cores, forward, with a decay per head.
//
// With rows of keys and queries times their numbers (Scale), the corrections of a chunk are x = solved *
// (values - keys * state), where `solved` is the inverse of the unit triangular matrix of pairs of keys; the
// outputs are queries * state + pairs * x, with pairs of queries and keys. Norms and decays scale rows and
// columns of f32 sums, so that matmuls read queries, keys and values as they are.
//
// `prepare` computes `solved` and `pairs` of all chunks at once. `outputs` then follows the chunks: a block
// has STRIP columns of a head's values, a warp 16 of them, whose state, transposed, stays in its registers.
// `states` does the same for the backward pass, and stores corrections and states instead of outputs.
//
// Launch: prepare: PREPARE_THREADS threads, grid [chunks, value heads, batch]; others: 2 threads for each
// column of a strip, grid [strips, value heads, batch]. Floor: operands and results once.
//
// Shapes: qkv_blc; solved and pairs [b][head][chunk][CHUNK][CHUNK]; scales [b][head][chunk][SCALES][CHUNK];
// states [b][head][chunk][values][WIDTH]. Letters as in CONTRIBUTING.md.
#include "gated_delta_tiles.cuh"

#if __CUDA_ARCH__ >= 800

// Distance of the rows of f32 matrices in shared memory.
#define PITCH (CHUNK + 4)

// Replaces rows and columns from `first` of the lower left quarter of a matrix of 2 * SIZE by the product
// with the inverses of the others: below = -inverse * below * inverse. FIRSTS such matrices lie along the
// diagonal.
template <int SIZE, int FIRSTS>
__device__ __forceinline__ void join_inverses(float *pairs_ts, float *inverse_ts) {
    constexpr int THREADS_EACH = PREPARE_THREADS / FIRSTS, COLUMNS = SIZE / 4;
    constexpr int ROWS = SIZE * COLUMNS / THREADS_EACH;
    const u32 thread = threadIdx.x % THREADS_EACH, start = threadIdx.x / THREADS_EACH * 2 * SIZE;
    const u32 row = thread / COLUMNS * ROWS, column = thread % COLUMNS * 4;
    float *below = pairs_ts + (start + SIZE) * PITCH + start;
    const float *first = inverse_ts + start * PITCH + start;
    const float *second = inverse_ts + (start + SIZE) * PITCH + start + SIZE;
    float *joined = inverse_ts + (start + SIZE) * PITCH + start;
    const auto product = [&](const float *a, const float *b, float(&sum)[ROWS][4]) {
#pragma unroll 2
        for (int first = 0; first < SIZE; first += 4) {
            Vector<float, 4> factors[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; i++) factors[i] = load<4>(a + (row + i) * PITCH + first);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const Vector<float, 4> right = load<4>(b + (first + k) * PITCH + column);
#pragma unroll
                for (int i = 0; i < ROWS; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) sum[i][j] = fmaf(factors[i].at[k], right.at[j], sum[i][j]);
            }
        }
    };
    float half[ROWS][4] = {}, whole[ROWS][4] = {};
    product(below, first, half);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        store<4>(below + (row + i) * PITCH + column,
                 Vector<float, 4>{{-half[i][0], -half[i][1], -half[i][2], -half[i][3]}});
    __syncthreads();
    product(second, below, whole);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        store<4>(joined + (row + i) * PITCH + column,
                 Vector<float, 4>{{whole[i][0], whole[i][1], whole[i][2], whole[i][3]}});
    __syncthreads();
}

// The inverse of 1 + the strictly lower triangular matrix `pairs_ts`, which is overwritten: blocks of 16 on
// the diagonal by substitution, a warp each, then pairs of blocks by products.
__device__ __forceinline__ void invert(float *pairs_ts, float *inverse_ts) {
    const u32 first = threadIdx.x / WARP * 16, column = threadIdx.x % 16;
    for (u32 index = threadIdx.x * 4; index < CHUNK * PITCH; index += PREPARE_THREADS * 4)
        store<4>(inverse_ts + index, Vector<float, 4>{});
    __syncthreads();
    float x[16];
#pragma unroll
    for (int t = 0; t < 16; t++) {
        x[t] = t == column ? 1.0f : 0.0f;
#pragma unroll
        for (int start = 0; start < t; start += 4) {
            const Vector<float, 4> pairs = load<4>(pairs_ts + (first + t) * PITCH + first + start);
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (start + i < t) x[t] = fmaf(-pairs.at[i], x[start + i], x[t]);
        }
    }
    if (threadIdx.x % WARP < 16) {
#pragma unroll
        for (int t = 0; t < 16; t++) inverse_ts[(first + t) * PITCH + first + column] = x[t];
    }
    __syncthreads();
    join_inverses<16, 2>(pairs_ts, inverse_ts);
    join_inverses<32, 1>(pairs_ts, inverse_ts);
}

// 1 / the norm of a row of a tile, whose 16 bytes of a chunk eight threads read from all banks.
__device__ __forceinline__ float reciprocal_norm(u32 tile, u32 row, float epsilon) {
    float square = 0.0f;
#pragma unroll 4
    for (u32 chunk = 0; chunk < WIDTH / 8; chunk++) {
        const Vector<u32, 4> words = load_shared(tile + at(row, chunk));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float first = Word<Half>::first(words.at[i]), last = Word<Half>::last(words.at[i]);
            square = fmaf(last, last, fmaf(first, first, square));
        }
    }
    return 1.0f / sqrtf(square + epsilon);
}

KERNEL __launch_bounds__(PREPARE_THREADS, 4)
    OF_HALF(prepare)(const Half *__restrict__ qkv_blc, const float *__restrict__ decay_blh,
                     const float *__restrict__ rate_blh, Half *__restrict__ solved, Half *__restrict__ pairs,
                     float *__restrict__ scales, const u32 *__restrict__ documents_bl, SIZES, float epsilon) {
    alignas(8) __shared__ float sums[CHUNK], key_norms[CHUNK], query_norms[CHUNK], rates[CHUNK];
    const Chunk own(SIZES_OF, blockIdx.x, blockIdx.y, blockIdx.z, documents_bl);
    const u32 n = own.n, lane = threadIdx.x % WARP;
    const u32 start = shared_address(shared_memory), key_tile = (start + 1023) & ~1023u;
    const u32 query_tile = key_tile + TILE;
    // The inverse takes the memory of the tiles.
    float *inverse_ts = reinterpret_cast<float *>(shared_memory + (key_tile - start));
    float *pairs_ts = inverse_ts + max(u32(2 * TILE / 4), u32(CHUNK * PITCH));
    const Half *query = qkv_blc + own.row(0) * own.sizes.packed() + own.head / (value / key) * width;
    copy_rows<WIDTH, PREPARE_THREADS>(key_tile, query + key * width, own.sizes.packed(), n, width);
    copy_rows<WIDTH, PREPARE_THREADS>(query_tile, query, own.sizes.packed(), n, width);
    commit_copies();
    if (threadIdx.x < WARP) {
        const auto read_decay = [&](u32 t) {
            return t < n ? decay_blh[own.row(t) * value + own.head] : 0.0f;
        };
        store<2>(sums + 2 * lane, sum_decays(read_decay(2 * lane), read_decay(2 * lane + 1)));
    }
    const u32 t = threadIdx.x % CHUNK;
    if (threadIdx.x >= CHUNK) rates[t] = t < n ? rate_blh[own.row(t) * value + own.head] : 0.0f;
    finish_copies<0>();
    if (threadIdx.x < CHUNK)
        key_norms[t] = reciprocal_norm(key_tile, t, epsilon);
    else
        query_norms[t] = reciprocal_norm(query_tile, t, epsilon) * (1.0f / sqrtf(float(width)));
    __syncthreads();

    if (threadIdx.x < CHUNK) {
        float *to = scales + index_chunk(own) * SCALES * CHUNK + t;
        const bool is_token = t < n;
        const float since = is_token && own.carries(t) ? decay_between(0.0f, sums[t]) : 0.0f;
        const float until = is_token && own.sees(n - 1, t) ? decay_between(sums[t], sums[n - 1]) : 0.0f;
        to[KEY_SINCE * CHUNK] = since * key_norms[t];
        to[KEY_UNTIL * CHUNK] = until * rates[t] * key_norms[t];
        to[QUERY_SINCE * CHUNK] = since * query_norms[t];
        to[SINCE * CHUNK] = since;
        to[SUM * CHUNK] = sums[t];
        to[KEY * CHUNK] = key_norms[t];
        to[QUERY * CHUNK] = query_norms[t];
        to[UNTIL * CHUNK] = until;
        to[RATE * CHUNK] = rates[t];
    }
    const u32 row = threadIdx.x / WARP * 16;
    float keys[CHUNK / 2], queries[CHUNK / 2];
    u32 a[KEY_STEPS][4];
    left(a, key_tile, row);
    times_transposed<KEY_STEPS, CHUNK / 8, true>(keys, a, key_tile);
    finish_product<0>(keys, a);
    left(a, query_tile, row);
    times_transposed<KEY_STEPS, CHUNK / 8, true>(queries, a, key_tile);
    finish_product<0>(queries, a);
    int first_seen[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 t = row + lane / 4 + half * 8;
        first_seen[half] = t < n ? own.first_seen(t) : CHUNK;
    }
#pragma unroll
    for (u32 part = 0; part < CHUNK / 8; part++) {
        const u32 first = part * 8 + lane % 4 * 2;
        const Vector<float, 2> sum = load<2>(sums + first), rate = load<2>(rates + first);
        const Vector<float, 2> norm = load<2>(key_norms + first);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 t = row + lane / 4 + half * 8;
            float of_keys[2];
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const u32 s = first + j, i = part * 4 + half * 2 + j;
                const float between = decay_between(sum.at[j], sums[t]);
                const float factor = between * rate.at[j] * norm.at[j];
                const bool seen = s <= t && int(s) >= first_seen[half];
                of_keys[j] = seen && s < t ? keys[i] * factor * key_norms[t] : 0.0f;
                queries[i] = seen ? queries[i] * (factor * query_norms[t]) : 0.0f;
            }
            store<2>(pairs_ts + t * PITCH + first, Vector<float, 2>{{of_keys[0], of_keys[1]}});
        }
    }
    const u64 first = index_chunk(own) * CHUNK * CHUNK;
    store_rows<CHUNK / 8, true>(pairs + first, CHUNK, row + lane / 4, CHUNK, CHUNK, queries);
    __syncthreads();
    invert(pairs_ts, inverse_ts);
    for (u32 index = threadIdx.x; index < CHUNK * CHUNK / 8; index += PREPARE_THREADS) {
        const u32 row = index / (CHUNK / 8), column = index % (CHUNK / 8) * 8;
        if (column > row) continue;
        write<8>(solved + first + index * 8, read<8>(inverse_ts + row * PITCH + column));
    }
}

// Bytes of the operands of a chunk in shared memory.
#define STATE_STAGE (TILE + STRIP_TILE + PANEL + 4 * CHUNK * 4)
#define OUTPUT_STAGE (STATE_STAGE + TILE + PANEL)

// Addresses of the operands of a chunk in shared memory.
struct Stage {
    u32 keys, values, solved, scales, queries, pairs;
    __device__ __forceinline__ explicit Stage(u32 start)
        : keys(start),
          values(keys + TILE),
          solved(values + STRIP_TILE),
          scales(solved + PANEL),
          queries(scales + 4 * CHUNK * 4),
          pairs(queries + TILE) {}
};

template <bool OUTPUTS>
__device__ __forceinline__ void advance(const Half *qkv_blc, const Half *solved, const Half *pairs,
                                        const float *scales, const float *first, float *last, Half *out_blc,
                                        Half *x, Half *states, Sizes sizes) {
    const u32 strip = blockDim.x / 2, left = blockIdx.x * strip, head = blockIdx.y, batch = blockIdx.z;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 width = sizes.width, values = sizes.values;
    const u32 start = shared_address(shared_memory), stages = (start + 1023) & ~1023u;
    const Half *values_blc = qkv_blc + 2 * sizes.key * width + head * values + left;
    const Half *queries_blc = qkv_blc + head / (sizes.value / sizes.key) * width;
    // The columns of values and the element of a state that a warp and a thread begin with.
    const u32 own_column = warp * 16, row = left + own_column + lane / 4, column = lane % 4 * 2;
    const u64 of_head = (u64(batch) * sizes.value + head) * sizes.state();
    const auto locate = [&](u32 chunk) {
        return stages + chunk % 2 * (OUTPUTS ? OUTPUT_STAGE : STATE_STAGE);
    };
    const auto prefetch = [&](u32 chunk) {
        if (chunk < sizes.chunks) {
            const Chunk own(sizes, chunk, head, batch, nullptr);
            const Stage stage(locate(chunk));
            const u64 stride = sizes.packed(), line = own.row(0) * stride, index = index_chunk(own);
            const u64 square = index * CHUNK * CHUNK;
            load_tile(stage.keys, queries_blc + line + sizes.key * width, stride, own.n, width);
            load_strip(stage.values, values_blc + line, stride, own.n, values - left);
            load_pairs(stage.solved, solved + square);
            load_words(stage.scales, scales + index * SCALES * CHUNK, 4 * CHUNK);
            if (OUTPUTS) {
                load_tile(stage.queries, queries_blc + line, stride, own.n, width);
                load_pairs(stage.pairs, pairs + square);
            }
        }
        commit_copies();
    };
    for (u32 chunk = 0; chunk < 2; chunk++) {
        clear_pairs(Stage(locate(chunk)).solved);
        if (OUTPUTS) clear_pairs(Stage(locate(chunk)).pairs);
    }
    prefetch(0);
    float state[WIDTH / 2];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        const u32 v = row + i % 4 / 2 * 8, c = i / 4 * 8 + column + i % 2;
        state[i] = first && c < width && v < values ? first[of_head + u64(c) * values + v] : 0.0f;
    }
    for (u32 chunk = 0; chunk < sizes.chunks; chunk++) {
        finish_copies<0>();
        const Chunk own(sizes, chunk, head, batch, nullptr);
        const Stage stage(locate(chunk));
        const float *numbers = reinterpret_cast<const float *>(shared_memory + (stage.scales - start));
        const u32 columns = values > left + own_column ? values - left - own_column : 0;
        if (!OUTPUTS)
            store_rows<WIDTH / 8>(states + index_chunk(own) * values * WIDTH, WIDTH, row, values, WIDTH,
                                  state);
        u32 packed_state[KEY_STEPS][4], packed_x[TOKEN_STEPS][4], packed[TOKEN_STEPS][4];
        pack<WIDTH / 8>(packed_state, state);
        float x_vt[CHUNK / 2], read_vt[CHUNK / 2], out_vt[CHUNK / 2];
        times_transposed<KEY_STEPS, CHUNK / 8, true>(read_vt, packed_state, stage.keys);
        // All threads are beyond the chunk before this one, whose memory these copies take.
        prefetch(chunk + 1);
        if (OUTPUTS) times_transposed<KEY_STEPS, CHUNK / 8, true>(out_vt, packed_state, stage.queries);
        left_transposed(packed, stage.values, own_column / 8);
        finish_product<OUTPUTS ? 1 : 0>(read_vt, packed_state);
        scale_columns<CHUNK / 8>(read_vt, numbers + KEY_SINCE * CHUNK);
        {
            float values_vt[CHUNK / 2];
            unpack<CHUNK / 8>(values_vt, packed);
#pragma unroll
            for (int i = 0; i < CHUNK / 2; i++) read_vt[i] = values_vt[i] - read_vt[i];
        }
        pack<CHUNK / 8>(packed, read_vt);
        times_transposed<TOKEN_STEPS, CHUNK / 8, true>(x_vt, packed, stage.solved);
        const float kept = numbers[SINCE * CHUNK + own.n - 1];
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) state[i] *= kept;
        finish_product<0>(x_vt, packed);
        pack<CHUNK / 8>(packed_x, x_vt);
        if (OUTPUTS) {
            finish_product<0>(out_vt, packed_state);
            scale_columns<CHUNK / 8>(out_vt, numbers + QUERY_SINCE * CHUNK);
            times_transposed<TOKEN_STEPS, CHUNK / 8>(out_vt, packed_x, stage.pairs);
        }
        scale_columns<CHUNK / 8>(x_vt, numbers + KEY_UNTIL * CHUNK);
        pack<CHUNK / 8>(packed, x_vt);
        times<TOKEN_STEPS, WIDTH / 8>(state, packed, stage.keys);
        if (OUTPUTS) {
            finish_product<1>(out_vt, packed_x);
            u32 packed_out[TOKEN_STEPS][4];
            pack<CHUNK / 8>(packed_out, out_vt);
            Half *to = out_blc + (own.row(0) * sizes.value + head) * values + left + own_column;
            store_transposed(stage.values, own_column / 8, to, u64(sizes.value) * values, own.n, columns,
                             packed_out);
        } else {
            Half *to = x + own.value_row(0) * values + left + own_column;
            store_transposed(stage.values, own_column / 8, to, values, own.n, columns, packed_x);
        }
        finish_product<0>(state, packed);
    }
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        const u32 v = row + i % 4 / 2 * 8, c = i / 4 * 8 + column + i % 2;
        if (last && c < width && v < values) last[of_head + u64(c) * values + v] = state[i];
    }
}

KERNEL __launch_bounds__(2 * STRIP, 1)
    OF_HALF(outputs)(const Half *__restrict__ qkv_blc, const Half *__restrict__ solved,
                     const Half *__restrict__ pairs, const float *__restrict__ scales,
                     const float *__restrict__ first, float *__restrict__ last, Half *__restrict__ out_blc,
                     SIZES) {
    advance<true>(qkv_blc, solved, pairs, scales, first, last, out_blc, nullptr, nullptr, SIZES_OF);
}

KERNEL __launch_bounds__(2 * STRIP, 1)
    OF_HALF(states)(const Half *__restrict__ qkv_blc, const Half *__restrict__ solved,
                    const float *__restrict__ scales, const float *__restrict__ first, Half *__restrict__ x,
                    Half *__restrict__ states, SIZES) {
    advance<false>(qkv_blc, solved, nullptr, scales, first, nullptr, nullptr, x, states, SIZES_OF);
}

#endif
