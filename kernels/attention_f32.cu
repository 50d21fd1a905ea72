// Causal attention in f32 without tensor cores, for head widths up to HEAD_DIM (32, 64, 128 or 256); columns
// from the head width up to HEAD_DIM are zeros in shared memory. Same operands, algorithm and two-sided
// backward pass as attention.cu.
//
// Shapes: as in attention.cu. Letters as in CONTRIBUTING.md.
#include "attention_masks.cuh"

#define D HEAD_DIM
// TILE: positions of a tile. Four tiles fit in 99 KiB of shared memory, which every GPU from sm_80 on has.
#define EACH \
    (TILE / 16)  // thread (y, x) of 16 by 16 makes rows y * EACH.., columns x + 16 * j of a tile of scores
#define COLUMNS (D / 16)  // ... and of an output the same rows, columns x * VECTOR + 16 * VECTOR * j
#define VECTOR (COLUMNS < 4 ? COLUMNS : 4)
#define LINE (D + 4)  // floats from row to row: 16-byte reads of one column in 8 rows hit all banks
#define SCORES (TILE + 4)

// With VALUES, heads of values and of the output are VALUE_WIDTH wide, and rows of values V_STRIDE apart.
#ifdef VALUES
#define VALUE_WIDTH value_width
#define V_STRIDE v_stride
#define VALUES_PARAMETERS , u32 value_width, u32 v_stride
#else
#define VALUE_WIDTH head_width
#define V_STRIDE kv_stride
#define VALUES_PARAMETERS
#endif

// Queries, keys, values or dy of one head of one sequence.
struct Source {
    const float *from;
    u64 stride;
};

__device__ __forceinline__ void load_tile(float (*tile)[LINE], Source source, u32 first, u32 time,
                                          u32 head_width) {
    for (u32 index = threadIdx.x; index < TILE * D; index += THREADS) {
        const u32 row = index / D, column = index % D;
        const bool inside = first + row < time && column < head_width;
        tile[row][column] = inside ? source.from[u64(first + row) * source.stride + column] : 0.0f;
    }
}

// s[i][j] = a[y * EACH + i] . b[x + 16 * j].
__device__ __forceinline__ void times_transposed(float (&s)[EACH][EACH], const float (*a)[LINE],
                                                 const float (*b)[LINE], u32 x, u32 y) {
#pragma unroll
    for (u32 i = 0; i < EACH; ++i)
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) s[i][j] = 0.0f;
#pragma unroll 4
    for (u32 k = 0; k < D; k += 4) {
        Vector<float, 4> left[EACH], right[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
            left[i] = load<4>(&a[y * EACH + i][k]), right[i] = load<4>(&b[x + 16 * i][k]);
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
#pragma unroll
            for (u32 j = 0; j < EACH; ++j)
#pragma unroll
                for (u32 part = 0; part < 4; ++part)
                    s[i][j] = fmaf(left[i].at[part], right[j].at[part], s[i][j]);
    }
}

// acc[i] += sum over k of p[y * EACH + i][k] * b[k].
__device__ __forceinline__ void times(float (&acc)[EACH][COLUMNS], const float (*p)[SCORES],
                                      const float (*b)[LINE], u32 x, u32 y) {
#pragma unroll 2
    for (u32 k = 0; k < TILE; k += 4) {
        Vector<float, 4> left[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) left[i] = load<4>(&p[y * EACH + i][k]);
#pragma unroll
        for (u32 part = 0; part < 4; ++part)
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j += VECTOR) {
                const auto right = load<VECTOR>(&b[k + part][x * VECTOR + 16 * j]);
#pragma unroll
                for (u32 i = 0; i < EACH; ++i)
#pragma unroll
                    for (u32 v = 0; v < VECTOR; ++v)
                        acc[i][j + v] = fmaf(left[i].at[part], right.at[v], acc[i][j + v]);
            }
    }
}

// Stores rows y * EACH.. of a block, each times its factor.
__device__ __forceinline__ void store_rows(float *to, u64 stride, u32 first, u32 time, u32 head_width,
                                           const float (&acc)[EACH][COLUMNS], const float (&factor)[EACH],
                                           u32 x, u32 y) {
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        const u32 row = first + y * EACH + i;
        if (row >= time) continue;
#pragma unroll
        for (u32 j = 0; j < COLUMNS; ++j) {
            const u32 column = x * VECTOR + j / VECTOR * 16 * VECTOR + j % VECTOR;
            if (column < head_width) to[u64(row) * stride + column] = acc[i][j] * factor[i];
        }
    }
}

// Sums and maxima over the 16 threads of a row.
__device__ __forceinline__ float row_max(float value) {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, offset));
    return value;
}
__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

