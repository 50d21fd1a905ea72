// Attention of one new token of each sequence over a cache of keys and values: in chunks of CHUNK positions,
// whose results are joined in order. What a block computes depends on its own row and chunk alone. Both
// kernels are launched early; without __restrict__, no load moves before their waits.
//
// Shapes: qkv_blc and out_blc with l = 1; cache[slot][head][position][column]; documents_bl, table_lk,
// sinks_h. Letters as in CONTRIBUTING.md.
#include "early.cuh"
#include "rotary.cuh"

// LANES lanes share a key, each with N elements of every LANES * N; the other lanes of a warp take other
// keys. QUERIES query heads are computed at once from one reading of a key or value. With VALUES, value heads
// and those of the output are v_width wide, else as wide as keys. With LAST_OF_KEYS there is one key head,
// whose last v_width columns are its value, and the query heads are divided in `query` / `group` blocks.
#ifdef VALUES
#define VALUES_PARAMETERS , u32 v_width
#define VALUE_WIDTH v_width
#define ROW_PARAMETERS , u32 columns, u32 before
#define ROW_ARGUMENTS , columns, before
#else
#define VALUES_PARAMETERS
#define VALUE_WIDTH width
#define ROW_PARAMETERS
#define ROW_ARGUMENTS
#endif

// Copies the keys and values of a sequence to the first positions of a slot. Launch: a thread for N elements.
// `heads` counts key and value heads; a row of qkv has the columns of `query` heads before theirs. With
// VALUES they are either, of `columns` columns of a row after `before` ones.
template <int N, typename T>
__device__ __forceinline__ void store_rows(const T *qkv, T *slot, u32 items, u32 query, u32 heads, u32 width,
                                           u32 capacity ROW_PARAMETERS) {
    const u32 item = blockIdx.x * THREADS + threadIdx.x;
    if (item >= items) return;
    const u32 each = width / N, column = item % each * N, head = item / each % heads;
    const u32 row = item / each / heads;
#ifdef VALUES
    const T *from = qkv + u64(row) * columns + before + head * width + column;
#else
    const T *from = qkv + (u64(row) * (query + heads) + query + head) * width + column;
#endif
    store<N>(slot + (u64(head) * capacity + row) * width + column, load<N>(from));
}

__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// An element of a head, whose first `turned` columns rotate by `angles`, rounded as a rotated head in memory.
template <typename T>
__device__ __forceinline__ float turned_element(const T *head, u32 column, const float *angles, u32 turned) {
    if (column >= turned) return to_f32(head[column]);
    const u32 half = turned / 2, at = column % half;
    Floats<1> low = {to_f32(head[at])}, high = {to_f32(head[at + half])};
    rotate<1>(low, high, {angles[at]}, {angles[at + half]});
    return to_f32(from_f32<T>(column < half ? low.at[0] : high.at[0]));
}

// The first position that a query sees, of the last `window` up to its own; 0: all of them.
__device__ __forceinline__ u32 window_start(u32 position, u32 window) {
    return window && position >= window ? position - window + 1 : 0;
}

