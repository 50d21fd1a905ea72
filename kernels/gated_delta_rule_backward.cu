// The gated delta rule, backward. The kernels of the forward pass compute states and corrections again;
// then `local` gives the corrections' gradients within chunks, `state_gradients` follows the chunks from
// the last to the first, and the others complete each chunk.
//
// Launch: as in the forward pass; `gradients` has a block for each chunk, key head and sequence, whose
// value heads it adds in order. Floor: about three times the forward pass.
#include "gated_delta_rule.cuh"

// Gradients of rate * x of a chunk from its own outputs: du[s] = the sum over t >= s of pair[t][s] * dy[t].
template <typename T>
__device__ __forceinline__ void local(const float *queries, const float *keys, const float *sums,
                                      const T *dy_blc, float *du, const u32 *documents, Sizes sizes) {
    __shared__ Slabs slabs;
    __shared__ float pairs_ts[CHUNK * CHUNK];
    const Chunk own(sizes, blockIdx.x, blockIdx.y, blockIdx.z, documents);
    const u32 values = sizes.values;
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    pairs<true>(own, queries, keys, sums, pairs_ts, [](u32) { return 1.0f; }, slabs);
    for (u32 left = 0; left < values; left += CHUNK) {
        float sum[4][4] = {};
        multiply<4, true, true>(
            sum, own.n, [&](u32 s, u32 t) { return pairs_ts[t * CHUNK + s]; },
            [&](u32 t, u32 j) {
                const u64 at = (own.row(t) * sizes.value + own.head) * values + left + j;
                return left + j < values ? to_f32(dy_blc[at]) : 0.0f;
            },
            slabs);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 s = row + i, at = left + column + j;
                if (s < own.n && at < values) du[own.value_row(s) * values + at] = sum[i][j];
            }
        }
    }
}

// Gradients of the states after the chunks, from the last to the first, and what they add to du.
template <typename T>
__device__ __forceinline__ void state_gradients(const float *queries, const float *keys, const float *sums,
                                                const float *rate, const float *weights, const T *dy_blc,
                                                float *du, float *dstates, const float *dlast, float *dfirst,
                                                const u32 *documents, Sizes sizes) {
    __shared__ Slabs slabs;
    const u32 width = sizes.width, values = sizes.values;
    float *state_ks = memory, *strip_ts = memory + width * STRIP;
    const u32 head = blockIdx.y, batch = blockIdx.z, left = blockIdx.x * STRIP;
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16;
    const u64 of_head = (u64(batch) * sizes.value + head) * sizes.state();
    const bool is_inside = left + column < values;
    for (u32 at = threadIdx.x; at < width * STRIP; at += THREADS) {
        const u32 c = at / STRIP, j = left + at % STRIP;
        state_ks[at] = dlast && j < values ? dlast[of_head + u64(c) * values + j] : 0.0f;
    }
    for (u32 chunk = sizes.chunks; chunk-- > 0;) {
        const Chunk own(sizes, chunk, head, batch, documents);
        __syncthreads();
        for (u32 at = threadIdx.x; at < width * STRIP; at += THREADS) {
            const u32 c = at / STRIP, j = left + at % STRIP;
            if (j < values) dstates[own.state() + u64(c) * values + j] = state_ks[at];
        }
        float product[4][1] = {};
        multiply<1, false, true>(
            product, width,
            [&](u32 s, u32 c) {
                return s < own.n ? keys[own.key_row(s) * width + c] * own.until(sums, s, c) : 0.0f;
            },
            [&](u32 c, u32 j) { return state_ks[c * STRIP + j]; }, slabs);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 t = row + i;
            float whole = 0.0f;
            if (t < own.n && is_inside) {
                float *to = du + own.value_row(t) * values + left + column;
                whole = *to += product[i][0];
            }
            strip_ts[t * STRIP + column] = whole;
        }
        for (u32 above = 0; above < width; above += CHUNK) {
            float added[4][1] = {};
            multiply<1, true, true>(
                added, own.n,
                [&](u32 r, u32 t) {
                    const u32 c = above + r;
                    return c < width ? queries[own.key_row(t) * width + c] * own.since(sums, t, c) : 0.0f;
                },
                [&](u32 t, u32 j) {
                    const u64 at = (own.row(t) * sizes.value + head) * values + left + j;
                    return left + j < values ? to_f32(dy_blc[at]) : 0.0f;
                },
                slabs);
            multiply<1, true, true>(
                added, own.n,
                [&](u32 r, u32 t) {
                    const u32 c = above + r;
                    const float factor = -rate[own.row(t) * sizes.value + head];
                    return c < width ? factor * weights[own.value_row(t) * width + c] : 0.0f;
                },
                [&](u32 t, u32 j) { return strip_ts[t * STRIP + j]; }, slabs);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 c = above + row + i;
                if (c >= width) continue;
                float *to = state_ks + c * STRIP + column;
                *to = fmaf(*to, own.since(sums, own.n - 1, c), added[i][0]);
            }
        }
    }
    __syncthreads();
    for (u32 at = threadIdx.x; dfirst && at < width * STRIP; at += THREADS) {
        const u32 c = at / STRIP, j = left + at % STRIP;
        if (j < values) dfirst[of_head + u64(c) * values + j] = state_ks[at];
    }
}

