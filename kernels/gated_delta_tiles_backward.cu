// The gated delta rule in half precision on tensor cores, backward, after `prepare` and `states` of the
// forward family.
//
// `retreat` follows the chunks from the last to the first. With the gradient of the state after a chunk, the
// gradients of the corrections times their rates are u = pairs^T * dy + rate * keys * dstate, and those of
// the corrections, which are those of the values, dx = solved^T * u. As in the forward pass, a warp has 16
// columns of values, and the transposed gradient of the state in its registers.
//
// `gradients` completes each chunk: with the gradients of the pairs, dy * x^T and dx * x^T, it computes those
// of queries, keys, rates and decays, in two groups of four warps that have half of the columns each. A block
// lives for the whole launch, so that copies for the next chunk run ahead.
//
// Launch: retreat: 2 threads for each column of a strip, grid [strips, value heads, batch]; gradients:
// GRADIENT_THREADS threads, a block for each multiprocessor. Floor: operands and results once, and states.
//
// Shapes: as in gated_delta_tiles.cu; dqkv and dy as qkv and the output. Letters as in CONTRIBUTING.md.
#include "gated_delta_tiles.cuh"

#if __CUDA_ARCH__ >= 800

// Bytes of the operands of a chunk in shared memory.
#define RETREAT_STAGE (2 * TILE + STRIP_TILE + 2 * PANEL + 4 * CHUNK * 4)

// Addresses of the operands of a chunk in shared memory.
struct Stage {
    u32 keys, queries, dy, solved, pairs, scales;
    __device__ __forceinline__ explicit Stage(u32 start)
        : keys(start),
          queries(keys + TILE),
          dy(queries + TILE),
          solved(dy + STRIP_TILE),
          pairs(solved + PANEL),
          scales(pairs + PANEL) {}
};