// One chunk of one key and value head of one row, for the `group` query heads that share it: an output, the
// largest score and the sum of the exponentials of each. A chunk before the window is left out. The first
// `turned` columns of queries and keys rotate by their position's row of the table. The block whose chunk has
// the new token stores its key and value first. Floor: the keys and values of the positions before the token,
// once.
template <int N, typename T>
__device__ __forceinline__ void chunk_of_row(const T *qkv, T *cache, const u32 *documents, float *partials,
                                             u32 query, u32 group, u32 width, u32 capacity, float scale,
                                             float cap, u32 window, const float *table, u32 turned,
                                             u32 v_width) {
    extern __shared__ float shared[];
    let_next_begin();
    wait_for_earlier();
    float *queries = shared, *scores = queries + group * width, *statistics = scores + group * CHUNK;
    float *sums = statistics + 2 * group;
    const u32 chunk = blockIdx.x, head = blockIdx.y, row = blockIdx.z, heads = query / group;
    const u32 position = 0u - documents[row], first = chunk * CHUNK;
    if (position >= capacity) __trap();
    const u32 first_seen = window_start(position, window);
    if (first > position || first + CHUNK <= first_seen) return;
    const u32 keys = min(u32(CHUNK), position + 1 - first);
    const float *angles = table + u64(position) * turned;
#ifdef LAST_OF_KEYS
    const T *own = qkv + u64(row) * (query + 1) * width;
    T *all_keys = cache + u64(row) * capacity * width, *all_values = all_keys + width - v_width;
    const u32 v_stride = width;
#elif defined(VALUES)
    const u32 v_stride = v_width;
    const T *own = qkv + u64(row) * ((query + heads) * width + heads * v_width);
    T *slot = cache + u64(row) * heads * capacity * (width + v_width);
    T *all_keys = slot + u64(head) * capacity * width;
    T *all_values = slot + u64(heads) * capacity * width + u64(head) * capacity * v_width;
#else
    const T *own = qkv + u64(row) * (query + 2 * heads) * width;
    T *all_keys = cache + (u64(row) * 2 * heads + head) * capacity * width;
    T *all_values = all_keys + u64(heads) * capacity * width;
    const u32 v_stride = v_width;
#endif
    for (u32 i = threadIdx.x; i < group * width; i += STRANDS)
        queries[i] = turned_element(own + (u64(head) * group + i / width) * width, i % width, angles, turned);
    if (position < first + CHUNK) {
#ifdef LAST_OF_KEYS
        // Every block of the chunk stores the same key.
        const T *key = own + u64(query) * width;
        for (u32 i = threadIdx.x; i < width; i += STRANDS) all_keys[u64(position) * width + i] = key[i];
#elif defined(VALUES)
        const T *key = own + u64(query + head) * width,
                *value = own + u64(query + heads) * width + u64(head) * v_width;
        for (u32 i = threadIdx.x; i < width; i += STRANDS)
            all_keys[u64(position) * width + i] = from_f32<T>(turned_element(key, i, angles, turned));
        for (u32 i = threadIdx.x; i < v_width; i += STRANDS)
            all_values[u64(position) * v_width + i] = value[i];
#else
        const T *key = own + u64(query + head) * width, *value = key + u64(heads) * width;
        for (u32 i = threadIdx.x; i < width; i += STRANDS) {
            all_keys[u64(position) * width + i] = from_f32<T>(turned_element(key, i, angles, turned));
            all_values[u64(position) * width + i] = value[i];
        }
#endif
    }
    __syncthreads();
    const u32 lane = threadIdx.x % LANES, strand = threadIdx.x / LANES;
    // All lanes of a warp take part in every round, so that sums meet in shuffles.
    for (u32 g = 0; g < group; g += QUERIES) {
        for (u32 start = 0; start < keys; start += STRANDS / LANES) {
            const u32 key = start + strand;
            float sum[QUERIES] = {};
            if (key < keys) {
                const T *from = all_keys + u64(first + key) * width;
                for (u32 column = lane * N; column < width; column += LANES * N) {
                    const Floats<N> values = read<N>(from + column);
#pragma unroll
                    for (u32 q = 0; q < QUERIES; q++)
                        if (g + q < group)
#pragma unroll
                            for (int i = 0; i < N; i++)
                                sum[q] = fmaf(values.at[i], queries[(g + q) * width + column + i], sum[q]);
                }
            }
#pragma unroll
            for (u32 q = 0; q < QUERIES; q++) {
                float score = lanes_sum(sum[q]) * scale;
                if (cap) score = cap * tanhf(score / cap);
                if (first + key < first_seen) score = __uint_as_float(0xff800000u);
                if (lane == 0 && key < keys && g + q < group) scores[(g + q) * CHUNK + key] = score;
            }
        }
    }
    __syncthreads();
    for (u32 g = threadIdx.x / WARP; g < group; g += STRANDS / WARP) {
        float largest = __uint_as_float(0xff800000u), total = 0.0f;
        for (u32 i = threadIdx.x % WARP; i < keys; i += WARP) largest = fmaxf(largest, scores[g * CHUNK + i]);
        largest = warp_max(largest);
        for (u32 i = threadIdx.x % WARP; i < keys; i += WARP) {
            const float weight = expf(scores[g * CHUNK + i] - largest);
            scores[g * CHUNK + i] = weight;
            total += weight;
        }
        total = warp_sum(total);
        if (threadIdx.x % WARP == 0) {
            statistics[2 * g] = largest;
            statistics[2 * g + 1] = total;
        }
    }
    __syncthreads();
    const u32 warp = threadIdx.x / WARP, chunks = gridDim.x;
    for (u32 g = 0; g < group; g += QUERIES) {
        // Every lane goes through all rounds; those whose columns are beyond the head have zeros.
        for (u32 round = 0; round < v_width; round += LANES * N) {
            const u32 column = round + lane * N;
            Floats<N> sum[QUERIES] = {};
            if (column < v_width)
                for (u32 key = strand; key < keys; key += STRANDS / LANES) {
                    const Floats<N> values = read<N>(all_values + u64(first + key) * v_stride + column);
#pragma unroll
                    for (u32 q = 0; q < QUERIES; q++) {
                        const float weight = g + q < group ? scores[(g + q) * CHUNK + key] : 0.0f;
#pragma unroll
                        for (int i = 0; i < N; i++) sum[q].at[i] = fmaf(weight, values.at[i], sum[q].at[i]);
                    }
                }
#pragma unroll
            for (u32 q = 0; q < QUERIES; q++)
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float x = sum[q].at[i];
                    x += __shfl_xor_sync(ALL_LANES, x, LANES);
                    x += __shfl_xor_sync(ALL_LANES, x, 2 * LANES);
                    if (threadIdx.x % WARP < LANES) sums[((warp * QUERIES + q) * LANES + lane) * N + i] = x;
                }
            __syncthreads();
            for (u32 at = threadIdx.x; at < QUERIES * LANES * N; at += STRANDS) {
                const u32 q = at / (LANES * N), to = round + at % (LANES * N);
                if (g + q < group && to < v_width) {
                    float x = 0.0f;
#pragma unroll
                    for (u32 w = 0; w < STRANDS / WARP; w++) x += sums[w * QUERIES * LANES * N + at];
                    const u64 line = (u64(row) * query + head * group + g + q) * chunks + chunk;
                    partials[line * (v_width + 2) + to] = x;
                }
            }
            __syncthreads();
        }
    }
    for (u32 at = threadIdx.x; at < 2 * group; at += STRANDS) {
        const u64 line = (u64(row) * query + head * group + at / 2) * chunks + chunk;
        partials[line * (v_width + 2) + v_width + at % 2] = statistics[at];
    }
}

