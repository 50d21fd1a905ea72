// Scans of selective state spaces (Dao and Gu, Mamba-2, 2024) in chunks of CHUNK tokens. A head of `width`
// columns has a state of `states` rows: s[t] = exp(dt * A) * s[t - 1] + dt * outer(B, x), and y = C . s +
// D * x, where dt = softplus(raw + bias) within limits, and A = -exp(a_log). Heads of a group share B and C.
// A state does not pass from one document to the next.
//
// Within a chunk, outputs are sums over pairs of its tokens, and over the state that enters it. These states
// are computed from the sums of single chunks in the order of chunks. All arithmetic is in f32. Kernels of
// chunks compute tiles of CHUNK rows and columns, of which a thread has 4 by 4.
//
// Shapes: xbc_blc with the columns of x, B and C; dt_blh; a_log_h, d_h, bias_h; y_blc with x's columns;
// documents_bl. entering[b][chunk][h][n][k] and leaving alike, where n is a row of the state. Letters as in
// CONTRIBUTING.md.
#include "columns.cuh"
#include "slabs.cuh"
#include "state_space_steps.cuh"

// Arguments of all kernels.
struct Scan {
    u32 time, heads, groups, width, states, chunks;
    float low, high;
};
#define SIZES                                                                                           \
    u32 time, u32 heads, u32 groups, u32 width, u32 states, u32 chunks, float low, float high
#define SCAN                                                              \
    Scan { time, heads, groups, width, states, chunks, low, high }

// One head of one chunk. `step` is dt, and `log_decay` the sum of dt * A from the chunk's first token on.
// Tokens from `first` on have the same document, and the entering state, too, if `sees`.
template <typename T> struct Chunk {
    const T *xbc;
    u64 row;
    u32 start, count, head, stride, group, width, states, x_columns, b_columns;
    float *step, *log_decay;
    u32 *first, *sees;

    __device__ __forceinline__ Chunk(const T *xbc, const T *dt, const T *a_log, const T *bias,
                                     const u32 *documents, const Scan &scan, float *floats, u32 *words)
        : xbc(xbc), row(u64(blockIdx.z) * scan.time + blockIdx.x * CHUNK), start(blockIdx.x * CHUNK),
          count(min(u32(CHUNK), scan.time - blockIdx.x * CHUNK)), head(blockIdx.y),
          stride(scan.heads * scan.width + 2 * scan.groups * scan.states),
          group(blockIdx.y / (scan.heads / scan.groups)), width(scan.width), states(scan.states),
          x_columns(scan.heads * scan.width), b_columns(scan.groups * scan.states), step(floats),
          log_decay(floats + CHUNK), first(words), sees(words + CHUNK) {
        const float a = -expf(to_f32(a_log[head])), shift = to_f32(bias[head]);
        const u32 i = threadIdx.x;
        if (i < count) {
            const float raw = to_f32(dt[(row + i) * scan.heads + head]) + shift;
            step[i] = limited(softplus(raw), scan.low, scan.high);
            const int from = documents ? int(documents[row + i]) - int(start) : -int(start);
            first[i] = from > 0 ? from : 0;
            sees[i] = from < 0;
        }
        __syncthreads();
        if (i < count) {
            float sum = 0.0f;
            for (u32 j = 0; j <= i; j++) sum = fmaf(step[j], a, sum);
            log_decay[i] = sum;
        }
        __syncthreads();
    }
    // Elements of a token's x, B and C, and of an array with x's columns; 0 beyond the tokens and columns.
    __device__ __forceinline__ float x(u32 i, u32 k) const {
        return i < count && k < width ? to_f32(xbc[(row + i) * stride + head * width + k]) : 0.0f;
    }
    __device__ __forceinline__ float b(u32 i, u32 n) const {
        const u64 first = (row + i) * stride + x_columns + group * states;
        return i < count && n < states ? to_f32(xbc[first + n]) : 0.0f;
    }
    __device__ __forceinline__ float c(u32 i, u32 n) const {
        const u64 first = (row + i) * stride + x_columns + b_columns + group * states;
        return i < count && n < states ? to_f32(xbc[first + n]) : 0.0f;
    }
    __device__ __forceinline__ u64 output(u32 i, u32 k) const {
        return (row + i) * x_columns + head * width + k;
    }
    __device__ __forceinline__ float output(const T *y, u32 i, u32 k) const {
        return i < count && k < width ? to_f32(y[output(i, k)]) : 0.0f;
    }
    // An element of a state; 0 beyond its rows and columns.
    __device__ __forceinline__ float entry(const float *state, u32 n, u32 k) const {
        return n < states && k < width ? state[n * width + k] : 0.0f;
    }
    // The index of the head's state in an array of states of chunks.
    __device__ __forceinline__ u64 state(const Scan &scan) const {
        return ((u64(blockIdx.z) * scan.chunks + blockIdx.x) * scan.heads + head) * states * width;
    }
    // The factor of a token's part in the leaving state; 0 if another document follows it.
    __device__ __forceinline__ float leaves(u32 i) const {
        return i >= first[count - 1] ? expf(log_decay[count - 1] - log_decay[i]) : 0.0f;
    }
    // The factor of the entering state in a token's output.
    __device__ __forceinline__ float enters(u32 i) const { return sees[i] ? expf(log_decay[i]) : 0.0f; }
};

