// Scans of selective state spaces in half precision on tensor cores, backward, after `scales`, `pairs` and
// `states` of the forward family.
//
// `retreat` follows the chunks from the last to the first. With the gradient of the state after a chunk, the
// gradients of x are dx = pairs^T * dy + time step * decay to the end * B * dstate + D * dy. As in the
// forward pass, a warp has 16 columns of a head, and the transposed gradient of the state in its registers.
// `retreat_state` computes that of the first state only.
//
// `gradients` completes each chunk: with the gradients of the pairs, dy * x^T, it computes those of B and C,
// as sums over the heads of a group in their order, and those of the time steps, in two groups of four warps
// that have half of the columns each. The gradient of a decay's logarithm is C * dC - B * dB, summed from the
// chunk's end back. A block lives for the whole launch, so that copies for the next chunk run ahead.
//
// Launch: retreat: 2 threads for each column of a strip, grid [strips, heads, batch]; gradients:
// GRADIENT_THREADS threads, a block for each multiprocessor. Floor: operands and results once, and states.
//
// Shapes: as in state_space_tiles.cu; dxbc and dy as the operands and the output; weights [b][chunk][a_log,
// d, bias][head]. Letters as in CONTRIBUTING.md.
#include "state_space_tiles.cuh"

#if __CUDA_ARCH__ >= 800

// Addresses of the operands of a chunk in shared memory.
struct Stage {
    u32 queries, dy, scales, keys, pairs;
    __device__ __forceinline__ Stage(u32 start, u32 strip)
        : queries(start),
          dy(queries + TILE),
          scales(dy + strip / 64 * PANEL),
          keys(scales + SCALE_BYTES),
          pairs(keys + TILE) {}
};