KERNEL __launch_bounds__(2 * STRIP, 1)
    OF_HALF(retreat)(const Half *__restrict__ qkv_blc, const Half *__restrict__ solved,
                     const Half *__restrict__ pairs, const float *__restrict__ scales,
                     const Half *__restrict__ dy_blc, Half *__restrict__ dqkv_blc, Half *__restrict__ dstates,
                     const float *__restrict__ dlast, float *__restrict__ dfirst, SIZES) {
    const Sizes sizes = SIZES_OF;
    const u32 strip = blockDim.x / 2, left = blockIdx.x * strip, head = blockIdx.y, batch = blockIdx.z;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 start = shared_address(shared_memory), stages = (start + 1023) & ~1023u;
    const Half *queries_blc = qkv_blc + head / (value / key) * width;
    // The columns of values and the element of a state that a warp and a thread begin with.
    const u32 own_column = warp * 16, row = left + own_column + lane / 4, column = lane % 4 * 2;
    const u64 of_head = (u64(batch) * value + head) * sizes.state(), dy_stride = u64(value) * values;
    const auto prefetch = [&](u32 chunk) {
        if (chunk < chunks) {
            const Chunk own(sizes, chunk, head, batch, nullptr);
            const Stage stage(stages + chunk % 2 * RETREAT_STAGE);
            const u64 stride = sizes.packed(), line = own.row(0) * stride, index = index_chunk(own);
            const u64 square = index * CHUNK * CHUNK;
            load_tile(stage.keys, queries_blc + line + key * width, stride, own.n, width);
            load_strip(stage.dy, dy_blc + own.row(0) * dy_stride + head * values + left, dy_stride, own.n,
                       values - left);
            load_pairs(stage.pairs, pairs + square);
            load_pairs(stage.solved, solved + square);
            load_words(stage.scales, scales + index * SCALES * CHUNK, 4 * CHUNK);
            load_tile(stage.queries, queries_blc + line, stride, own.n, width);
        }
        commit_copies();
    };
    for (u32 chunk = 0; chunk < 2; chunk++) {
        clear_pairs(Stage(stages + chunk * RETREAT_STAGE).solved);
        clear_pairs(Stage(stages + chunk * RETREAT_STAGE).pairs);
    }
    prefetch(chunks - 1);
    float dstate[WIDTH / 2];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        const u32 v = row + i % 4 / 2 * 8, c = i / 4 * 8 + column + i % 2;
        dstate[i] = dlast && c < width && v < values ? dlast[of_head + u64(c) * values + v] : 0.0f;
    }
    for (u32 chunk = chunks; chunk-- > 0;) {
        finish_copies<0>();
        const Chunk own(sizes, chunk, head, batch, nullptr);
        const Stage stage(stages + chunk % 2 * RETREAT_STAGE);
        const float *numbers = reinterpret_cast<const float *>(shared_memory + (stage.scales - start));
        store_rows<WIDTH / 8>(dstates + index_chunk(own) * values * WIDTH, WIDTH, row, values, WIDTH, dstate);
        float u_vt[CHUNK / 2], dx_vt[CHUNK / 2];
        u32 packed[TOKEN_STEPS][4], packed_dy[TOKEN_STEPS][4];
        left_transposed(packed_dy, stage.dy, own_column / 8);
        const float kept = numbers[SINCE * CHUNK + own.n - 1];
        {
            u32 packed_state[KEY_STEPS][4];
            pack<WIDTH / 8>(packed_state, dstate);
#pragma unroll
            for (int i = 0; i < WIDTH / 2; i++) dstate[i] *= kept;
            times_transposed<KEY_STEPS, CHUNK / 8, true>(u_vt, packed_state, stage.keys);
            // All threads are beyond the chunk after this one, whose memory these copies take. None before
            // the first: an index beyond all.
            prefetch(chunk - 1);
            times<TOKEN_STEPS, CHUNK / 8, true>(dx_vt, packed_dy, stage.pairs);
            finish_product<0>(u_vt, packed_state);
        }
        finish_product<0>(dx_vt, packed_dy);
        scale_columns<CHUNK / 8>(u_vt, numbers + KEY_UNTIL * CHUNK);
#pragma unroll
        for (int i = 0; i < CHUNK / 2; i++) u_vt[i] += dx_vt[i];
        pack<CHUNK / 8>(packed, u_vt);
        times<TOKEN_STEPS, CHUNK / 8, true>(dx_vt, packed, stage.solved);
        {
            float dy_vt[CHUNK / 2];
            unpack<CHUNK / 8>(dy_vt, packed_dy);
            scale_columns<CHUNK / 8>(dy_vt, numbers + QUERY_SINCE * CHUNK);
            pack<CHUNK / 8>(packed_dy, dy_vt);
        }
        times<TOKEN_STEPS, WIDTH / 8>(dstate, packed_dy, stage.queries);
        finish_product<1>(dx_vt, packed);
        u32 packed_dx[TOKEN_STEPS][4];
        pack<CHUNK / 8>(packed_dx, dx_vt);
        scale_columns<CHUNK / 8>(dx_vt, numbers + KEY_SINCE * CHUNK);
#pragma unroll
        for (int i = 0; i < CHUNK / 2; i++) dx_vt[i] = -dx_vt[i];
        pack<CHUNK / 8>(packed, dx_vt);
        finish_product<0>(dstate, packed_dy);
        times<TOKEN_STEPS, WIDTH / 8>(dstate, packed, stage.keys);
        const u32 columns = values > left + own_column ? values - left - own_column : 0;
        Half *dvalues = dqkv_blc + own.row(0) * sizes.packed() + 2 * key * width + head * values + left;
        store_transposed(stage.dy, own_column / 8, dvalues + own_column, sizes.packed(), own.n, columns,
                         packed_dx);
        finish_product<0>(dstate, packed);
    }
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        const u32 v = row + i % 4 / 2 * 8, c = i / 4 * 8 + column + i % 2;
        if (dfirst && c < width && v < values) dfirst[of_head + u64(c) * values + v] = dstate[i];
    }
}

// Columns of keys that a group of four warps has.
#define GROUP_COLUMNS (WIDTH / 2)
#define PIECE_SCALES (SCALES - SINCE)  // kinds of numbers, from SINCE on
#define PIECE_STAGE ((3 * PANEL + 2 * TILE + PIECE_SCALES * CHUNK * 4 + 1023) / 1024 * 1024)

// Addresses of the operands of a piece in shared memory.
struct PieceStage {
    u32 x, dx, dy, state, dstate, scales;
    __device__ __forceinline__ explicit PieceStage(u32 start)
        : x(start),
          dx(x + PANEL),
          dy(dx + PANEL),
          state(dy + PANEL),
          dstate(state + TILE),
          scales(dstate + TILE) {}
};

// Numbers of a block's tokens. Products of rows are by group of columns.
struct Numbers {
    float along_queries[CHUNK], along_keys[CHUNK];
    // Products of a token's rows: query * dquery, key * the gradient from later and from earlier tokens, and
    // key * what the latter takes from the state.
    float products[2][4][CHUNK];
    float terms[CHUNK], partial[GRADIENT_THREADS / WARP];
};