// The factors of pairs of tokens: the decay from j to i and j's time step, or 0 if i does not see j.
template <typename T>
__device__ __forceinline__ float pair_factor(const Chunk<T> &chunk, u32 i, u32 j) {
    const bool seen = i < chunk.count && j <= i && j >= chunk.first[i];
    return seen ? expf(chunk.log_decay[i] - chunk.log_decay[j]) * chunk.step[j] : 0.0f;
}

// A matrix of pairs of a chunk's tokens.
typedef float Pairs[CHUNK][CHUNK + 1];

// Calls use(i, j, element) for the elements of a thread in a tile.
template <typename Use> __device__ __forceinline__ void each(float (&tile)[4][4], Use use) {
    const u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) use(row + i, column + j, tile[i][j]);
}

// Adds the products of rows of a tile with right(i, j) to a thread's part of sums of rows.
template <typename Right>
__device__ __forceinline__ void multiply_rows(float (&sums)[4], float (&tile)[4][4], Right right) {
    const u32 row = threadIdx.x / 16 * 4;
    each(tile, [&](u32 i, u32 j, float &element) {
        sums[i - row] = fmaf(element, right(i, j), sums[i - row]);
    });
}

// Adds the parts of the 16 threads of rows, in a fixed butterfly.
__device__ __forceinline__ void join_rows(const float (&sums)[4], float *to) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        float sum = sums[i];
#pragma unroll
        for (u32 offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
        if (threadIdx.x % 16 == 0) to[threadIdx.x / 16 * 4 + i] = sum;
    }
}

#define CHUNK_OF(T, documents)                    \
    __shared__ float chunk_floats[2 * CHUNK];     \
    __shared__ u32 chunk_words[2 * CHUNK];        \
    const Chunk<T> chunk(xbc, dt, a_log, bias, documents, scan, chunk_floats, chunk_words);