// With INPUTS, also computes the gradients of x and stores those of the states after chunks.
template <bool INPUTS>
__device__ __forceinline__ void go_back(const Half *xbc_blc, const Half *pairs, const float *scales,
                                        const Half *d, const Half *dy_blc, Half *dxbc_blc, Half *dstates,
                                        const float *dlast, float *dfirst, u32 slots, const Sizes &sizes) {
    const u32 strip = blockDim.x / 2, left = blockIdx.x * strip, head = blockIdx.y, batch = blockIdx.z;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 width = sizes.width, values = sizes.values, group = head / (sizes.value / sizes.key);
    const u32 start = shared_address(shared_memory), stages = (start + 1023) & ~1023u;
    // The columns of a head and the row of the state that a warp and a thread begin with.
    const u32 own_column = warp * 16, row = left + own_column + lane / 4;
    const u32 columns = values > left + own_column ? values - left - own_column : 0;
    const u64 of_head = (u64(batch) * sizes.value + head) * sizes.state();
    const u64 stride = sizes.packed(), dy_stride = u64(sizes.value) * values;
    const auto locate = [&](u32 chunk) {
        const u32 bytes = TILE + strip / 64 * PANEL + SCALE_BYTES + (INPUTS ? TILE + PANEL : 0);
        return Stage(stages + chunk % 2 * bytes, strip);
    };
    const auto prefetch = [&](u32 chunk) {
        if (chunk < sizes.chunks) {
            const Chunk own(sizes, chunk, head, batch, nullptr);
            const Stage stage = locate(chunk);
            const u64 line = own.row(0) * stride, index = index_chunk(own);
            if (INPUTS) {
                load_tile(stage.keys, xbc_blc + line + key_column(sizes, group), stride, own.n, width);
                load_pairs(stage.pairs, pairs + index * CHUNK * CHUNK);
            }
            load_strip(stage.dy, dy_blc + own.row(0) * dy_stride + head * values + left, dy_stride, own.n,
                       values - left);
            load_words(stage.scales, scales + index * SCALES * CHUNK, SCALES * CHUNK);
            load_tile(stage.queries, xbc_blc + line + query_column(sizes, group), stride, own.n, width);
        }
        commit_copies();
    };
    if (INPUTS) {
        clear_pairs(locate(0).pairs);
        clear_pairs(locate(1).pairs);
    }
    prefetch(sizes.chunks - 1);
    const float skip = INPUTS ? to_f32(d[head]) : 0.0f;
    State dstate;
    load_state(dstate, dlast && batch < slots ? dlast + of_head : nullptr, row, sizes);
    for (u32 chunk = sizes.chunks; chunk-- > 0;) {
        finish_copies<0>();
        const Chunk own(sizes, chunk, head, batch, nullptr);
        const Stage stage = locate(chunk);
        const float *numbers = reinterpret_cast<const float *>(shared_memory + (stage.scales - start));
        float dy_vt[CHUNK / 2];
        u32 packed_dy[TOKEN_STEPS][4], packed_dx[TOKEN_STEPS][4];
        // All threads are beyond the chunk after this one, whose memory the next copies take. None before the
        // first: an index beyond all.
        const auto meanwhile = [&]() {
            prefetch(chunk - 1);
            left_transposed(packed_dy, stage.dy, own_column / 8);
            unpack<CHUNK / 8>(dy_vt, packed_dy);
        };
        if (INPUTS) {
            float dx_vt[CHUNK / 2];
            store_rounded(dstates + index_chunk(own) * values * WIDTH, dstate, row, sizes);
            read_state(dx_vt, dstate, stage.keys, meanwhile);
            scale_columns<CHUNK / 8>(dx_vt, numbers + UNTIL * CHUNK);
#pragma unroll
            for (int i = 0; i < CHUNK / 2; i++) dx_vt[i] = fmaf(skip, dy_vt[i], dx_vt[i]);
            times<TOKEN_STEPS, CHUNK / 8>(dx_vt, packed_dy, stage.pairs);
            finish_product<0>(dx_vt, packed_dy);
            pack<CHUNK / 8>(packed_dx, dx_vt);
        } else {
            meanwhile();
        }
        scale_columns<CHUNK / 8>(dy_vt, numbers + SINCE * CHUNK);
        pack<CHUNK / 8>(packed_dy, dy_vt);
        change_state(dstate, numbers[SINCE * CHUNK + own.n - 1], packed_dy, stage.queries);
        if (INPUTS) {
            Half *to = dxbc_blc + own.row(0) * stride + head * values + left + own_column;
            store_transposed(stage.dy, own_column / 8, to, stride, own.n, columns, packed_dx);
        }
        finish_state(dstate, packed_dy);
    }
    store_state(dfirst && batch < slots ? dfirst + of_head : nullptr, dstate, row, sizes);
}

KERNEL __launch_bounds__(2 * STRIP, 1)
    OF_HALF(retreat)(const Half *__restrict__ xbc_blc, const Half *__restrict__ pairs,
                     const float *__restrict__ scales, const Half *__restrict__ d,
                     const Half *__restrict__ dy_blc, Half *__restrict__ dxbc_blc, Half *__restrict__ dstates,
                     const float *__restrict__ dlast, u32 slots, SIZES) {
    go_back<true>(xbc_blc, pairs, scales, d, dy_blc, dxbc_blc, dstates, dlast, nullptr, slots, SIZES_OF);
}

KERNEL __launch_bounds__(2 * STRIP, 1)
    OF_HALF(retreat_state)(const Half *__restrict__ xbc_blc, const float *__restrict__ scales,
                           const Half *__restrict__ dy_blc, float *dstate, u32 slots, SIZES) {
    go_back<false>(xbc_blc, nullptr, scales, nullptr, dy_blc, nullptr, nullptr, dstate, dstate, slots,
                   SIZES_OF);
}

// Columns of B and C that a group of four warps has.
#define GROUP_COLUMNS (SLICE / 2)
#define PIECE_STAGE (2 * PANEL + 2 * SLICE_TILE + SCALE_BYTES)

// Addresses of the operands of a piece in shared memory.
struct PieceStage {
    u32 x, dy, state, dstate, scales;
    __device__ __forceinline__ explicit PieceStage(u32 start)
        : x(start),
          dy(x + PANEL),
          state(dy + PANEL),
          dstate(state + SLICE_TILE),
          scales(dstate + SLICE_TILE) {}
};