// Grid [ceil(time / TILE), heads, batch], 256 threads, shared (3 * TILE) * LINE + TILE * SCORES floats. Long
// blocks first. Floor: 2 * batch * heads * time^2 * head_width FLOP on the f32 units (the causal half).
KERNEL __launch_bounds__(THREADS)
    forward_f32(float *__restrict__ out, float *__restrict__ logsumexp, const float *__restrict__ q,
                      const float *__restrict__ k, const float *__restrict__ v, u32 time, u32 heads,
                      u32 group, u32 q_stride, u32 kv_stride, u32 head_width, float scale,
                      MASKS_PARAMETERS, const float *__restrict__ sinks VALUES_PARAMETERS) {
    const Masks masks = MASKS;
    extern __shared__ __align__(16) float memory[];
    float (*queries)[LINE] = reinterpret_cast<float (*)[LINE]>(memory), (*keys)[LINE] = queries + TILE,
          (*values)[LINE] = keys + TILE, (*p)[SCORES] = reinterpret_cast<float (*)[SCORES]>(values + TILE);
    const u32 x = threadIdx.x % 16, y = threadIdx.x / 16, block = gridDim.x - 1 - blockIdx.x,
              first = block * TILE;
    const u32 width = heads * VALUE_WIDTH, head = blockIdx.y;
    const u64 sequence = u64(blockIdx.z) * time;
    const u64 kv_start = u64(blockIdx.z) * ROWS_OF_KEYS * kv_stride + head / group * head_width;
    const u64 v_start = u64(blockIdx.z) * ROWS_OF_KEYS * V_STRIDE + head / group * VALUE_WIDTH;
    const u32 limit = masks.position + time, last = (min(masks.position + first + TILE, limit) - 1) / TILE;
    load_tile(queries, {q + sequence * q_stride + head * head_width, q_stride}, first, time, head_width);
    float acc[EACH][COLUMNS] = {}, largest[EACH], total[EACH] = {};
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) largest[i] = -__int_as_float(0x7f800000);
    u32 first_key[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) first_key[i] = masks.first_key(blockIdx.z, first + y * EACH + i, time);
    for (u32 tile = masks.first_key(blockIdx.z, first, time) / TILE; tile <= last; ++tile) {
        __syncthreads();
        load_tile(keys, {k + kv_start, kv_stride}, tile * TILE, limit, head_width);
        load_tile(values, {v + v_start, V_STRIDE}, tile * TILE, limit, VALUE_WIDTH);
        __syncthreads();
        float s[EACH][EACH];
        times_transposed(s, queries, keys, x, y);
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            float here = largest[i];
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                const u32 key = tile * TILE + x + 16 * j;
                const bool hidden = key > masks.position + first + y * EACH + i || key < first_key[i];
                if (masks.has_cap()) s[i][j] = masks.capped(s[i][j], scale);
                s[i][j] = hidden ? -__int_as_float(0x7f800000) : s[i][j] * scale;
                here = fmaxf(here, s[i][j]);
            }
            here = row_max(here);
            // For rows without a visible score so far, any finite number can be used.
            const float base = here == -__int_as_float(0x7f800000) ? 0.0f : here;
            const float shrink = expf(largest[i] - base);
            largest[i] = here;
            total[i] *= shrink;
#pragma unroll
            for (u32 j = 0; j < COLUMNS; ++j) acc[i][j] *= shrink;
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) total[i] += p[y * EACH + i][x + 16 * j] = expf(s[i][j] - base);
        }
        if (masks.dropout.threshold) {
            const u32 line = blockIdx.z * heads + head;
#pragma unroll 1
            for (u32 i = 0; i < EACH; ++i)
#pragma unroll 1
                for (u32 j = 0; j < EACH; ++j)
                    p[y * EACH + i][x + 16 * j] *=
                        masks.factor(line, first + y * EACH + i, tile * TILE + x + 16 * j);
        }
        // One half of one warp writes and reads a row of p.
        __syncwarp();
        times(acc, p, values, x, y);
    }
    float factor[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        float sum = row_sum(total[i]);
        factor[i] = 1.0f / sum;
        if (IS_GENERAL && sinks) {
            // A sink is a score without a value.
            const float sink = sinks[head], most = fmaxf(largest[i], sink), shrink = expf(largest[i] - most);
            sum = sum * shrink + expf(sink - most);
            largest[i] = most;
            factor[i] = shrink / sum;
        }
        const u32 row = first + y * EACH + i;
        if (x == 0 && row < time)
            logsumexp[(u64(blockIdx.z) * heads + head) * time + row] = largest[i] + logf(sum);
    }
    store_rows(out + sequence * width + head * VALUE_WIDTH, width, first, time, VALUE_WIDTH, acc, factor, x,
               y);
}