// The sum of each chunk's own tokens in the state that leaves it, and the factor of the entering state. With
// BACK, the sum of gradients of outputs in the gradient of the entering state. Launch: THREADS threads, grid
// [chunks, heads, batch].
template <bool BACK, typename T>
__device__ __forceinline__ void chunk_sums(const T *dy, const T *xbc, const T *dt, const T *a_log,
                                           const T *bias, const u32 *documents, float *sums, float *kept,
                                           const Scan &scan) {
    CHUNK_OF(T, documents)
    __shared__ Slabs slabs;
    __shared__ float factors[CHUNK];
    if (threadIdx.x < chunk.count) {
        const u32 i = threadIdx.x;
        factors[i] = BACK ? chunk.enters(i) : chunk.leaves(i) * chunk.step[i];
    }
    __syncthreads();
    float *to = sums + chunk.state(scan);
    for (u32 top = 0; top < scan.states; top += CHUNK)
        for (u32 left = 0; left < scan.width; left += CHUNK) {
            float tile[4][4] = {};
            multiply<4, true, true>(
                tile, chunk.count,
                [&](u32 n, u32 i) {
                    return factors[i] * (BACK ? chunk.c(i, top + n) : chunk.b(i, top + n));
                },
                [&](u32 i, u32 k) {
                    return BACK ? chunk.output(dy, i, left + k) : chunk.x(i, left + k);
                },
                slabs);
            each(tile, [&](u32 n, u32 k, float &sum) {
                if (top + n < scan.states && left + k < scan.width)
                    to[(top + n) * scan.width + left + k] = sum;
            });
        }
    if (!BACK && threadIdx.x == 0)
        kept[(u64(blockIdx.z) * scan.chunks + blockIdx.x) * scan.heads + chunk.head] =
            chunk.enters(chunk.count - 1);
}

// Replaces the sums of chunks by the states that enter them; with BACK, by the gradients of the states that
// leave them. `state`: null, or the state of each of the first `slots` sequences, which the state after the
// last chunk replaces; with BACK, gradients, and the first chunk. It is read with `reads`. Launch: a thread
// for each element of a sequence's states, grid [.., batch].
template <bool BACK>
__device__ __forceinline__ void join_chunks(float *sums, const float *kept, float *state, u32 slots,
                                            u32 reads, u32 heads, u32 elements, u32 chunks) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= heads * elements) return;
    const bool has_state = state && blockIdx.y < slots;
    float *own = has_state ? state + u64(blockIdx.y) * heads * elements + at : nullptr;
    float value = has_state && reads ? *own : 0.0f;
    for (u32 number = 0; number < chunks; number++) {
        const u64 chunk = u64(blockIdx.y) * chunks + (BACK ? chunks - 1 - number : number);
        float *sum = sums + chunk * heads * elements + at;
        const float factor = kept[chunk * heads + at / elements], added = *sum;
        *sum = value;
        // A state that is not kept may be undefined.
        value = factor == 0.0f ? added : fmaf(factor, value, added);
    }
    if (has_state) *own = value;
}

// The weights of pairs of tokens in outputs.
template <typename T>
__device__ __forceinline__ void score(const Chunk<T> &chunk, Pairs &pairs, Slabs &slabs) {
    float tile[4][4] = {};
    multiply<4, false, false>(
        tile, chunk.states, [&](u32 i, u32 n) { return chunk.c(i, n); },
        [&](u32 n, u32 j) { return chunk.b(j, n); }, slabs);
    each(tile, [&](u32 i, u32 j, float &sum) { pairs[i][j] = sum * pair_factor(chunk, i, j); });
    __syncthreads();
}

// Outputs of a chunk. Launch: THREADS threads, grid [chunks, heads, batch].
template <typename T>
__device__ __forceinline__ void outputs(const T *xbc, const T *dt, const T *a_log, const T *d, const T *bias,
                                        const u32 *documents, const float *entering, T *y, const Scan &scan) {
    CHUNK_OF(T, documents)
    __shared__ Slabs slabs;
    __shared__ Pairs pairs;
    score(chunk, pairs, slabs);
    const float *state = entering + chunk.state(scan), skip = to_f32(d[chunk.head]);
    for (u32 left = 0; left < scan.width; left += CHUNK) {
        float tile[4][4] = {};
        // A state that no token sees may be undefined.
        if (chunk.sees[0]) {
            multiply<4, false, true>(
                tile, scan.states, [&](u32 i, u32 n) { return chunk.c(i, n); },
                [&](u32 n, u32 k) { return chunk.entry(state, n, left + k); }, slabs);
            each(tile, [&](u32 i, u32, float &sum) { sum *= i < chunk.count ? chunk.enters(i) : 0.0f; });
        }
        multiply<4, false, true>(
            tile, chunk.count, [&](u32 i, u32 j) { return pairs[i][j]; },
            [&](u32 j, u32 k) { return chunk.x(j, left + k); }, slabs);
        each(tile, [&](u32 i, u32 k, float &sum) {
            if (i < chunk.count && left + k < scan.width)
                y[chunk.output(i, left + k)] = from_f32<T>(fmaf(skip, chunk.x(i, left + k), sum));
        });
    }
}