// Replaces du by the gradients of x, which are those of the values, and computes those of the rates. A thread
// has a column and goes from the last token to the first.
template <typename T>
__device__ __forceinline__ void corrections(const float *keys, const float *sums, const float *rate,
                                            const float *x, float *du, T *dqkv_blc, float *drate,
                                            const u32 *documents, Sizes sizes) {
    __shared__ Slabs slabs;
    __shared__ float pairs_ts[CHUNK * CHUNK], partial[THREADS / WARP][CHUNK], rates[CHUNK];
    const Chunk own(sizes, blockIdx.x, blockIdx.y, blockIdx.z, documents);
    const u32 values = sizes.values, n = own.n;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (u32 t = threadIdx.x; t < CHUNK; t += THREADS)
        rates[t] = t < n ? rate[own.row(t) * sizes.value + own.head] : 0.0f;
    for (u32 t = lane; t < CHUNK; t += WARP) partial[warp][t] = 0.0f;
    pairs<false>(own, keys, keys, sums, pairs_ts, [](u32) { return 1.0f; }, slabs);
    T *dvalues_blc = dqkv_blc + 2 * sizes.key * sizes.width + own.head * values;
    for (u32 left = 0; left < values; left += THREADS) {
        const u32 c = left + threadIdx.x;
        float *from = du + own.value_row(0) * values + c;
        for (u32 end = CHUNK; end > 0; end -= HELD) {
            const u32 first = end - HELD;
            float at[HELD];
#pragma unroll
            for (int i = 0; i < HELD; i++)
                at[i] = first + i < n && c < values ? from[u64(first + i) * values] : 0.0f;
#pragma unroll 4
            for (u32 t = end; t < n; t++) {
                const float later = c < values ? from[u64(t) * values] : 0.0f;
#pragma unroll
                for (int i = 0; i < HELD; i++)
                    at[i] = fmaf(-pairs_ts[t * CHUNK + first + i], later, at[i]);
            }
#pragma unroll
            for (int i = HELD - 1; i >= 0; i--) {
                const u32 t = first + i;
                const bool is_inside = t < n && c < values;
                const float product =
                    warp_sum(is_inside ? at[i] * x[own.value_row(t) * values + c] : 0.0f);
                if (lane == 0) partial[warp][t] += product;
                at[i] *= rates[t];
#pragma unroll
                for (int s = 0; s < i; s++)
                    at[s] = fmaf(-pairs_ts[t * CHUNK + first + s], at[i], at[s]);
                if (is_inside) from[u64(t) * values] = at[i];
                if (is_inside) dvalues_blc[own.row(t) * sizes.packed() + c] = from_f32<T>(at[i]);
            }
        }
    }
    __syncthreads();
    for (u32 t = threadIdx.x; t < n; t += THREADS) {
        float sum = 0.0f;
        for (int other = 0; other < THREADS / WARP; other++) sum += partial[other][t];
        drate[own.row(t) * sizes.value + own.head] = sum;
    }
}

