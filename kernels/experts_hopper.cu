// Matmuls of groups of rows with Hopper's warpgroup matmuls (wgmma, sm_90a), in half precision, or in FP8
// where FP8 is defined. For other architectures there is experts_linear.cu: the same sums, with results that
// differ by rounding only.
//
// A block is one producer warpgroup, whose first thread lets the bulk copy engine fill a ring of stages, and
// two consumer warpgroups. One block a multiprocessor lives for the whole launch and takes tiles of ROWS x
// COLUMNS results in turn, in bands of a few rows of tiles, so that L2 serves the operands that blocks share;
// each consumer has half of a tile's rows. The tiles follow from the offsets of groups on the device. Every
// result is a sum in steps of DEPTH from the first element on, so that it depends on neither the other rows
// nor the routing.
//
// Shapes: x_si, y_so and their gradients; w_eoi, bias_eo. Letters as in CONTRIBUTING.md.
#include "hopper.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define CONSUMERS 2
#define GROUP 128  // threads of a warpgroup
#define BLOCK ((CONSUMERS + 1) * GROUP)
#define DEPTH_BYTES 128
#ifdef FP8
#define ELEMENT 1
#else
#define ELEMENT 2
#endif
#define DEPTH (DEPTH_BYTES / ELEMENT)
#define OWN_ROWS (ROWS / CONSUMERS)
#define PARTS (OWN_ROWS / 64)  // matmuls of 64 rows of a consumer
#define LEFT (ROWS * DEPTH_BYTES)
#define RIGHT (COLUMNS * DEPTH_BYTES)
#define STAGE (LEFT + RIGHT)
// Rows of tiles of a band.
#define BAND 16
// Columns that a warp stores at once, in a buffer whose rows spread over all banks.
#define STORED 64
#define BUFFER_ROW (STORED * 2 + 16)
#define BUFFER (16 * BUFFER_ROW)
// What a consumer gives the copy engine to store at once: 64 rows of 128 bytes, in one of two boxes.
#define BOX (64 * 128)

extern __shared__ u8 shared_memory[];

// A tile: rows or outputs from `row`, columns from `column` on, of an expert whose rows are begin to end.
struct Tile {
    u32 expert, begin, end, row, column;
};

// The tiles of this block of threads, in the order of experts.
struct Tiles {
    const u32 *offsets;
    u32 experts, across, down, next, expert = 0, before = 0;

    // `down`: tiles of rows of each expert, or 0 if they follow from its rows.
    __device__ Tiles(const u32 *offsets, u32 experts, u32 across, u32 down)
        : offsets(offsets), experts(experts), across(across), down(down), next(blockIdx.x) {}
    __device__ __forceinline__ bool take(Tile &tile) {
        for (; expert < experts; ++expert) {
            const u32 begin = offsets[expert], end = offsets[expert + 1];
            const u32 rows = down != 0 ? down : (end - begin + ROWS - 1) / ROWS;
            if (next - before < rows * across) {
                const u32 own = next - before, band = own / (BAND * across), at = own - band * BAND * across;
                const u32 high = min(BAND, rows - band * BAND);
                tile = {expert, begin, end, (band * BAND + at % high) * ROWS, at / high * COLUMNS};
                next += gridDim.x;
                return true;
            }
            before += rows * across;
        }
        return false;
    }
};

struct Shared {
    u32 stages, buffer, full, empty;
    const u32 *offsets;
};