// Products of a token's rows, in the order of the workspace.
enum Product {
    OF_QUERY,  // C * dC
    OF_KEY,    // B * dB
    OF_END,    // B * what dB takes from the gradient of the state; the first token's includes decay * state *
               // dstate
    OF_SKIP,   // x * dy
    PRODUCTS
};

// Products of a block's tokens by group of columns, and parts of state * dstate by warp.
struct Numbers {
    float products[2][OF_SKIP][CHUNK], skips[CHUNK], along_states[GRADIENT_THREADS / WARP];
};

// A slice of the columns of B and C of a group's chunk, and PART_HEADS of the group's heads.
struct Job {
    u32 slice, part, chunk, group, batch, members;
    __device__ __forceinline__ Job(u32 job, const Sizes &sizes, u32 slices, u32 parts) {
        slice = job % slices, job /= slices;
        part = job % parts, job /= parts;
        chunk = job % sizes.chunks, job /= sizes.chunks;
        group = job % sizes.key, batch = job / sizes.key;
        members = min(u32(PART_HEADS), sizes.value / sizes.key - part * PART_HEADS);
    }
    __device__ __forceinline__ Chunk locate(const Sizes &sizes, u32 member, const u32 *documents) const {
        const u32 head = group * (sizes.value / sizes.key) + part * PART_HEADS + member;
        return Chunk(sizes, chunk, head, batch, documents);
    }
};

// A piece of the columns of a head's chunk: what a block copies at once.
struct Item {
    u32 job, member, piece;
    __device__ __forceinline__ Item next(u32 members, u32 pieces) const {
        if (piece + 1 < pieces) return Item{job, member, piece + 1};
        if (member + 1 < members) return Item{job, member + 1, 0};
        return Item{job + gridDim.x, 0, 0};
    }
};

// Stores f32 rows row and row + 8 of a warp's accumulators, the columns before `columns`.
template <int N>
__device__ __forceinline__ void store_sums(float *to, u64 stride, u32 row, u32 rows, u32 columns,
                                           const float (&acc)[N]) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < N / 4; n++) {
            const u32 column = n * 8 + threadIdx.x % 4 * 2, line = row + half * 8;
            if (line < rows && column < columns)
                store<2>(to + line * stride + column,
                         Vector<float, 2>{{acc[n * 4 + half * 2], acc[n * 4 + half * 2 + 1]}});
        }
}

