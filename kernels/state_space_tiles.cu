// Scans of selective state spaces in half precision on tensor cores, forward. The definition is in
// state_space_scan.cu.
//
// With pairs[t][s] = (C of t) * (B of s) * decay from s to t * time step of s, the outputs of a chunk are
// pairs * x + decay * C * state + D * x. Decays and time steps scale rows and columns of f32 sums, so that
// matmuls read B, C and x as they are.
//
// `scales` computes the numbers of tokens, and `pairs` the pairs of all chunks at once, from one matmul for
// the heads of a group that a block has. `outputs` then follows the chunks: a block has STRIP columns of a
// head, a warp 16 of them, whose state, transposed, stays in its registers. `states` does the same for the
// backward pass, and stores states instead of outputs.
//
// Launch: scales: SCALE_HEADS warps, grid [chunks, heads / SCALE_HEADS, batch]; pairs: PAIR_THREADS threads,
// grid [chunks, groups * blocks of PAIR_HEADS of a group's heads, batch]; others: 2 threads for each column
// of a strip, grid [strips, heads, batch]. Floor: operands and results once.
//
// Shapes: xbc_blc with the columns of x, B and C; scales [b][head][chunk][SCALES][CHUNK]; pairs
// [b][head][chunk][CHUNK][CHUNK]; states [b][head][chunk][values][WIDTH]. Letters as in CONTRIBUTING.md.
#include "state_space_steps.cuh"
#include "state_space_tiles.cuh"

#if __CUDA_ARCH__ >= 800

KERNEL __launch_bounds__(SCALE_HEADS *WARP)
    OF_HALF(scales)(const Half *__restrict__ dt_blh, const Half *__restrict__ a_log,
                    const Half *__restrict__ bias, const u32 *__restrict__ documents_bl,
                    float *__restrict__ scales, SIZES, float low, float high) {
    const u32 head = blockIdx.y * SCALE_HEADS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (head >= value) return;
    const Chunk own(SIZES_OF, blockIdx.x, head, blockIdx.z, documents_bl);
    const float a = -expf(to_f32(a_log[head])), shift = to_f32(bias[head]);
    float steps[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 t = 2 * lane + i;
        const float raw = t < own.n ? to_f32(dt_blh[own.row(t) * value + head]) : 0.0f;
        steps[i] = t < own.n ? limited(softplus(raw + shift), low, high) : 0.0f;
    }
    const Vector<float, 2> sums = sum_decays(steps[0] * a, steps[1] * a);
    // Tokens beyond the last have steps of 0.
    const float last = __shfl_sync(ALL_LANES, sums.at[1], WARP - 1);
    Vector<float, 2> since, until;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 t = 2 * lane + i;
        since.at[i] = t < own.n && own.carries(t) ? decay_between(0.0f, sums.at[i]) : 0.0f;
        until.at[i] = t < own.n && own.sees(own.n - 1, t) ? decay_between(sums.at[i], last) * steps[i] : 0.0f;
    }
    float *to = scales + index_chunk(own) * SCALES * CHUNK + 2 * lane;
    store<2>(to + SINCE * CHUNK, since);
    store<2>(to + UNTIL * CHUNK, until);
    store<2>(to + SUM * CHUNK, sums);
    store<2>(to + STEP * CHUNK, Vector<float, 2>{{steps[0], steps[1]}});
}