__device__ __forceinline__ Shared prepare(const u32 *offsets, u32 experts) {
    const u32 start = shared_address(shared_memory), stages = (start + 1023) & ~1023u;
    Shared shared;
    shared.stages = stages;
    shared.buffer = stages + STAGES * STAGE;
    shared.full = shared.buffer + CONSUMERS * 2 * BOX;
    shared.empty = shared.full + STAGES * 8;
    u32 *own = reinterpret_cast<u32 *>(shared_memory + (shared.empty + STAGES * 8 - start));
    shared.offsets = own;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            barrier_init(shared.full + i * 8, 1);
            barrier_init(shared.empty + i * 8, CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (u32 i = threadIdx.x; i <= experts; i += BLOCK) own[i] = offsets[i];
    __syncthreads();
    return shared;
}

#include "experts_hopper_results.cuh"

// Which dimension of an operand in memory runs along the sums.
enum Along { COLUMNS_RUN, ROWS_RUN };

// A product of 64 rows and 32 bytes of depth.
template <Along A, Along B>
__device__ __forceinline__ void product_of(float (&acc)[COLUMNS / 2], u32 left, u32 right, int add) {
#ifndef FP8
    grouped_product<A == ROWS_RUN, B == ROWS_RUN>(acc, left, right, add);
#elif defined(LEFT_IS_E5M2)
    fp8_gradient_product(acc, left, right, add);
#else
    fp8_product(acc, left, right, add);
#endif
}

// acc (+)= one stage of an operand pair. An operand whose rows run along the sums has panels of 64 columns.
template <Along A, Along B>
__device__ __forceinline__ void multiply(float (&acc)[PARTS][COLUMNS / 2], u32 left, u32 right, bool add) {
#pragma unroll
    for (u32 k = 0; k < DEPTH_BYTES / 32; ++k) {
        const u32 a_step = A == COLUMNS_RUN ? AT(k * 32) : AT(k * 16 * 128);
        const u32 b_step = B == COLUMNS_RUN ? AT(k * 32) : AT(k * 16 * 128);
#pragma unroll
        for (u32 part = 0; part < PARTS; ++part)
            product_of<A, B>(acc[part], left + a_step + AT(part * 64 * 128), right + b_step, add || k > 0);
    }
}

__device__ __forceinline__ void zero_vector(u32 at) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}
// Zeros the elements of a stage from `first` on along the sums, which are those of the next expert.
template <Along A> __device__ __forceinline__ void zero_rest(u32 stage, u32 first) {
    constexpr u32 threads = CONSUMERS * GROUP;
    if (A == ROWS_RUN) {
        const u32 each = (DEPTH - first) * 8;
        for (u32 i = threadIdx.x; i < (ROWS + COLUMNS) / 64 * each; i += threads)
            zero_vector(stage + i / each * (DEPTH * 128) + first * 128 + i % each * 16);
    } else {
        // Rows of 8 vectors, which are swizzled; groups begin and end with a vector.
        for (u32 i = threadIdx.x; i < (ROWS + COLUMNS) * 8; i += threads) {
            const u32 row = i / 8, vector = i % 8;
            if (vector * 16 >= first * ELEMENT) zero_vector(stage + row * 128 + ((vector ^ row % 8) << 4));
        }
    }
}

// Starts the copy of a box of DEPTH_BYTES bytes of columns.
__device__ __forceinline__ void copy(const TensorMap &map, u32 to, u32 full, u32 column, u32 row, u32 layer) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(&map), "r"(full), "r"(column), "r"(row), "r"(layer)
                 : "memory");
}

// The matmuls: y = x * w^T, dx = dy * w and dw = dy^T * x. In FP8 the columns of all operands run along the
// sums: w is transposed for dx, dy and x are for dw.
enum Matmul { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT };

// Starts the copies of a stage from element `k` of the sums on.
template <Matmul M>
__device__ __forceinline__ void fill(const TensorMap &left_map, const TensorMap &right_map, u32 to, u32 full,
                                     const Tile &tile, u32 k, u32 sum) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(STAGE) : "memory");
    const u32 right = to + LEFT;
#ifdef FP8
    if (M == FORWARD) {
        copy(left_map, to, full, k, tile.begin + tile.row, 0);
        copy(right_map, right, full, k, tile.column, tile.expert);
    } else if (M == BACKWARD_INPUT) {
        copy(left_map, to, full, k, tile.begin + tile.row, 0);
        copy(right_map, right, full, tile.expert * sum + k, tile.column, 0);
    } else {
        copy(left_map, to, full, tile.begin + k, tile.row, 0);
        copy(right_map, right, full, tile.begin + k, tile.column, 0);
    }
#else
    if (M == BACKWARD_WEIGHT) {
#pragma unroll
        for (u32 panel = 0; panel < ROWS / 64; ++panel)
            copy(left_map, to + panel * 64 * 128, full, tile.row + panel * 64, tile.begin + k, 0);
    } else {
        copy(left_map, to, full, k, tile.begin + tile.row, 0);
    }
    if (M == FORWARD) {
        copy(right_map, right, full, k, tile.column, tile.expert);
    } else {
        const u32 row = M == BACKWARD_WEIGHT ? tile.begin + k : k;
        const u32 layer = M == BACKWARD_WEIGHT ? 0 : tile.expert;
#pragma unroll
        for (u32 panel = 0; panel < COLUMNS / 64; ++panel)
            copy(right_map, right + panel * 64 * 128, full, tile.column + panel * 64, row, layer);
    }
#endif
}

// Length of a sum: that of the rows of an expert, or `sum`.
template <Matmul M> __device__ __forceinline__ u32 length_of(const Tile &tile, u32 sum) {
    return M == BACKWARD_WEIGHT ? tile.end - tile.begin : sum;
}

template <Matmul M>
__device__ __forceinline__ void produce(const Shared &shared, Tiles &tiles, const TensorMap &left_map,
                                        const TensorMap &right_map, u32 sum) {
    RingPosition<STAGES> position;
    Tile tile;
    while (tiles.take(tile)) {
        const u32 length = length_of<M>(tile, sum);
        for (u32 k = 0; k < length; k += DEPTH) {
            wait(shared.empty + position.index * 8, position.phase ^ 1);
            fill<M>(left_map, right_map, shared.stages + position.index * STAGE,
                    shared.full + position.index * 8, tile, k, sum);
            position.next();
        }
    }
}