// A piece of the values of a value head's chunk: what a block copies at once.
struct Item {
    u32 job, member, piece;
    __device__ __forceinline__ Item next(u32 members, u32 pieces) const {
        if (piece + 1 < pieces) return Item{job, member, piece + 1};
        if (member + 1 < members) return Item{job, member + 1, 0};
        return Item{job + gridDim.x, 0, 0};
    }
};

KERNEL __launch_bounds__(GRADIENT_THREADS, 1)
    OF_HALF(gradients)(const Half *__restrict__ qkv_blc, const float *__restrict__ scales,
                       const Half *__restrict__ x, const Half *__restrict__ states,
                       const Half *__restrict__ dstates, const Half *__restrict__ dy_blc, Half *dqkv_blc,
                       float *__restrict__ drate_blh, float *__restrict__ ddecay_blh,
                       const u32 *__restrict__ documents_bl, SIZES, u32 jobs) {
    __shared__ Numbers numbers;
    const Sizes sizes = SIZES_OF;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = warp / 4, row = warp % 4 * 16;
    const u32 members = value / key, pieces = (values + VALUE_PIECE - 1) / VALUE_PIECE;
    const u32 first_chunk = group * GROUP_COLUMNS / 8;
    const u32 start = shared_address(shared_memory), key_tiles = (start + 1023) & ~1023u;
    const u32 stages = key_tiles + 4 * TILE;
    // Gradients of pairs of queries and keys, then of keys, as rows and as columns of the left operand.
    const u32 pair_tiles = stages + 2 * PIECE_STAGE;
    const u64 stride = sizes.packed(), dy_stride = u64(value) * values;
    const auto locate = [&](u32 job, u32 member) {
        const u32 key_head = job / chunks % key;
        return Chunk(sizes, job % chunks, key_head * members + member, job / chunks / key, documents_bl);
    };
    // Starts the copies of an item, with the queries and keys of a chunk that begins.
    const auto prefetch = [&](const Item &item, u32 item_number, u32 job_number) {
        if (item.job < jobs) {
            const u32 left = item.piece * VALUE_PIECE, columns = values - left;
            const Chunk own = locate(item.job, item.member);
            const PieceStage stage(stages + item_number % 2 * PIECE_STAGE);
            if (item.member == 0 && item.piece == 0) {
                const u32 key_tile = key_tiles + job_number % 2 * 2 * TILE;
                const Half *queries = qkv_blc + own.row(0) * stride + own.head / members * width;
                copy_rows<WIDTH, GRADIENT_THREADS>(key_tile, queries + key * width, stride, own.n, width);
                copy_rows<WIDTH, GRADIENT_THREADS>(key_tile + TILE, queries, stride, own.n, width);
            }
            const u32 column = own.head * values + left;
            copy_rows<VALUE_PIECE, GRADIENT_THREADS>(stage.x, x + own.value_row(0) * values + left, values,
                                                     own.n, columns);
            copy_rows<VALUE_PIECE, GRADIENT_THREADS>(
                stage.dx, dqkv_blc + own.row(0) * stride + 2 * key * width + column, stride, own.n, columns);
            copy_rows<VALUE_PIECE, GRADIENT_THREADS>(stage.dy, dy_blc + own.row(0) * dy_stride + column,
                                                     dy_stride, own.n, columns);
            const u64 state = (index_chunk(own) * values + left) * WIDTH;
            copy_rows<WIDTH, GRADIENT_THREADS>(stage.state, states + state, WIDTH, columns, WIDTH);
            copy_rows<WIDTH, GRADIENT_THREADS>(stage.dstate, dstates + state, WIDTH, columns, WIDTH);
            load_words(stage.scales, scales + (index_chunk(own) * SCALES + SINCE) * CHUNK,
                       PIECE_SCALES * CHUNK);
        }
        commit_copies();
    };
    Item item = {blockIdx.x, 0, 0};
    u32 item_number = 0;
    const float *kinds = nullptr;
    const auto numbers_of = [&](u32 kind) { return kinds + (kind - SINCE) * CHUNK; };
    prefetch(item, 0, 0);
    for (u32 job_number = 0; item.job < jobs; job_number++) {
        const u32 job = item.job;
        const u32 key_tile = key_tiles + job_number % 2 * 2 * TILE, query_tile = key_tile + TILE;
        const Chunk key_chunk = locate(job, 0);
        if (threadIdx.x < CHUNK) numbers.along_queries[threadIdx.x] = numbers.along_keys[threadIdx.x] = 0.0f;
        float all_dq[GROUP_COLUMNS / 2], all_dk[GROUP_COLUMNS / 2];
        clear(all_dq);
        clear(all_dk);
        for (u32 member = 0; member < members; member++) {
            const Chunk own = locate(job, member);
            float dq[GROUP_COLUMNS / 2], later[GROUP_COLUMNS / 2], earlier[GROUP_COLUMNS / 2],
                pairs[CHUNK / 2];
            float along_states = 0.0f;
            clear(dq);
            clear(later);
            clear(earlier);
            clear(pairs);
            for (u32 piece = 0; piece < pieces; piece++) {
                const PieceStage stage(stages + item_number % 2 * PIECE_STAGE);
                item = item.next(members, pieces);
                item_number++;
                finish_copies<0>();
                // All threads are beyond the item before this one, whose memory these copies take.
                prefetch(item, item_number, job_number + 1);
                kinds = reinterpret_cast<const float *>(shared_memory + (stage.scales - start));
                u32 a[TOKEN_STEPS][4];
                left(a, stage.dy, row);
                times<TOKEN_STEPS, GROUP_COLUMNS / 8>(dq, a, stage.state, first_chunk);
                if (group == 0) times_transposed<TOKEN_STEPS, CHUNK / 8>(pairs, a, stage.x);
                finish_product<0>(pairs, a);
                finish_product<0>(dq, a);
                left(a, stage.dx, row);
                times<TOKEN_STEPS, GROUP_COLUMNS / 8>(later, a, stage.state, first_chunk);
                if (group == 1) times_transposed<TOKEN_STEPS, CHUNK / 8>(pairs, a, stage.x);
                finish_product<0>(pairs, a);
                finish_product<0>(later, a);
                left(a, stage.x, row);
                times<TOKEN_STEPS, GROUP_COLUMNS / 8>(earlier, a, stage.dstate, first_chunk);
                along_states =
                    multiply_tiles<TILE, GRADIENT_THREADS>(stage.state, stage.dstate, along_states);
                finish_product<0>(earlier, a);
            }
            along_states = warp_sum(along_states);
            if (lane == 0) numbers.partial[warp] = along_states;
            // What rows take from states, and the gradients of pairs.
            float(&own_products)[4][CHUNK] = numbers.products[group];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 t = row + lane / 4 + half * 8;
                const float since = numbers_of(SINCE)[t], until = numbers_of(UNTIL)[t];
#pragma unroll
                for (int i = half * 2; i < GROUP_COLUMNS / 2; i += 4)
#pragma unroll
                    for (int j = i; j < i + 2; j++) dq[j] *= since, later[j] *= -since, earlier[j] *= until;
                const float product = multiply_rows(key_tile, t, first_chunk, half, earlier);
                if (lane % 4 == 0) own_products[3][t] = product;
            }
            const u32 as_rows = pair_tiles + group * 2 * PANEL, as_columns = as_rows + PANEL;
            int first_seen[2];
            float sum_at[2], norm_at[2];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 t = row + lane / 4 + half * 8;
                first_seen[half] = t < own.n ? own.first_seen(t) : CHUNK;
                sum_at[half] = numbers_of(SUM)[t];
                norm_at[half] = numbers_of(group == 0 ? QUERY : KEY)[t];
            }
#pragma unroll
            for (u32 part = 0; part < CHUNK / 8; part++) {
                const u32 first = part * 8 + lane % 4 * 2;
                const Vector<float, 2> sum = load<2>(numbers_of(SUM) + first);
                const Vector<float, 2> rate = load<2>(numbers_of(RATE) + first);
                const Vector<float, 2> norm = load<2>(numbers_of(KEY) + first);
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 t = row + lane / 4 + half * 8;
                    float rated[2], unrated[2];
#pragma unroll
                    for (u32 j = 0; j < 2; j++) {
                        const u32 s = first + j;
                        const float pair = pairs[part * 4 + half * 2 + j];
                        const bool seen = s < t + (group == 0) && int(s) >= first_seen[half];
                        const float between = decay_between(sum.at[j], sum_at[half]);
                        const float gradient = seen ? (group == 0 ? pair : -pair) * between : 0.0f;
                        rated[j] = gradient * (rate.at[j] * norm.at[j]);
                        unrated[j] = gradient * norm_at[half];
                    }
                    const u32 offset = at(t, part) + lane % 4 * 4;
                    store_shared(as_rows + offset, pack_half(rated[0], rated[1]));
                    store_shared(as_columns + offset, pack_half(unrated[0], unrated[1]));
                }
            }
            finish_stores();
            u32 a[TOKEN_STEPS][4];
            left(a, pair_tiles, row);
            times<TOKEN_STEPS, GROUP_COLUMNS / 8>(dq, a, key_tile, first_chunk);
            finish_product<0>(dq, a);
            left(a, pair_tiles + 2 * PANEL, row);
            times<TOKEN_STEPS, GROUP_COLUMNS / 8>(later, a, key_tile, first_chunk);
            finish_product<0>(later, a);
            left_transposed(a, pair_tiles + PANEL, row / 8);
            times<TOKEN_STEPS, GROUP_COLUMNS / 8>(earlier, a, query_tile, first_chunk);
            finish_product<0>(earlier, a);
            left_transposed(a, pair_tiles + 3 * PANEL, row / 8);
            times<TOKEN_STEPS, GROUP_COLUMNS / 8>(earlier, a, key_tile, first_chunk);
            finish_product<0>(earlier, a);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 t = row + lane / 4 + half * 8;
                const float products[3] = {multiply_rows(query_tile, t, first_chunk, half, dq),
                                           multiply_rows(key_tile, t, first_chunk, half, later),
                                           multiply_rows(key_tile, t, first_chunk, half, earlier)};
                if (lane % 4 == 0) {
#pragma unroll
                    for (int i = 0; i < 3; i++) own_products[i][t] = products[i];
                }
                const float rate = numbers_of(RATE)[t];