// delta[batch, head, time] = sum over a row of dy * out. Grid [ceil(batch * time * heads / 8)], 256 threads:
// a warp per row. Floor: 8 * batch * time * width bytes at memory speed.
KERNEL __launch_bounds__(THREADS)
    delta_f32(float *__restrict__ delta, const float *__restrict__ dy, const float *__restrict__ out,
                    u32 batch, u32 time, u32 heads, u32 head_width) {
    const u64 row = u64(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    if (row >= u64(batch) * time * heads) return;
    float sum = 0.0f;
    for (u32 column = threadIdx.x % WARP; column < head_width; column += WARP)
        sum = fmaf(dy[row * head_width + column], out[row * head_width + column], sum);
    sum = warp_sum(sum);
    const u64 position = row / heads, head = row % heads;
    if (threadIdx.x % WARP == 0) delta[(position / time * heads + head) * time + position % time] = sum;
}

// The tiles of a backward pass in shared memory.
struct Tiles {
    float (*rows[2])[LINE], (*columns[2])[LINE], (*scores)[SCORES];
    __device__ explicit Tiles(float *memory) {
        rows[0] = reinterpret_cast<float (*)[LINE]>(memory);
        rows[1] = rows[0] + TILE, columns[0] = rows[1] + TILE, columns[1] = columns[0] + TILE;
        scores = reinterpret_cast<float (*)[SCORES]>(columns[1] + TILE);
    }
};

// Rows of the block are keys (KEYS) or queries, columns the others; [0] are keys or queries, [1] values or
// dy. acc[0] += ds * columns[0], and with KEYS acc[1] += p * columns[1].
template <bool KEYS>
__device__ __forceinline__ void backward(float (&acc)[KEYS ? 2 : 1][EACH][COLUMNS], const Tiles &tiles,
                                         const Source (&rows)[2], const Source (&columns)[2],
                                         const float *logsumexp, const float *delta, u32 block, u32 time,
                                         u32 head_width, u32 other_width, float scale, const Masks &masks,
                                         u32 sequence, u32 line) {
    const u32 x = threadIdx.x % 16, y = threadIdx.x / 16;
    const u32 position = masks.position, limit = position + time, first = block * TILE;
    for (u32 i = 0; i < 2; ++i)
        load_tile(tiles.rows[i], rows[i], first, KEYS ? limit : time, i == 0 ? head_width : other_width);
    const u32 begin =
        (KEYS ? max(first, position) - position : masks.first_key(sequence, first, time)) / TILE;
    const u32 end = KEYS ? masks.end_tile(sequence, begin, TILE, first + TILE, time)
                         : (position + min(first + TILE, time) - 1) / TILE + 1;
    for (u32 tile = begin; tile < end; ++tile) {
        __syncthreads();
        for (u32 i = 0; i < 2; ++i)
            load_tile(tiles.columns[i], columns[i], tile * TILE, KEYS ? time : limit,
                      i == 0 ? head_width : other_width);
        __syncthreads();
        float p[EACH][EACH], ds[EACH][EACH];
        times_transposed(p, tiles.rows[0], tiles.columns[0], x, y);
        times_transposed(ds, tiles.rows[1], tiles.columns[1], x, y);
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
#pragma unroll
            for (u32 j = 0; j < EACH; ++j) {
                const u32 row = block * TILE + y * EACH + i, column = tile * TILE + x + 16 * j;
                const u32 query = KEYS ? column : row, key = KEYS ? row : column;
                const bool visible =
                    query < time && key <= position + query && key >= masks.first_key(sequence, query, time);
                const float factor = masks.dropout.threshold ? masks.factor(line, query, key) : 1.0f;
                if (masks.has_cap()) p[i][j] = masks.capped(p[i][j], scale);
                const float slope = masks.has_cap() ? masks.slope(p[i][j] * scale) : 1.0f;
                p[i][j] = visible ? expf(p[i][j] * scale - logsumexp[query]) : 0.0f;
                ds[i][j] = visible ? p[i][j] * (ds[i][j] * factor - delta[query]) : 0.0f;
                if (masks.has_cap()) ds[i][j] *= slope;
                p[i][j] *= factor;
            }
        // One half of one warp writes and reads a row of scores.
        auto share = [&](const float (&scores)[EACH][EACH]) {
            __syncwarp();
#pragma unroll
            for (u32 i = 0; i < EACH; ++i)
#pragma unroll
                for (u32 j = 0; j < EACH; ++j) tiles.scores[y * EACH + i][x + 16 * j] = scores[i][j];
            __syncwarp();
        };
        if constexpr (KEYS) {
            share(p);
            times(acc[1], tiles.scores, tiles.columns[1], x, y);
        }
        share(ds);
        times(acc[0], tiles.scores, tiles.columns[0], x, y);
    }
}

// Both: 256 threads, shared (4 * TILE) * LINE + TILE * SCORES floats. Long blocks first.
// Floors: 4 matmuls for keys and values, 3 for queries, each batch * heads * time^2 * head_width FLOP.
#define BACKWARD_OPERANDS                                                                                  \
    const float *__restrict__ dy, const float *__restrict__ q, const float *__restrict__ k,                \
        const float *__restrict__ v, const float *__restrict__ logsumexp, const float *__restrict__ delta, \
        u32 time, u32 heads, u32 group, u32 q_stride, u32 kv_stride, u32 head_width, float scale,          \
        MASKS_PARAMETERS VALUES_PARAMETERS

// Grid [ceil((position + time) / TILE), heads / members, batch]: a block adds `members` query heads of a key
// and value head in their order. dk and dv have the layout of k and v, or if that is less than `group` of
// attention_parts.cu.
KERNEL __launch_bounds__(THREADS)
    backward_key_value_f32(float *__restrict__ dk, float *__restrict__ dv, u32 members, BACKWARD_OPERANDS) {
    extern __shared__ __align__(16) float memory[];
    const u32 width = heads * VALUE_WIDTH, block = blockIdx.x;
    const u64 sequence = u64(blockIdx.z) * time;
    const u32 key_head = blockIdx.y * members / group;
    const u64 start = u64(blockIdx.z) * ROWS_OF_KEYS * kv_stride + key_head * head_width;
    const u64 v_start = u64(blockIdx.z) * ROWS_OF_KEYS * V_STRIDE + key_head * VALUE_WIDTH;
    const Source rows[2] = {{k + start, kv_stride}, {v + v_start, V_STRIDE}};
    float acc[2][EACH][COLUMNS] = {}, factor[2][EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) factor[0][i] = scale, factor[1][i] = 1.0f;
    for (u32 member = 0; member < members; ++member) {
        const u32 head = blockIdx.y * members + member;
        const u64 line = (u64(blockIdx.z) * heads + head) * time;
        const Source columns[2] = {{q + sequence * q_stride + head * head_width, q_stride},
                                   {dy + sequence * width + head * VALUE_WIDTH, width}};
        // Other warps may still read the tiles of the previous head.
        if (member > 0) __syncthreads();
        backward<true>(acc, Tiles(memory), rows, columns, logsumexp + line, delta + line, block, time,
                       head_width, VALUE_WIDTH, scale, MASKS, blockIdx.z, blockIdx.z * heads + head);
    }
    const u32 x = threadIdx.x % 16, y = threadIdx.x / 16;
    const u32 limit = (IS_GENERAL ? position : 0) + time;
    const bool whole = members == group;
    const u64 part = u64(blockIdx.z) * limit * gridDim.y + blockIdx.y;
    store_rows(dk + (whole ? start : part * head_width), whole ? kv_stride : gridDim.y * head_width,
               block * TILE, limit, head_width, acc[0], factor[0], x, y);
    store_rows(dv + (whole ? v_start : part * VALUE_WIDTH), whole ? V_STRIDE : gridDim.y * VALUE_WIDTH,
               block * TILE, limit, VALUE_WIDTH, acc[1], factor[1], x, y);
}

// Grid [ceil(time / TILE), heads, batch].
KERNEL __launch_bounds__(THREADS) backward_query_f32(float *__restrict__ dq, BACKWARD_OPERANDS) {
    extern __shared__ __align__(16) float memory[];
    const u32 width = heads * VALUE_WIDTH, head = blockIdx.y, block = gridDim.x - 1 - blockIdx.x;
    const u64 sequence = u64(blockIdx.z) * time, line = (u64(blockIdx.z) * heads + head) * time;
    const u64 start = sequence * q_stride + head * head_width;
    const u64 kv_start = u64(blockIdx.z) * ROWS_OF_KEYS * kv_stride + head / group * head_width;
    const u64 v_start = u64(blockIdx.z) * ROWS_OF_KEYS * V_STRIDE + head / group * VALUE_WIDTH;
    const Source rows[2] = {{q + start, q_stride}, {dy + sequence * width + head * VALUE_WIDTH, width}};
    const Source columns[2] = {{k + kv_start, kv_stride}, {v + v_start, V_STRIDE}};
    float acc[1][EACH][COLUMNS] = {}, factor[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) factor[i] = scale;
    backward<false>(acc, Tiles(memory), rows, columns, logsumexp + line, delta + line, block, time,
                    head_width, VALUE_WIDTH, scale, MASKS, blockIdx.z, blockIdx.z * heads + head);
    store_rows(dq + start, q_stride, block * TILE, time, head_width, acc[0], factor, threadIdx.x % 16,
               threadIdx.x / 16);
}
