// Scans of selective state spaces (Dao and Gu, Mamba-2, 2024) in chunks of CHUNK tokens. A head of `width`
// columns has a state of `states` rows: s[t] = exp(dt * A) * s[t - 1] + dt * outer(B, x), and y = C . s +
// D * x, where dt = softplus(raw + bias) within limits, and A = -exp(a_log). Heads of a group share B and C.
// A state does not pass from one document to the next.
//
// Within a chunk, outputs are sums over pairs of its tokens, and over the state that enters it. These states
// are computed from the sums of single chunks in the order of chunks. All arithmetic is in f32.
//
// Shapes: xbc_blc with the columns of x, B and C; dt_blh; a_log_h, d_h, bias_h; y_blc with x's columns;
// documents_bl. entering[b][chunk][h][n][k] and leaving alike, where n is a row of the state. Letters as in
// CONTRIBUTING.md.
#include "columns.cuh"
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
    __device__ __forceinline__ const T *x(u32 i) const { return xbc + (row + i) * stride + head * width; }
    __device__ __forceinline__ const T *b(u32 i) const {
        return xbc + (row + i) * stride + x_columns + group * states;
    }
    __device__ __forceinline__ const T *c(u32 i) const { return b(i) + b_columns; }
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

template <typename A, typename B> __device__ __forceinline__ float dot(const A *a, const B *b, u32 count) {
    float sum = 0.0f;
    for (u32 i = 0; i < count; i++) sum = fmaf(to_f32(a[i]), to_f32(b[i]), sum);
    return sum;
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
    __shared__ float factors[CHUNK];
    if (threadIdx.x < chunk.count) {
        const u32 i = threadIdx.x;
        factors[i] = BACK ? chunk.enters(i) : chunk.leaves(i) * chunk.step[i];
    }
    __syncthreads();
    float *to = sums + chunk.state(scan);
    for (u32 at = threadIdx.x; at < scan.states * scan.width; at += THREADS) {
        const u32 n = at / scan.width, k = at % scan.width;
        float sum = 0.0f;
        for (u32 i = 0; i < chunk.count; i++) {
            const float left = to_f32(BACK ? chunk.c(i)[n] : chunk.b(i)[n]);
            const T *gradients = dy + (chunk.row + i) * chunk.x_columns + chunk.head * scan.width;
            const float right = to_f32(BACK ? gradients[k] : chunk.x(i)[k]);
            sum = fmaf(factors[i] * left, right, sum);
        }
        to[at] = sum;
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

// Outputs of a chunk. Launch: THREADS threads, grid [chunks, heads, batch].
template <typename T>
__device__ __forceinline__ void outputs(const T *xbc, const T *dt, const T *a_log, const T *d, const T *bias,
                                        const u32 *documents, const float *entering, T *y, const Scan &scan) {
    CHUNK_OF(T, documents)
    __shared__ float pairs[CHUNK][CHUNK + 1];
    for (u32 at = threadIdx.x; at < CHUNK * CHUNK; at += THREADS) {
        const u32 i = at / CHUNK, j = at % CHUNK;
        if (i < chunk.count && j <= i && j >= chunk.first[i])
            pairs[i][j] = dot(chunk.c(i), chunk.b(j), scan.states) *
                          expf(chunk.log_decay[i] - chunk.log_decay[j]) * chunk.step[j];
    }
    __syncthreads();
    const float *state = entering + chunk.state(scan), skip = to_f32(d[chunk.head]);
    for (u32 at = threadIdx.x; at < chunk.count * scan.width; at += THREADS) {
        const u32 i = at / scan.width, k = at % scan.width;
        float sum = skip * to_f32(chunk.x(i)[k]);
        for (u32 j = chunk.first[i]; j <= i; j++) sum = fmaf(pairs[i][j], to_f32(chunk.x(j)[k]), sum);
        if (chunk.sees[i]) {
            float seen = 0.0f;
            for (u32 n = 0; n < scan.states; n++)
                seen = fmaf(to_f32(chunk.c(i)[n]), state[n * scan.width + k], seen);
            sum = fmaf(chunk.enters(i), seen, sum);
        }
        y[(chunk.row + i) * chunk.x_columns + chunk.head * scan.width + k] = from_f32<T>(sum);
    }
}

// Gradients of a chunk, from the state that enters it and the gradient of the one that leaves it. Those of B
// and C of single heads go to `parts`[row][head][B, C]; those of a_log, d and bias to `weights`[chunk][3 *
// heads]. Launch: THREADS threads, grid [chunks, heads, batch]. A warp computes a token at a time.
template <typename T>
__device__ __forceinline__ void gradients(const T *dy, const T *xbc, const T *dt, const T *a_log, const T *d,
                                          const T *bias, const u32 *documents, const float *entering,
                                          const float *leaving, T *dxbc, T *ddt, float *parts, float *weights,
                                          const Scan &scan) {
    CHUNK_OF(T, documents)
    __shared__ float scores[CHUNK][CHUNK], products[CHUNK][CHUNK];
    __shared__ float dstep[CHUNK], dlog[CHUNK], through[CHUNK], seen[CHUNK], skips[CHUNK];
    __shared__ float kept_sum[THREADS / WARP];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, width = scan.width, states = scan.states;
    const T *dys = dy + chunk.row * chunk.x_columns + chunk.head * width;
    const float *state = entering + chunk.state(scan), *gradient = leaving + chunk.state(scan);
    const float skip = to_f32(d[chunk.head]);
    for (u32 at = threadIdx.x; at < CHUNK * CHUNK; at += THREADS) {
        const u32 i = at / CHUNK, j = at % CHUNK;
        float score = 0.0f, product = 0.0f;
        if (i < chunk.count && j <= i && j >= chunk.first[i]) {
            score = dot(chunk.c(i), chunk.b(j), states);
            product = dot(dys + u64(i) * chunk.x_columns, chunk.x(j), width);
        }
        scores[i][j] = score;
        products[i][j] = product;
    }
    // The state's part in each token: with its output's gradient, and the gradient's with its input.
    for (u32 i = warp; i < chunk.count; i += THREADS / WARP) {
        float of_output = 0.0f, of_input = 0.0f, of_skip = 0.0f;
        for (u32 k = lane; k < width; k += WARP) {
            const float g = to_f32(dys[u64(i) * chunk.x_columns + k]), x = to_f32(chunk.x(i)[k]);
            float from_state = 0.0f, from_gradient = 0.0f;
            for (u32 n = 0; n < states; n++) {
                from_gradient = fmaf(to_f32(chunk.b(i)[n]), gradient[n * width + k], from_gradient);
                if (chunk.sees[i]) from_state = fmaf(to_f32(chunk.c(i)[n]), state[n * width + k], from_state);
            }
            of_output = fmaf(g, from_state, of_output);
            of_input = fmaf(x, from_gradient, of_input);
            of_skip = fmaf(g, x, of_skip);
        }
        of_output = warp_sum(of_output);
        of_input = warp_sum(of_input);
        of_skip = warp_sum(of_skip);
        if (lane == 0) {
            seen[i] = chunk.enters(i) * of_output;
            through[i] = chunk.leaves(i) * of_input;
            skips[i] = of_skip;
        }
    }
    float kept = 0.0f;
    if (chunk.sees[chunk.count - 1])
        for (u32 at = threadIdx.x; at < states * width; at += THREADS)
            kept = fmaf(state[at], gradient[at], kept);
    kept = warp_sum(kept);
    if (lane == 0) kept_sum[warp] = kept;
    __syncthreads();
    if (threadIdx.x < chunk.count) {
        const u32 i = threadIdx.x;
        float as_output = 0.0f, as_input = 0.0f;
        for (u32 j = chunk.first[i]; j <= i; j++)
            as_output = fmaf(scores[i][j] * products[i][j] * expf(chunk.log_decay[i] - chunk.log_decay[j]),
                             chunk.step[j], as_output);
        for (u32 j = i; j < chunk.count; j++)
            if (chunk.first[j] <= i)
                as_input = fmaf(scores[j][i] * products[j][i], expf(chunk.log_decay[j] - chunk.log_decay[i]),
                                as_input);
        dstep[i] = as_input + through[i];
        dlog[i] = as_output + seen[i] - chunk.step[i] * dstep[i];
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < CHUNK * CHUNK; at += THREADS) {
        const u32 i = at / CHUNK, j = at % CHUNK;
        if (i < chunk.count && j <= i && j >= chunk.first[i]) {
            const float factor = expf(chunk.log_decay[i] - chunk.log_decay[j]) * chunk.step[j];
            scores[i][j] *= factor;
            products[i][j] *= factor;
        }
    }
    if (threadIdx.x == 0) {
        const u32 last = chunk.count - 1;
        float sum = 0.0f;
        for (u32 w = 0; w < THREADS / WARP; w++) sum += kept_sum[w];
        dlog[last] += chunk.enters(last) * sum;
        for (u32 i = 0; i < chunk.count; i++) dlog[last] = fmaf(chunk.step[i], through[i], dlog[last]);
        const float a = -expf(to_f32(a_log[chunk.head])), shift = to_f32(bias[chunk.head]);
        float later = 0.0f, da = 0.0f, dd = 0.0f, dbias = 0.0f;
        for (u32 number = 0; number < chunk.count; number++) {
            const u32 i = last - number;
            const u64 at = (chunk.row + i) * scan.heads + chunk.head;
            later += dlog[i];
            da = fmaf(chunk.step[i], later, da);
            dd += skips[i];
            const float raw = to_f32(dt[at]) + shift, plain = softplus(raw);
            const bool passes = plain > scan.low && plain < scan.high;
            const float draw = passes ? fmaf(a, later, dstep[i]) / (1.0f + expf(-raw)) : 0.0f;
            dbias += draw;
            ddt[at] = from_f32<T>(draw);
        }
        float *to = weights + (u64(blockIdx.z) * scan.chunks + blockIdx.x) * 3 * scan.heads + chunk.head;
        to[0] = da * a;
        to[scan.heads] = dd;
        to[2 * scan.heads] = dbias;
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < chunk.count * width; at += THREADS) {
        const u32 j = at / width, k = at % width;
        float sum = skip * to_f32(dys[u64(j) * chunk.x_columns + k]);
        for (u32 i = j; i < chunk.count; i++)
            if (chunk.first[i] <= j) sum = fmaf(scores[i][j], to_f32(dys[u64(i) * chunk.x_columns + k]), sum);
        float later = 0.0f;
        for (u32 n = 0; n < states; n++) later = fmaf(to_f32(chunk.b(j)[n]), gradient[n * width + k], later);
        sum = fmaf(chunk.leaves(j) * chunk.step[j], later, sum);
        dxbc[(chunk.row + j) * chunk.stride + chunk.head * width + k] = from_f32<T>(sum);
    }
    for (u32 at = threadIdx.x; at < chunk.count * states; at += THREADS) {
        const u32 i = at / states, n = at % states;
        float of_b = 0.0f, of_c = 0.0f, later = 0.0f, before = 0.0f;
        for (u32 j = i; j < chunk.count; j++)
            if (chunk.first[j] <= i) of_b = fmaf(products[j][i], to_f32(chunk.c(j)[n]), of_b);
        for (u32 j = chunk.first[i]; j <= i; j++) of_c = fmaf(products[i][j], to_f32(chunk.b(j)[n]), of_c);
        for (u32 k = 0; k < width; k++) later = fmaf(gradient[n * width + k], to_f32(chunk.x(i)[k]), later);
        of_b = fmaf(chunk.leaves(i) * chunk.step[i], later, of_b);
        if (chunk.sees[i]) {
            for (u32 k = 0; k < width; k++)
                before = fmaf(state[n * width + k], to_f32(dys[u64(i) * chunk.x_columns + k]), before);
            of_c = fmaf(chunk.enters(i), before, of_c);
        }
        float *to = parts + ((chunk.row + i) * scan.heads + chunk.head) * 2 * states + n;
        to[0] = of_b;
        to[states] = of_c;
    }
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
    KERNEL __launch_bounds__(THREADS)                                                                        \
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