#pragma unroll
                for (int i = half * 2; i < GROUP_COLUMNS / 2; i += 4)
#pragma unroll
                    for (int j = i; j < i + 2; j++) {
                        all_dq[j] += dq[j];
                        all_dk[j] += fmaf(rate, earlier[j], later[j]);
                    }
            }
            __syncthreads();
            if (threadIdx.x < CHUNK) {
                const u32 t = threadIdx.x;
                float products[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    products[i] = numbers.products[0][i][t] + numbers.products[1][i][t];
                const float norm = numbers_of(KEY)[t], rate = numbers_of(RATE)[t];
                const float along_key = norm * (products[1] - rate * products[2]);
                numbers.terms[t] = fmaf(numbers_of(QUERY)[t], products[0], along_key);
                numbers.products[0][3][t] = norm * rate * products[3];
                numbers.along_queries[t] += products[0];
                numbers.along_keys[t] += fmaf(rate, products[2], products[1]);
                if (t < own.n) drate_blh[own.row(t) * value + own.head] = norm * products[2];
            }
            __syncthreads();
            if (warp == 0) {
                float end = 0.0f;
#pragma unroll
                for (int i = 0; i < GRADIENT_THREADS / WARP; i++) end += numbers.partial[i];
                end *= numbers_of(SINCE)[own.n - 1];
                end += warp_sum(numbers.products[0][3][lane] + numbers.products[0][3][lane + WARP]);
                sum_back(
                    own.n, [&](u32 t) { return numbers.terms[t]; }, end, [&](u32 t) { return own.begins(t); },
                    [&](u32 t, float sum) { ddecay_blh[own.row(t) * value + own.head] = sum; });
            }
            __syncthreads();
        }
        // Through the norms of queries and keys.
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 t = row + lane / 4 + half * 8;
            const float query = numbers_of(QUERY)[t], norm = numbers_of(KEY)[t];
            const float query_along = numbers.along_queries[t] * query * query * float(width);
            const float key_along = numbers.along_keys[t] * norm * norm;