// Adds products of pairs with rows of keys or queries, each channel with its decay. EARLIER: sum[s] += the
// sum over t >= s of pair[t][s] * row[t]; otherwise sum[t] += the sum over s <= t of pair[t][s] * row[s].
template <bool EARLIER>
__device__ __forceinline__ void add_decayed(float (&sum)[4][4], const Chunk &own, const float *pairs_ts,
                                            const float *rows, const float *sums, u32 left) {
    const u32 row = threadIdx.x / 16 * 4, column = left + threadIdx.x % 16 * 4;
    const u32 width = own.sizes.width, last = own.n - 1;
    for (u32 other = 0; other <= last; other++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 c = min(column + j, width - 1);
            const float from = rows[own.key_row(other) * width + c], sum_there = own.sum(sums, other, c);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 here = row + i, t = EARLIER ? other : here, s = EARLIER ? here : other;
                if (here > last || s > t) continue;
                const float difference = own.sum(sums, here, c) - sum_there;
                const float decay = expf(EARLIER ? -difference : difference);
                sum[i][j] = fmaf(pairs_ts[t * CHUNK + s], from * decay, sum[i][j]);
            }
        }
    }
}

// Adds the products of pairs with rows to a tile; pairs of a scalar decay have it already.
template <bool EARLIER>
__device__ __forceinline__ void add_pairs(float (&sum)[4][4], const Chunk &own, const float *pairs_ts,
                                          const float *rows, const float *sums, u32 left, Slabs &slabs) {
    const u32 width = own.sizes.width;
    if (own.sizes.channels > 1) return add_decayed<EARLIER>(sum, own, pairs_ts, rows, sums, left);
    multiply<4, EARLIER, true>(
        sum, own.n,
        [&](u32 here, u32 other) { return pairs_ts[EARLIER ? other * CHUNK + here : here * CHUNK + other]; },
        [&](u32 other, u32 c) {
            return left + c < width ? rows[own.key_row(other) * width + left + c] : 0.0f;
        },
        slabs);
}

// Gradients of the pairs of a chunk from rows d[t] and rate * x[s], with the sign.
template <bool OWN, typename D>
__device__ __forceinline__ void pair_gradients(const Chunk &own, D gradient, const float *x,
                                               const float *rate, const float *sums, float sign,
                                               float *out_ts, Slabs &slabs) {
    const u32 values = own.sizes.values;
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    float sum[4][4] = {};
    multiply<4, false, false>(
        sum, values, [&](u32 t, u32 j) { return t < own.n ? gradient(t, j) : 0.0f; },
        [&](u32 j, u32 s) { return s < own.n ? x[own.value_row(s) * values + j] : 0.0f; }, slabs);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 t = row + i, s = column + j;
            float value = 0.0f;
            if (t < own.n && (OWN ? s <= t : s < t) && own.sees(t, s)) {
                value = sign * sum[i][j] * rate[own.row(s) * own.sizes.value + own.head];
                if (own.sizes.channels == 1) value *= expf(own.sum(sums, t, 0) - own.sum(sums, s, 0));
            }
            out_ts[t * CHUNK + s] = value;
        }
    }
}