KERNEL __launch_bounds__(GRADIENT_THREADS, 1)
    OF_HALF(gradients)(const Half *__restrict__ xbc_blc, const float *__restrict__ scales,
                       const Half *__restrict__ states, const Half *__restrict__ dstates,
                       const Half *__restrict__ dy_blc, const u32 *__restrict__ documents_bl,
                       Half *__restrict__ dxbc_blc, float *__restrict__ sums, float *__restrict__ products,
                       SIZES, u32 parts, u32 jobs) {
    __shared__ Numbers numbers;
    const Sizes sizes = SIZES_OF;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = warp / 4, row = warp % 4 * 16;
    const u32 pieces = (values + VALUE_PIECE - 1) / VALUE_PIECE, slices = (width + SLICE - 1) / SLICE;
    const u32 first_chunk = group * GROUP_COLUMNS / 8;
    const u32 start = shared_address(shared_memory), key_tiles = (start + 1023) & ~1023u;
    const u32 stages = key_tiles + 4 * SLICE_TILE, pair_tile = stages + 2 * PIECE_STAGE;
    const u64 stride = sizes.packed(), dy_stride = u64(value) * values;
    // Starts the copies of an item, with B and C of a chunk that begins.
    const auto prefetch = [&](const Item &item, u32 item_number, u32 job_number) {
        if (item.job < jobs) {
            const u32 left = item.piece * VALUE_PIECE, columns = values - left;
            const u32 rows = min(columns, u32(VALUE_PIECE));
            const Job job(item.job, sizes, slices, parts);
            const Chunk own = job.locate(sizes, item.member, nullptr);
            const PieceStage stage(stages + item_number % 2 * PIECE_STAGE);
            const Half *line = xbc_blc + own.row(0) * stride;
            const u64 index = index_chunk(own), state = (index * values + left) * WIDTH + job.slice * SLICE;
            copy_rows<VALUE_PIECE, GRADIENT_THREADS>(
                stage.dy, dy_blc + own.row(0) * dy_stride + own.head * values + left, dy_stride, own.n,
                columns);
            copy_rows<VALUE_PIECE, GRADIENT_THREADS>(stage.x, line + own.head * values + left, stride, own.n,
                                                     columns);
            copy_rows<SLICE, GRADIENT_THREADS>(stage.state, states + state, WIDTH, rows, SLICE);
            copy_rows<SLICE, GRADIENT_THREADS>(stage.dstate, dstates + state, WIDTH, rows, SLICE);
            load_words(stage.scales, scales + index * SCALES * CHUNK, SCALES * CHUNK);
            if (item.member == 0 && item.piece == 0) {
                const u32 key_tile = key_tiles + job_number % 2 * 2 * SLICE_TILE;
                const u32 first = job.slice * SLICE;
                copy_rows<SLICE, GRADIENT_THREADS>(key_tile, line + key_column(sizes, job.group) + first,
                                                   stride, own.n, width - first);
                copy_rows<SLICE, GRADIENT_THREADS>(key_tile + SLICE_TILE,
                                                   line + query_column(sizes, job.group) + first, stride,
                                                   own.n, width - first);
            }
        }
        commit_copies();
    };
    Item item = {blockIdx.x, 0, 0};
    u32 item_number = 0;
    prefetch(item, 0, 0);
    for (u32 job_number = 0; item.job < jobs; job_number++) {
        const Job job(item.job, sizes, slices, parts);
        const u32 key_tile = key_tiles + job_number % 2 * 2 * SLICE_TILE, query_tile = key_tile + SLICE_TILE;
        float all_queries[GROUP_COLUMNS / 2], all_keys[GROUP_COLUMNS / 2];
        clear(all_queries);
        clear(all_keys);
        for (u32 member = 0; member < job.members; member++) {
            const Chunk own = job.locate(sizes, member, documents_bl);
            const float *scales_of = nullptr;
            float dqueries[GROUP_COLUMNS / 2], dkeys[GROUP_COLUMNS / 2], pairs[CHUNK / 2];
            float along_states = 0.0f;
            clear(dqueries);
            clear(dkeys);
            clear(pairs);
            for (u32 piece = 0; piece < pieces; piece++) {
                const PieceStage stage(stages + item_number % 2 * PIECE_STAGE);
                item = item.next(job.members, pieces);
                item_number++;
                finish_copies<0>();
                // All threads are beyond the item before this one, whose memory these copies take.
                prefetch(item, item_number, job_number + 1);
                scales_of = reinterpret_cast<const float *>(shared_memory + (stage.scales - start));
                u32 a[TOKEN_STEPS][4], b[TOKEN_STEPS][4];
                left(a, stage.dy, row);
                left(b, stage.x, row);
                times<TOKEN_STEPS, GROUP_COLUMNS / 8>(dqueries, a, stage.state, first_chunk);
                times<TOKEN_STEPS, GROUP_COLUMNS / 8>(dkeys, b, stage.dstate, first_chunk);
                if (group == 0) times_transposed<TOKEN_STEPS, CHUNK / 8>(pairs, a, stage.x);
                along_states =
                    multiply_tiles<SLICE_TILE, GRADIENT_THREADS>(stage.state, stage.dstate, along_states);
                finish_product<0>(dkeys, b);
                finish_product<0>(dqueries, a);
                finish_product<0>(pairs, a);
            }
            along_states = warp_sum(along_states);
            if (lane == 0) numbers.along_states[warp] = along_states;
            float(&own_products)[OF_SKIP][CHUNK] = numbers.products[group];
            // What rows take from states, and the gradients of pairs.
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 t = row + lane / 4 + half * 8;
                const float since = scales_of[SINCE * CHUNK + t], until = scales_of[UNTIL * CHUNK + t];
#pragma unroll
                for (int i = half * 2; i < GROUP_COLUMNS / 2; i += 4)
#pragma unroll
                    for (int j = i; j < i + 2; j++) dqueries[j] *= since, dkeys[j] *= until;
                const float product = multiply_rows(key_tile, t, first_chunk, half, dkeys);
                if (lane % 4 == 0) own_products[OF_END][t] = product;
                if (group > 0) continue;
                const int first_seen = t < own.n ? own.first_seen(t) : CHUNK;
                const float sum_at = scales_of[SUM * CHUNK + t];
#pragma unroll
                for (u32 part = 0; part < CHUNK / 8; part++) {
                    const u32 first = part * 8 + lane % 4 * 2;
                    const Vector<float, 2> sum = load<2>(scales_of + SUM * CHUNK + first);
                    const Vector<float, 2> step = load<2>(scales_of + STEP * CHUNK + first);
                    float weighted[2];
#pragma unroll
                    for (u32 j = 0; j < 2; j++) {
                        const u32 s = first + j;
                        const float pair = pairs[part * 4 + half * 2 + j];
                        const bool seen = s <= t && int(s) >= first_seen;
                        weighted[j] = seen ? pair * (decay_between(sum.at[j], sum_at) * step.at[j]) : 0.0f;
                        if (s == t) numbers.skips[t] = pair;
                    }
                    store_shared(pair_tile + at(t, part) + lane % 4 * 4, pack_half(weighted[0], weighted[1]));
                }
            }
            finish_stores();
            u32 a[TOKEN_STEPS][4], b[TOKEN_STEPS][4];
            left(a, pair_tile, row);
            left_transposed(b, pair_tile, row / 8);
            times<TOKEN_STEPS, GROUP_COLUMNS / 8>(dqueries, a, key_tile, first_chunk);
            times<TOKEN_STEPS, GROUP_COLUMNS / 8>(dkeys, b, query_tile, first_chunk);
            const auto multiply = [&](Product kind, u32 tile, const float(&acc)[GROUP_COLUMNS / 2]) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const u32 t = row + lane / 4 + half * 8;
                    const float product = multiply_rows(tile, t, first_chunk, half, acc);
                    if (lane % 4 == 0) own_products[kind][t] = product;
                }
            };
            finish_product<1>(dqueries, a);
            multiply(OF_QUERY, query_tile, dqueries);
            finish_product<0>(dkeys, b);
            multiply(OF_KEY, key_tile, dkeys);