#pragma unroll
            for (int n = 0; n < GROUP_COLUMNS / 8; n++) {
                const u32 offset = at(t, first_chunk + n) + lane % 4 * 4;
                const u32 query_pair = load_shared_word(query_tile + offset);
                const u32 key_pair = load_shared_word(key_tile + offset);
                const float of_query[2] = {Word<Half>::first(query_pair), Word<Half>::last(query_pair)};
                const float of_key[2] = {Word<Half>::first(key_pair), Word<Half>::last(key_pair)};
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int i = n * 4 + half * 2 + j;
                    all_dq[i] = query * (all_dq[i] - of_query[j] * query_along);
                    all_dk[i] = norm * (all_dk[i] - of_key[j] * key_along);
                }
            }
        }
        const u32 columns = width > first_chunk * 8 ? width - first_chunk * 8 : 0;
        Half *to = dqkv_blc + key_chunk.row(0) * stride + key_chunk.head / members * width + first_chunk * 8;
        store_rows<GROUP_COLUMNS / 8>(to, stride, row + lane / 4, key_chunk.n, columns, all_dq);
        store_rows<GROUP_COLUMNS / 8>(to + key * width, stride, row + lane / 4, key_chunk.n, columns, all_dk);
        __syncthreads();
    }
}

#endif