// acc = the sum of a tile, whose stages are released as they are read.
template <Matmul M, Along A, Along B>
__device__ __forceinline__ void sum_tile(float (&acc)[PARTS][COLUMNS / 2], const Shared &shared,
                                         RingPosition<STAGES> &position, u32 length, u32 own,
                                         bool is_idle) {
    constexpr u32 LEFT_PANEL = A == ROWS_RUN ? 64 * 8 << 16 : 0;
    constexpr u32 RIGHT_PANEL = B == ROWS_RUN ? 64 * 8 << 16 : 0;
    u32 last = 0;
    for (u32 k = 0; k < length; k += DEPTH) {
        const u32 stage = shared.stages + position.index * STAGE;
        wait(shared.full + position.index * 8, position.phase);
        if (M == BACKWARD_WEIGHT && length - k < DEPTH) {
            zero_rest<A>(stage, length - k);
            publish_stores();
            meet(1, CONSUMERS * GROUP);
        }
        const u32 left = AT(stage + own * 128) | LEFT_PANEL, right = AT(stage + LEFT) | RIGHT_PANEL;
#ifdef ADDS_STAGES
        // Sums of many products are too long for the accumulators of FP8 matmuls.
        float part[PARTS][COLUMNS / 2];
        products_begin();
        multiply<A, B>(part, left, right, false);
        products_commit();
        products_wait<0>();
#pragma unroll
        for (u32 i = 0; i < PARTS; ++i) {
            pin(part[i]);
#pragma unroll
            for (u32 j = 0; j < COLUMNS / 2; ++j) acc[i][j] += part[i][j];
        }
        if (threadIdx.x % GROUP == 0) arrive(shared.empty + position.index * 8);
#else
        if (is_idle) {
            // Warps without matmuls do not wait for each other. One that is a round behind misses a phase,
            // and waits forever.
            meet(2 + threadIdx.x / GROUP, GROUP);
            if (threadIdx.x % GROUP == 0) arrive(shared.empty + position.index * 8);
        } else {
            products_begin();
            multiply<A, B>(acc, left, right, k > 0);
            products_commit();
            // The stage before has been read.
            products_wait<1>();
            if (k > 0 && threadIdx.x % GROUP == 0) arrive(shared.empty + last * 8);
        }
#endif
        last = position.index;
        position.next();
    }
#ifndef ADDS_STAGES
    products_wait<0>();
#pragma unroll
    for (u32 part = 0; part < PARTS; ++part) pin(acc[part]);
    if (!is_idle && length > 0 && threadIdx.x % GROUP == 0) arrive(shared.empty + last * 8);
#endif
}

// `rows`: those of a result of BACKWARD_WEIGHT, which the copy engine stores in `result`; sums in half
// precision are added by threads, to round once.
template <Matmul M, Along A, Along B, typename Out>
__device__ __forceinline__ void consume(const Shared &shared, Tiles &tiles, const Ending &ending,
                                        const TensorMap &result, Out *out, u32 sum, u32 rows, u32 columns,
                                        bool accumulate) {
    const u32 consumer = uniform(threadIdx.x / GROUP);
    const u32 own = consumer * OWN_ROWS;
    const u32 buffer = shared.buffer + threadIdx.x / WARP * BUFFER;
    const u32 boxes = shared.buffer + consumer * 2 * BOX;
    bool is_second = false;
    RingPosition<STAGES> position;
    Tile tile;
    while (tiles.take(tile)) {
        const u32 length = length_of<M>(tile, sum);
        float acc[PARTS][COLUMNS / 2];
#pragma unroll
        for (u32 part = 0; part < PARTS; ++part)
#pragma unroll
            for (u32 i = 0; i < COLUMNS / 2; ++i) acc[part][i] = 0.0f;
        const u32 rows_left = (M == BACKWARD_WEIGHT ? rows : tile.end - tile.begin) - tile.row;
        const bool is_idle = rows_left <= own;
        sum_tile<M, A, B>(acc, shared, position, length, own, is_idle);
        if (is_idle) continue;
        Ending its = ending;
        if (M == FORWARD) {
            if (its.bias) its.bias += u64(tile.expert) * columns;
            its.right += u64(tile.expert) * columns * its.right_step;
        }
        if (M == BACKWARD_WEIGHT && (sizeof(Out) == 4 || !accumulate)) {
#pragma unroll
            for (u32 part = 0; part < PARTS; ++part)
                store_boxes<Out>(result, acc[part], its, tile, tile.row + own + part * 64, rows, columns,
                                 boxes, is_second, consumer, accumulate);
            continue;
        }
        Out *to = out + (M == BACKWARD_WEIGHT ? u64(tile.expert) * rows * columns : 0);
        const u32 base = (M == BACKWARD_WEIGHT ? 0 : tile.begin) + tile.row + own;
        const u32 end = M == BACKWARD_WEIGHT ? rows : tile.end;
#pragma unroll
        for (u32 part = 0; part < PARTS; ++part)
            store_tile(to, acc[part], its, base + part * 64 + threadIdx.x % GROUP / WARP * 16, end,
                       tile.column, columns, buffer, accumulate);
    }
    if (M == BACKWARD_WEIGHT && threadIdx.x % GROUP == 0) wait_boxes<0>();
}