#pragma unroll
            for (int i = 0; i < GROUP_COLUMNS / 2; i++)
                all_queries[i] += dqueries[i], all_keys[i] += dkeys[i];
            __syncthreads();
            // All wait for these threads before the next products are stored.
            if (threadIdx.x < CHUNK) {
                const u32 t = threadIdx.x;
                float *to = products + (index_chunk(own) * slices + job.slice) * PRODUCTS * CHUNK + t;
                float kept = 0.0f;
#pragma unroll
                for (int i = 0; i < GRADIENT_THREADS / WARP; i++) kept += numbers.along_states[i];
                kept *= t == 0 ? scales_of[SINCE * CHUNK + own.n - 1] : 0.0f;
#pragma unroll
                for (int kind = 0; kind < OF_SKIP; kind++)
                    to[kind * CHUNK] = numbers.products[0][kind][t] + numbers.products[1][kind][t] +
                                       (kind == OF_END ? kept : 0.0f);
                to[OF_SKIP * CHUNK] = numbers.skips[t];
            }
        }
        const Chunk own = job.locate(sizes, 0, nullptr);
        const u32 first = job.slice * SLICE + first_chunk * 8, columns = width > first ? width - first : 0;
        if (parts == 1) {
            Half *to = dxbc_blc + own.row(0) * stride + first;
            store_rows<GROUP_COLUMNS / 8>(to + key_column(sizes, job.group), stride, row + lane / 4, own.n,
                                          columns, all_keys);
            store_rows<GROUP_COLUMNS / 8>(to + query_column(sizes, job.group), stride, row + lane / 4, own.n,
                                          columns, all_queries);
        } else {
            float *to = sums + ((own.row(0) * parts + job.part) * 2 * key + job.group) * width + first;
            const u64 sum_stride = u64(parts) * 2 * key * width;
            store_sums(to, sum_stride, row + lane / 4, own.n, columns, all_keys);
            store_sums(to + key * width, sum_stride, row + lane / 4, own.n, columns, all_queries);
        }
    }
}