// Gradients of queries, keys and decays of a key head's chunk. `terms`, [.., width] for each value head, is
// overwritten; `dqueries` and `dkeys` have the sums over value heads, before the norms.
template <typename T>
__device__ __forceinline__ void gradients(const T *qkv_blc, const float *queries, const float *keys,
                                          const float *sums, const float *rate, const float *x,
                                          const float *states, const float *dstates, const float *dx,
                                          const T *dy_blc, float *terms, float *dqueries, float *dkeys,
                                          T *dqkv_blc, float *ddecay, const u32 *documents, Sizes sizes,
                                          float epsilon) {
    __shared__ Slabs slabs;
    __shared__ float of_queries[CHUNK * CHUNK], of_keys[CHUNK * CHUNK], columns[16][CHUNK];
    float *ends = memory;
    const u32 group = sizes.value / sizes.key, width = sizes.width, values = sizes.values;
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (u32 member = 0; member < group; member++) {
        const Chunk own(sizes, blockIdx.x, blockIdx.y * group + member, blockIdx.z, documents);
        const u32 last = own.n - 1;
        const float *state = states + own.state(), *dstate = dstates + own.state();
        const auto dy = [&](u32 t, u32 j) {
            return to_f32(dy_blc[(own.row(t) * sizes.value + own.head) * values + j]);
        };
        const auto of_x = [&](u32 t, u32 j) { return dx[own.value_row(t) * values + j]; };
        __syncthreads();
        pair_gradients<true>(own, dy, x, rate, sums, 1.0f, of_queries, slabs);
        pair_gradients<false>(own, of_x, x, rate, sums, -1.0f, of_keys, slabs);
        for (u32 left = 0; left < width; left += CHUNK) {
            // Products of rows of tokens with rows of the state before the chunk, and after it.
            const auto before = [&](u32 j, u32 c) {
                return left + c < width ? state[u64(left + c) * values + j] : 0.0f;
            };
            const auto after = [&](u32 j, u32 c) {
                return left + c < width ? dstate[u64(left + c) * values + j] : 0.0f;
            };
            float dq[4][4] = {}, later[4][4] = {}, earlier[4][4] = {}, column_sum[4] = {};
            multiply<4, false, false>(
                dq, values, [&](u32 t, u32 j) { return t < own.n ? dy(t, j) : 0.0f; }, before, slabs);
            multiply<4, false, false>(
                later, values, [&](u32 t, u32 j) { return t < own.n ? of_x(t, j) : 0.0f; }, before, slabs);
            multiply<4, false, false>(
                earlier, values,
                [&](u32 s, u32 j) { return s < own.n ? x[own.value_row(s) * values + j] : 0.0f; }, after,
                slabs);
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const u32 t = row + i, c = left + column + j;
                    const bool is_inside = t < own.n && c < width;
                    const float since = is_inside ? own.since(sums, t, c) : 0.0f;
                    const float until = is_inside ? own.until(sums, t, c) : 0.0f;
                    dq[i][j] *= since;
                    later[i][j] *= -since;
                    earlier[i][j] *= until * (is_inside ? rate[own.row(t) * sizes.value + own.head] : 0.0f);
                    if (is_inside) column_sum[j] += keys[own.key_row(t) * width + c] * earlier[i][j];
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) columns[threadIdx.x / 16][column + j] = column_sum[j];
            add_pairs<false>(dq, own, of_queries, keys, sums, left, slabs);
            add_pairs<false>(later, own, of_keys, keys, sums, left, slabs);
            add_pairs<true>(earlier, own, of_queries, queries, sums, left, slabs);
            add_pairs<true>(earlier, own, of_keys, keys, sums, left, slabs);
            __syncthreads();
            for (u32 c = threadIdx.x; c < CHUNK && left + c < width; c += THREADS) {
                float sum = 0.0f;
                for (int rows = 0; rows < 16; rows++) sum += columns[rows][c];
                ends[left + c] = sum;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const u32 t = row + i, c = left + column + j;
                    if (t >= own.n || c >= width) continue;
                    const u64 at = own.key_row(t) * width + c;
                    const float dk = later[i][j] + earlier[i][j];
                    terms[own.value_row(t) * width + c] =
                        queries[at] * dq[i][j] + keys[at] * (later[i][j] - earlier[i][j]);
                    dqueries[at] = member ? dqueries[at] + dq[i][j] : dq[i][j];
                    dkeys[at] = member ? dkeys[at] + dk : dk;
                }
            }
            __syncthreads();
        }
        for (u32 c = warp; c < width; c += THREADS / WARP) {
            float sum = 0.0f;
            for (u32 j = lane; j < values; j += WARP)
                sum = fmaf(state[u64(c) * values + j], dstate[u64(c) * values + j], sum);
            sum = warp_sum(sum) * own.since(sums, last, c);
            if (lane == 0) ends[c] += sum;
        }
        if (sizes.channels == 1) {
            for (u32 t = warp; t < own.n; t += THREADS / WARP) {
                float sum = 0.0f;
                for (u32 c = lane; c < width; c += WARP) sum += terms[own.value_row(t) * width + c];
                sum = warp_sum(sum);
                if (lane == 0) columns[0][t] = sum;
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                float sum = 0.0f;
                for (u32 c = 0; c < width; c++) sum += ends[c];
                for (u32 t = own.n; t-- > 0;) {
                    sum = own.begins(t) ? 0.0f : sum + columns[0][t];
                    ddecay[own.row(t) * sizes.value + own.head] = sum;
                }
            }
        } else {
            __syncthreads();
            for (u32 c = threadIdx.x; c < width; c += THREADS) {
                float sum = ends[c];
                for (u32 t = own.n; t-- > 0;) {
                    sum = own.begins(t) ? 0.0f : sum + terms[own.value_row(t) * width + c];
                    ddecay[(own.row(t) * sizes.value + own.head) * width + c] = sum;
                }
            }
        }
    }
    // Through the norms of queries and keys.
    __syncthreads();
    const Chunk own(sizes, blockIdx.x, blockIdx.y * group, blockIdx.z, documents);
    for (u32 item = warp; item < 2 * own.n; item += THREADS / WARP) {
        const u32 t = item / 2, kind = item % 2;
        const u64 start = own.row(t) * sizes.packed() + (kind * sizes.key + blockIdx.y) * width;
        const float *gradient = (kind ? dkeys : dqueries) + own.key_row(t) * width;
        float square = 0.0f, along = 0.0f;
        for (u32 c = lane; c < width; c += WARP) {
            const float value = to_f32(qkv_blc[start + c]);
            square = fmaf(value, value, square);
            along = fmaf(value, gradient[c], along);
        }
        const float factor = 1.0f / sqrtf(warp_sum(square) + epsilon);
        along = warp_sum(along) * factor;
        const float scale = kind ? factor : factor * (1.0f / sqrtf(float(width)));
        for (u32 c = lane; c < width; c += WARP) {
            const float unit = to_f32(qkv_blc[start + c]) * factor;
            dqkv_blc[start + c] = from_f32<T>(scale * (gradient[c] - unit * along));
        }
    }
}