KERNEL __launch_bounds__(PAIR_THREADS, 4)
    OF_HALF(pairs)(const Half *__restrict__ xbc_blc, const float *__restrict__ scales,
                   const u32 *__restrict__ documents_bl, Half *__restrict__ pairs, SIZES) {
    const u32 members = value / key, parts = (members + PAIR_HEADS - 1) / PAIR_HEADS;
    const u32 group = blockIdx.y / parts, first_member = blockIdx.y % parts * PAIR_HEADS;
    const u32 last_member = min(members, first_member + PAIR_HEADS);
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x / WARP * 16;
    const u32 key_tile = (shared_address(shared_memory) + 1023) & ~1023u, query_tile = key_tile + TILE;
    const Sizes sizes = SIZES_OF;
    const Chunk group_chunk(sizes, blockIdx.x, group * members, blockIdx.z, documents_bl);
    const Half *from = xbc_blc + group_chunk.row(0) * sizes.packed();
    copy_tile<PAIR_THREADS>(key_tile, from + key_column(sizes, group), sizes.packed(), group_chunk.n, width);
    copy_tile<PAIR_THREADS>(query_tile, from + query_column(sizes, group), sizes.packed(), group_chunk.n,
                            width);
    commit_copies();
    int first_seen[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 t = row + lane / 4 + half * 8;
        first_seen[half] = t < group_chunk.n ? group_chunk.first_seen(t) : CHUNK;
    }
    finish_copies<0>();
    float scores[CHUNK / 2];
    clear(scores);
#pragma unroll
    for (u32 slice = 0; slice < SLICES; slice++) {
        u32 a[SLICE_STEPS][4];
        left(a, query_tile + slice * SLICE_TILE, row);
        times_transposed<SLICE_STEPS, CHUNK / 8>(scores, a, key_tile + slice * SLICE_TILE);
        finish_product<0>(scores, a);
    }
    for (u32 member = first_member; member < last_member; member++) {
        const Chunk own(sizes, blockIdx.x, group * members + member, blockIdx.z, documents_bl);
        const float *numbers = scales + index_chunk(own) * SCALES * CHUNK;
        float weighted[CHUNK / 2];
#pragma unroll
        for (u32 part = 0; part < CHUNK / 8; part++) {
            const u32 first = part * 8 + lane % 4 * 2;
            const Vector<float, 2> sum = load<2>(numbers + SUM * CHUNK + first);
            const Vector<float, 2> step = load<2>(numbers + STEP * CHUNK + first);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 t = row + lane / 4 + half * 8;
                const float sum_at = numbers[SUM * CHUNK + t];
#pragma unroll
                for (u32 j = 0; j < 2; j++) {
                    const u32 s = first + j, i = part * 4 + half * 2 + j;
                    const bool seen = s <= t && int(s) >= first_seen[half];
                    const float factor = decay_between(sum.at[j], sum_at) * step.at[j];
                    weighted[i] = seen ? scores[i] * factor : 0.0f;
                }
            }
        }
        store_rows<CHUNK / 8, true>(pairs + index_chunk(own) * CHUNK * CHUNK, CHUNK, row + lane / 4, CHUNK,
                                    CHUNK, weighted);
    }
}

// Addresses of the operands of a chunk in shared memory, in the order in which they are needed.
struct Stage {
    u32 keys, values, scales, queries, pairs;
    __device__ __forceinline__ Stage(u32 start, u32 strip)
        : keys(start),
          values(keys + TILE),
          scales(values + strip / 64 * PANEL),
          queries(scales + SCALE_BYTES),
          pairs(queries + TILE) {}
};