// Gradients of a chunk, from the state that enters it and the gradient of the one that leaves it. Those of B
// and C of single heads go to `parts`[row][head][B, C]; those of a_log, d and bias to `weights`[chunk][3 *
// heads]. That of a decay's logarithm is C * dC - B * dB, summed from the chunk's end back. Launch: THREADS
// threads, grid [chunks, heads, batch].
template <typename T>
__device__ __forceinline__ void gradients(const T *dy, const T *xbc, const T *dt, const T *a_log, const T *d,
                                          const T *bias, const u32 *documents, const float *entering,
                                          const float *leaving, T *dxbc, T *ddt, float *parts, float *weights,
                                          const Scan &scan) {
    CHUNK_OF(T, documents)
    __shared__ Slabs slabs;
    __shared__ Pairs pairs;
    // Products of tokens' rows: C * dC, B * dB, B * what dB takes from the gradient of the state, x * dy.
    __shared__ float of_output[CHUNK], of_input[CHUNK], through[CHUNK], skips[CHUNK];
    __shared__ float later[CHUNK], kept_sum[THREADS / WARP];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, width = scan.width, states = scan.states;
    const float *state = entering + chunk.state(scan), *gradient = leaving + chunk.state(scan);
    const float skip = to_f32(d[chunk.head]);
    const auto until = [&](u32 i) { return i < chunk.count ? chunk.leaves(i) * chunk.step[i] : 0.0f; };
    score(chunk, pairs, slabs);
    for (u32 left = 0; left < width; left += CHUNK) {
        float tile[4][4] = {};
        multiply<4, false, true>(
            tile, states, [&](u32 j, u32 n) { return chunk.b(j, n); },
            [&](u32 n, u32 k) { return chunk.entry(gradient, n, left + k); }, slabs);
        each(tile, [&](u32 j, u32, float &sum) { sum *= until(j); });
        multiply<4, true, true>(
            tile, chunk.count, [&](u32 j, u32 i) { return pairs[i][j]; },
            [&](u32 i, u32 k) { return chunk.output(dy, i, left + k); }, slabs);
        each(tile, [&](u32 j, u32 k, float &sum) {
            if (j >= chunk.count || left + k >= width) return;
            const float whole = fmaf(skip, to_f32(dy[chunk.output(j, left + k)]), sum);
            dxbc[(chunk.row + j) * chunk.stride + chunk.head * width + left + k] = from_f32<T>(whole);
        });
    }
    __syncthreads();
    {
        float tile[4][4] = {};
        multiply<4, false, false>(
            tile, width, [&](u32 i, u32 k) { return chunk.output(dy, i, k); },
            [&](u32 k, u32 j) { return chunk.x(j, k); }, slabs);
        each(tile, [&](u32 i, u32 j, float &sum) {
            if (i == j) skips[i] = sum;
            pairs[i][j] = sum * pair_factor(chunk, i, j);
        });
    }
    float output_sums[4] = {}, input_sums[4] = {}, through_sums[4] = {};
    for (u32 left = 0; left < states; left += CHUNK) {
        const auto keep = [&](float(&tile)[4][4], u32 part) {
            each(tile, [&](u32 i, u32 n, float &sum) {
                if (i < chunk.count && left + n < states)
                    parts[(((chunk.row + i) * scan.heads + chunk.head) * 2 + part) * states + left + n] = sum;
            });
        };
        const auto b = [&](u32 i, u32 n) { return chunk.b(i, left + n); };
        const auto c = [&](u32 i, u32 n) { return chunk.c(i, left + n); };
        {
            float tile[4][4] = {};
            multiply<4, false, false>(
                tile, width, [&](u32 i, u32 k) { return chunk.x(i, k); },
                [&](u32 k, u32 n) { return chunk.entry(gradient, left + n, k); }, slabs);
            each(tile, [&](u32 i, u32, float &sum) { sum *= until(i); });
            multiply_rows(through_sums, tile, b);
            multiply<4, true, true>(
                tile, chunk.count, [&](u32 i, u32 j) { return pairs[j][i]; },
                [&](u32 j, u32 n) { return c(j, n); }, slabs);
            multiply_rows(input_sums, tile, b);
            keep(tile, 0);
        }
        float tile[4][4] = {};
        // A state that no token sees may be undefined.
        if (chunk.sees[0]) {
            multiply<4, false, false>(
                tile, width, [&](u32 i, u32 k) { return chunk.output(dy, i, k); },
                [&](u32 k, u32 n) { return chunk.entry(state, left + n, k); }, slabs);
            each(tile, [&](u32 i, u32, float &sum) { sum *= i < chunk.count ? chunk.enters(i) : 0.0f; });
        }
        multiply<4, false, true>(
            tile, chunk.count, [&](u32 i, u32 j) { return pairs[i][j]; },
            [&](u32 j, u32 n) { return b(j, n); }, slabs);
        multiply_rows(output_sums, tile, c);
        keep(tile, 1);
    }
    join_rows(output_sums, of_output);
    join_rows(input_sums, of_input);
    join_rows(through_sums, through);
    float kept = 0.0f;
    if (chunk.sees[chunk.count - 1])
        for (u32 at = threadIdx.x; at < states * width; at += THREADS)
            kept = fmaf(state[at], gradient[at], kept);
    kept = warp_sum(kept);
    if (lane == 0) kept_sum[warp] = kept;
    __syncthreads();
    const u32 last = chunk.count - 1;
    if (threadIdx.x == 0) {
        float end = 0.0f, sum = 0.0f;
        for (u32 w = 0; w < THREADS / WARP; w++) end += kept_sum[w];
        end *= chunk.enters(last);
        for (u32 i = 0; i < chunk.count; i++) end += through[i];
        for (u32 number = 0; number < chunk.count; number++) {
            const u32 i = last - number;
            sum += of_output[i] - of_input[i];
            // The sum restarts where a document begins; its decay changes nothing.
            const bool begins = !chunk.sees[i] && chunk.first[i] == i;
            const float before = i >= chunk.first[last] ? sum + end : sum;
            later[i] = begins ? 0.0f : before;
            if (begins) sum = 0.0f;
        }
    }
    __syncthreads();
    const float a = -expf(to_f32(a_log[chunk.head])), shift = to_f32(bias[chunk.head]);
    if (threadIdx.x < chunk.count) {
        const u32 i = threadIdx.x;
        const u64 at = (chunk.row + i) * scan.heads + chunk.head;
        const float raw = to_f32(dt[at]) + shift, plain = softplus(raw), step = chunk.step[i];
        const float direct = step > 0.0f ? of_input[i] / step : 0.0f;
        const bool passes = plain > scan.low && plain < scan.high;
        const float draw = passes ? fmaf(a, later[i], direct) / (1.0f + expf(-raw)) : 0.0f;
        ddt[at] = from_f32<T>(draw);
        later[i] *= step;
        through[i] = draw;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    float da = 0.0f, dd = 0.0f, dbias = 0.0f;
    for (u32 i = 0; i < chunk.count; i++) da += later[i], dd += skips[i], dbias += through[i];
    float *to = weights + (u64(blockIdx.z) * scan.chunks + blockIdx.x) * 3 * scan.heads + chunk.head;
    to[0] = da * a;
    to[scan.heads] = dd;
    to[2 * scan.heads] = dbias;
}

// Adds the parts of a group's heads, in their order. Launch: a thread for each column of B and C of a row.
template <typename T>
__device__ __forceinline__ void join_heads(const float *parts, T *dxbc, u32 rows, u32 heads, u32 groups,
                                           u32 width, u32 states) {
    const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x;
    const u32 columns = 2 * groups * states, each = heads / groups;
    if (at >= u64(rows) * columns) return;
    const u64 row = at / columns;
    const u32 column = at % columns, part = column / (groups * states), rest = column % (groups * states);
    const u32 group = rest / states, n = rest % states;
    const float *from = parts + (row * heads + group * each) * 2 * states + part * states + n;
    float sum = 0.0f;
    for (u32 head = 0; head < each; head++) sum += from[u64(head) * 2 * states];
    dxbc[row * (heads * width + columns) + heads * width + column] = from_f32<T>(sum);
}

#define OPERANDS(T) const T *__restrict__ xbc, const T *__restrict__ dt, const T *__restrict__ a_log

#define FOR_TYPE(NAME, T)                                                                                    \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        sums_##NAME(OPERANDS(T), const T *__restrict__ bias, const u32 *__restrict__ documents,              \
                    float *__restrict__ sums, float *__restrict__ kept, SIZES) {                             \
        chunk_sums<false, T>(nullptr, xbc, dt, a_log, bias, documents, sums, kept, SCAN);                    \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        sums_back_##NAME(const T *__restrict__ dy, OPERANDS(T), const T *__restrict__ bias,                  \
                         const u32 *__restrict__ documents, float *__restrict__ sums, SIZES) {               \
        chunk_sums<true, T>(dy, xbc, dt, a_log, bias, documents, sums, nullptr, SCAN);                       \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        outputs_##NAME(OPERANDS(T), const T *__restrict__ d, const T *__restrict__ bias,                     \
                       const u32 *__restrict__ documents, const float *__restrict__ entering,                \
                       T *__restrict__ y, SIZES) {                                                           \
        outputs(xbc, dt, a_log, d, bias, documents, entering, y, SCAN);                                      \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS, 2)                                                                     \
        gradients_##NAME(const T *__restrict__ dy, OPERANDS(T), const T *__restrict__ d,                     \
                         const T *__restrict__ bias, const u32 *__restrict__ documents,                      \
                         const float *__restrict__ entering, const float *__restrict__ leaving,              \
                         T *__restrict__ dxbc, T *__restrict__ ddt, float *__restrict__ parts,               \
                         float *__restrict__ weights, SIZES) {                                               \
        gradients(dy, xbc, dt, a_log, d, bias, documents, entering, leaving, dxbc, ddt, parts, weights,      \
                  SCAN);                                                                                     \
    }                                                                                                        \
    KERNEL __launch_bounds__(THREADS)                                                                        \
        heads_##NAME(const float *__restrict__ parts, T *__restrict__ dxbc, u32 rows, u32 heads, u32 groups, \
                     u32 width, u32 states) {                                                                \
        join_heads(parts, dxbc, rows, heads, groups, width, states);                                         \
    }

FOR_EACH_TYPE(FOR_TYPE)

KERNEL __launch_bounds__(THREADS)
    chunks(float *__restrict__ sums, const float *__restrict__ kept, float *state, u32 slots, u32 reads,
           u32 heads, u32 elements, u32 chunks) {
    join_chunks<false>(sums, kept, state, slots, reads, heads, elements, chunks);
}
KERNEL __launch_bounds__(THREADS)
    chunks_back(float *__restrict__ sums, const float *__restrict__ kept, float *gradient, u32 slots,
                u32 heads, u32 elements, u32 chunks) {
    join_chunks<true>(sums, kept, gradient, slots, 1, heads, elements, chunks);
}