#define FOR_TYPE(NAME, T)                                                                               \
    KERNEL __launch_bounds__(THREADS)                                                                   \
        local_##NAME(const float *__restrict__ queries, const float *__restrict__ keys,                 \
                     const float *__restrict__ sums, const T *__restrict__ dy, float *__restrict__ du,  \
                     const u32 *__restrict__ documents, SIZES) {                                        \
        local(queries, keys, sums, dy, du, documents, SIZES_OF);                                        \
    }                                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                   \
        state_gradients_##NAME(const float *__restrict__ queries, const float *__restrict__ keys,       \
                               const float *__restrict__ sums, const float *__restrict__ rate,          \
                               const float *__restrict__ weights, const T *__restrict__ dy,             \
                               float *__restrict__ du, float *__restrict__ dstates,                     \
                               const float *__restrict__ dlast, float *__restrict__ dfirst,             \
                               const u32 *__restrict__ documents, SIZES) {                              \
        state_gradients(queries, keys, sums, rate, weights, dy, du, dstates, dlast, dfirst, documents,  \
                        SIZES_OF);                                                                      \
    }                                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                   \
        corrections_##NAME(const float *__restrict__ keys, const float *__restrict__ sums,              \
                           const float *__restrict__ rate, const float *__restrict__ x,                 \
                           float *__restrict__ du,                                                      \
                           T *__restrict__ dqkv, float *__restrict__ drate,                             \
                           const u32 *__restrict__ documents, SIZES) {                                  \
        corrections(keys, sums, rate, x, du, dqkv, drate, documents, SIZES_OF);                         \
    }                                                                                                   \
    KERNEL __launch_bounds__(THREADS)                                                                   \
        gradients_##NAME(const T *__restrict__ qkv, const float *__restrict__ queries,                  \
                         const float *__restrict__ keys, const float *__restrict__ sums,                \
                         const float *__restrict__ rate, const float *__restrict__ x,                   \
                         const float *__restrict__ states, const float *__restrict__ dstates,           \
                         const float *__restrict__ dx, const T *__restrict__ dy,                        \
                         float *__restrict__ terms,                                                     \
                         float *__restrict__ dqueries, float *__restrict__ dkeys, T *__restrict__ dqkv, \
                         float *__restrict__ ddecay, const u32 *__restrict__ documents, SIZES,          \
                         float epsilon) {                                                               \
        gradients(qkv, queries, keys, sums, rate, x, states, dstates, dx, dy, terms, dqueries, dkeys,   \
                  dqkv,                                                                                 \
                  ddecay, documents, SIZES_OF, epsilon);                                                \
    }

FOR_EACH_TYPE(FOR_TYPE)