template <bool OUTPUTS>
__device__ __forceinline__ void advance(const Half *xbc_blc, const Half *pairs, const float *scales,
                                        const Half *d, const float *first, float *last, u32 slots,
                                        Half *y_blc, Half *states, const Sizes &sizes) {
    const u32 strip = blockDim.x / 2, left = blockIdx.x * strip, head = blockIdx.y, batch = blockIdx.z;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 width = sizes.width, values = sizes.values, group = head / (sizes.value / sizes.key);
    const u32 start = shared_address(shared_memory), stages = (start + 1023) & ~1023u;
    const Half *values_blc = xbc_blc + head * values + left;
    // The columns of values and the row of the state that a warp and a thread begin with.
    const u32 own_column = warp * 16, row = left + own_column + lane / 4;
    const u32 columns = values > left + own_column ? values - left - own_column : 0;
    const u64 of_head = (u64(batch) * sizes.value + head) * sizes.state();
    const auto locate = [&](u32 chunk) {
        const u32 bytes = TILE + strip / 64 * PANEL + SCALE_BYTES + (OUTPUTS ? TILE + PANEL : 0);
        return Stage(stages + chunk % 2 * bytes, strip);
    };
    const auto prefetch = [&](u32 chunk) {
        if (chunk < sizes.chunks) {
            const Chunk own(sizes, chunk, head, batch, nullptr);
            const Stage stage = locate(chunk);
            const u64 stride = sizes.packed(), line = own.row(0) * stride, index = index_chunk(own);
            if (OUTPUTS)
                load_tile(stage.queries, xbc_blc + line + query_column(sizes, group), stride, own.n, width);
            load_strip(stage.values, values_blc + line, stride, own.n, values - left);
            load_words(stage.scales, scales + index * SCALES * CHUNK, SCALES * CHUNK);
            if (OUTPUTS) load_pairs(stage.pairs, pairs + index * CHUNK * CHUNK);
            load_tile(stage.keys, xbc_blc + line + key_column(sizes, group), stride, own.n, width);
        }
        commit_copies();
    };
    if (OUTPUTS) {
        clear_pairs(locate(0).pairs);
        clear_pairs(locate(1).pairs);
    }
    prefetch(0);
    const float skip = OUTPUTS ? to_f32(d[head]) : 0.0f;
    State state;
    // A state that the first token does not see may be undefined.
    const u64 of_first = index_chunk(Chunk(sizes, 0, head, batch, nullptr)) * SCALES * CHUNK;
    const bool reads = first && batch < slots && scales[of_first + SINCE * CHUNK] > 0.0f;
    load_state(state, reads ? first + of_head : nullptr, row, sizes);
    for (u32 chunk = 0; chunk < sizes.chunks; chunk++) {
        finish_copies<0>();
        const Chunk own(sizes, chunk, head, batch, nullptr);
        const Stage stage = locate(chunk);
        const float *numbers = reinterpret_cast<const float *>(shared_memory + (stage.scales - start));
        u32 packed_values[TOKEN_STEPS][4], packed[TOKEN_STEPS][4];
        float values_vt[CHUNK / 2], out_vt[CHUNK / 2];
        // All threads are beyond the chunk before this one, whose memory the next copies take.
        const auto meanwhile = [&]() {
            prefetch(chunk + 1);
            left_transposed(packed_values, stage.values, own_column / 8);
            unpack<CHUNK / 8>(values_vt, packed_values);
        };
        if (OUTPUTS) {
            read_state(out_vt, state, stage.queries, meanwhile);
            scale_columns<CHUNK / 8>(out_vt, numbers + SINCE * CHUNK);
#pragma unroll
            for (int i = 0; i < CHUNK / 2; i++) out_vt[i] = fmaf(skip, values_vt[i], out_vt[i]);
            times_transposed<TOKEN_STEPS, CHUNK / 8>(out_vt, packed_values, stage.pairs);
        } else {
            if (states) store_rounded(states + index_chunk(own) * values * WIDTH, state, row, sizes);
            meanwhile();
        }
        scale_columns<CHUNK / 8>(values_vt, numbers + UNTIL * CHUNK);
        pack<CHUNK / 8>(packed, values_vt);
        change_state(state, numbers[SINCE * CHUNK + own.n - 1], packed, stage.keys);
        if (OUTPUTS) {
            finish_product<SLICES>(out_vt, packed_values);
            pack<CHUNK / 8>(packed_values, out_vt);
            Half *to = y_blc + (own.row(0) * sizes.value + head) * values + left + own_column;
            store_transposed(stage.values, own_column / 8, to, u64(sizes.value) * values, own.n, columns,
                             packed_values);
        }
        finish_state(state, packed);
    }
    store_state(last && batch < slots ? last + of_head : nullptr, state, row, sizes);
}

KERNEL __launch_bounds__(2 * STRIP, 1)
    OF_HALF(outputs)(const Half *__restrict__ xbc_blc, const Half *__restrict__ pairs,
                     const float *__restrict__ scales, const Half *__restrict__ d, const float *first,
                     float *last, u32 slots, Half *__restrict__ y_blc, SIZES) {
    advance<true>(xbc_blc, pairs, scales, d, first, last, slots, y_blc, nullptr, SIZES_OF);
}

KERNEL __launch_bounds__(2 * STRIP, 1)
    OF_HALF(states)(const Half *__restrict__ xbc_blc, const float *__restrict__ scales, const float *first,
                    float *last, u32 slots, Half *__restrict__ states, SIZES) {
    advance<false>(xbc_blc, nullptr, scales, nullptr, first, last, slots, nullptr, states, SIZES_OF);
}

#endif