// Joins the chunks of one query head of one row in their order; rows without a slot are 0. `sinks`: null, or
// a score without a value of every query head. Launch: a block for every head of every row.
template <typename T>
__device__ __forceinline__ void join_chunks(const float *partials, const u32 *documents, T *out, u32 slots,
                                            u32 query, u32 width, u32 chunks, u32 window, const T *sinks) {
    const u32 head = blockIdx.x, row = blockIdx.y;
    T *to = out + (u64(row) * query + head) * width;
    let_next_begin();
    wait_for_earlier();
    if (row >= slots) {
        for (u32 i = threadIdx.x; i < width; i += STRANDS) to[i] = from_f32<T>(0.0f);
        return;
    }
    const u32 position = 0u - documents[row], used = position / CHUNK + 1;
    const u32 begin = window_start(position, window) / CHUNK;
    const float *own = partials + (u64(row) * query + head) * chunks * (width + 2);
    float largest = __uint_as_float(0xff800000u), total = 0.0f;
    for (u32 chunk = begin; chunk < used; chunk++) largest = fmaxf(largest, own[chunk * (width + 2) + width]);
    if (sinks) {
        largest = fmaxf(largest, to_f32(sinks[head]));
        total = expf(to_f32(sinks[head]) - largest);
    }
    for (u32 chunk = begin; chunk < used; chunk++) {
        const float *statistics = own + chunk * (width + 2) + width;
        total += statistics[1] * expf(statistics[0] - largest);
    }
    for (u32 i = threadIdx.x; i < width; i += STRANDS) {
        float sum = 0.0f;
        for (u32 chunk = begin; chunk < used; chunk++) {
            const float *line = own + chunk * (width + 2);
            sum = fmaf(line[i], expf(line[width] - largest), sum);
        }
        to[i] = from_f32<T>(sum / total);
    }
}

#define FOR_TYPE(NAME, T)                                                                               \
    KERNEL __launch_bounds__(THREADS)                                                                   \
        store_##NAME(const T *__restrict__ qkv, T *__restrict__ slot, u32 items, u32 query, u32 heads,  \
                     u32 width, u32 capacity, u32 vector ROW_PARAMETERS) {                              \
        if (vector)                                                                                     \
            store_rows<16 / sizeof(T)>(qkv, slot, items, query, heads, width, capacity ROW_ARGUMENTS);  \
        else                                                                                            \
            store_rows<1>(qkv, slot, items, query, heads, width, capacity ROW_ARGUMENTS);               \
    }                                                                                                   \
    KERNEL __launch_bounds__(STRANDS)                                                                   \
        chunks_##NAME(const T *qkv, T *cache, const u32 *documents, float *partials, u32 query,         \
                      u32 group, u32 width, u32 capacity, float scale, float cap, u32 window,           \
                      const float *table, u32 turned,                                                   \
                      u32 vector VALUES_PARAMETERS) {                                                   \
        if (vector)                                                                                     \
            chunk_of_row<16 / sizeof(T)>(qkv, cache, documents, partials, query, group, width, capacity, \
                                         scale, cap, window, table, turned, VALUE_WIDTH);               \
        else                                                                                            \
            chunk_of_row<1>(qkv, cache, documents, partials, query, group, width, capacity, scale, cap, \
                            window, table, turned, VALUE_WIDTH);                                        \
    }                                                                                                   \
    KERNEL __launch_bounds__(STRANDS)                                                                   \
        join_##NAME(const float *partials, const u32 *documents, T *out, u32 slots, u32 query,          \
                    u32 width, u32 chunks, u32 window, const T *sinks) {                                \
        join_chunks(partials, documents, out, slots, query, width, chunks, window, sinks);              \
    }

FOR_EACH_TYPE(FOR_TYPE)