// Adds the sums of the parts of groups' heads, in their order.
KERNEL __launch_bounds__(JOIN_THREADS)
    OF_HALF(join)(const float *__restrict__ sums, Half *__restrict__ dxbc_blc, u32 rows, u32 parts,
                  u32 columns, u32 stride) {
    const u64 index = (u64(blockIdx.x) * JOIN_THREADS + threadIdx.x) * 4;
    if (index >= u64(rows) * columns) return;
    const u64 row = index / columns;
    const u32 column = index % columns;
    const float *from = sums + row * parts * columns + column;
    Floats<4> sum = read<4>(from);
    for (u32 part = 1; part < parts; part++) {
        const Floats<4> next = read<4>(from + u64(part) * columns);
#pragma unroll
        for (int i = 0; i < 4; i++) sum.at[i] += next.at[i];
    }
    write<4>(dxbc_blc + row * stride + stride - columns + column, sum);
}

// The gradients of time steps and the parts of a chunk in those of weights, from the products of tokens.
KERNEL __launch_bounds__(SCALE_HEADS *WARP)
    OF_HALF(finish)(const float *__restrict__ products, const float *__restrict__ scales,
                    const Half *__restrict__ a_log, const u32 *__restrict__ documents_bl,
                    Half *__restrict__ ddt_blh, float *__restrict__ weights, SIZES, float low, float high) {
    const u32 head = blockIdx.y * SCALE_HEADS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (head >= value) return;
    const Chunk own(SIZES_OF, blockIdx.x, head, blockIdx.z, documents_bl);
    const u32 slices = (width + SLICE - 1) / SLICE;
    const float *numbers = scales + index_chunk(own) * SCALES * CHUNK;
    const float *first = products + index_chunk(own) * slices * PRODUCTS * CHUNK;
    const float a = -expf(to_f32(a_log[head]));
    const auto product = [&](Product kind, u32 t) {
        float sum = first[kind * CHUNK + t];
        for (u32 slice = 1; slice < slices; slice++) sum += first[(slice * PRODUCTS + kind) * CHUNK + t];
        return sum;
    };
    const float end = warp_sum(product(OF_END, lane) + product(OF_END, lane + WARP));
    float of_a = 0.0f, of_bias = 0.0f;
    sum_back(
        own.n, [&](u32 t) { return product(OF_QUERY, t) - product(OF_KEY, t); }, end,
        [&](u32 t) { return own.first_token(t) == own.start + t; },
        [&](u32 t, float later) {
            const float step = numbers[STEP * CHUNK + t];
            of_a = fmaf(step, later, of_a);
            // The derivative of softplus is 1 - exp(-softplus); limits let no gradient pass.
            const float direct = step > 0.0f ? product(OF_KEY, t) / step : 0.0f;
            const bool passes = step > low && step < high;
            const float gradient = passes ? fmaf(a, later, direct) * -expm1f(-step) : 0.0f;
            of_bias += gradient;
            ddt_blh[own.row(t) * value + head] = from_f32<Half>(gradient);
        });
    of_a = warp_sum(of_a);
    of_bias = warp_sum(of_bias);
    // Each slice has x * dy of all columns.
    const float of_d = warp_sum(first[OF_SKIP * CHUNK + lane] + first[OF_SKIP * CHUNK + lane + WARP]);
    if (lane > 0) return;
    float *to = weights + (u64(own.batch) * own.sizes.chunks + own.chunk) * 3 * value + head;
    to[0] = of_a * a;
    to[value] = of_d;
    to[2 * value] = of_bias;
}

#endif