template <Matmul M, typename Out>
__device__ __forceinline__ void run(const TensorMap &left_map, const TensorMap &right_map, const u32 *offsets,
                                    const Ending &ending, const TensorMap &result, Out *out, u32 experts,
                                    u32 outputs, u32 inputs, bool accumulate) {
#ifdef FP8
    constexpr Along A = COLUMNS_RUN, B = COLUMNS_RUN;
#else
    constexpr Along A = M == BACKWARD_WEIGHT ? ROWS_RUN : COLUMNS_RUN;
    constexpr Along B = M == FORWARD ? COLUMNS_RUN : ROWS_RUN;
#endif
    const u32 columns = M == FORWARD ? outputs : inputs, sum = M == FORWARD ? inputs : outputs;
    const Shared shared = prepare(offsets, experts);
    const u32 across = (columns + COLUMNS - 1) / COLUMNS;
    Tiles tiles(shared.offsets, experts, across, M == BACKWARD_WEIGHT ? (outputs + ROWS - 1) / ROWS : 0);
    if (threadIdx.x >= CONSUMERS * GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == CONSUMERS * GROUP) produce<M>(shared, tiles, left_map, right_map, sum);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<M, A, B>(shared, tiles, ending, result, out, sum, outputs, columns, accumulate);
    }
}

#ifdef FP8
#define FACTORS                                                                                             \
    const float *__restrict__ left_factors, const float *__restrict__ right_factors, u32 left_step,         \
        u32 right_step,
#define ENDING(bias) {bias, left_factors, right_factors, left_step, right_step}
#else
#define FACTORS
#define ENDING(bias) {bias, nullptr, nullptr, 0, 0}
#endif

// y[rows of e, out] = x[rows of e, in] * w[e]^T + bias[e].
#define FORWARD_KERNEL(NAME, Out)                                                                           \
    KERNEL __launch_bounds__(BLOCK, 1)                                                                      \
        forward##NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,             \
                      FACTORS const Half *__restrict__ bias, const u32 *__restrict__ offsets,               \
                      Out *__restrict__ y, u32 experts, u32 outputs, u32 inputs) {                          \
        run<FORWARD>(x, w, offsets, ENDING(bias), x, y, experts, outputs, inputs, false);                   \
    }
// dx[rows of e, in] = dy[rows of e, out] * w[e].
#define INPUT_KERNEL(NAME, Out)                                                                             \
    KERNEL __launch_bounds__(BLOCK, 1)                                                                      \
        backward_input##NAME(const __grid_constant__ TensorMap dy, const __grid_constant__ TensorMap w,     \
                             FACTORS const u32 *__restrict__ offsets, Out *__restrict__ dx, u32 experts,    \
                             u32 outputs, u32 inputs) {                                                     \
        run<BACKWARD_INPUT>(dy, w, offsets, ENDING(nullptr), dy, dx, experts, outputs, inputs, false);      \
    }
// dw[e] (+)= dy[rows of e, out]^T * x[rows of e, in]; `matrices` are those of dw.
#define WEIGHT_KERNEL(NAME, Out)                                                                            \
    KERNEL __launch_bounds__(BLOCK, 1)                                                                      \
        backward_weight##NAME(const __grid_constant__ TensorMap dy, const __grid_constant__ TensorMap x,    \
                              const __grid_constant__ TensorMap matrices, FACTORS                           \
                              const u32 *__restrict__ offsets, Out *__restrict__ dw, u32 experts,           \
                              u32 outputs, u32 inputs, u32 accumulate) {                                    \
        run<BACKWARD_WEIGHT>(dy, x, offsets, ENDING(nullptr), matrices, dw, experts, outputs, inputs,       \
                             accumulate);                                                                   \
    }
#ifdef ADDS_STAGES
WEIGHT_KERNEL(, Half)
WEIGHT_KERNEL(_wide, float)
#else
FORWARD_KERNEL(, Half)
FORWARD_KERNEL(_wide, float)
INPUT_KERNEL(, Half)
INPUT_KERNEL(_wide, float)
#ifndef FP8
WEIGHT_KERNEL(, Half)
WEIGHT_KERNEL(_wide, float)
#endif
#endif

#endif
