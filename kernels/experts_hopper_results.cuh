// The results of a tile of experts_hopper.cu, whose sizes and types it uses: factors and biases, and stores
// by threads and by the copy engine.
#pragma once
#include "hopper.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What is done to sums before they are stored: factors of FP8 operands and a bias, each null if there is
// none.
struct Ending {
    const Half *bias;
    const float *left, *right;
    u32 left_step, right_step;  // 0 if an operand has one factor

    __device__ __forceinline__ float factor_of_row(u32 row) const {
        return left ? left[row * left_step] : 1.0f;
    }
    __device__ __forceinline__ void apply(float &x, float &y, float factor, u32 column) const {
        if (left) x *= factor * right[column * right_step], y *= factor * right[(column + 1) * right_step];
        if (bias) x += to_f32(bias[column]), y += to_f32(bias[column + 1]);
    }
};

// Stores the results of a warp's 16 rows from `row` on, of which rows before `end` exist.
__device__ __forceinline__ void store_tile(float *to, const float (&acc)[COLUMNS / 2], const Ending &ending,
                                           u32 row, u32 end, u32 column, u32 columns, u32, bool accumulate) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 at = row + lane / 4 + half * 8;
        if (at >= end) continue;
        float *line = to + u64(at) * columns;
        const float factor = ending.factor_of_row(at);
#pragma unroll
        for (u32 n = 0; n < COLUMNS / 8; ++n) {
            const u32 c = column + n * 8 + lane % 4 * 2;
            if (c >= columns) continue;
            float x = acc[n * 4 + half * 2], y = acc[n * 4 + half * 2 + 1];
            ending.apply(x, y, factor, c);
            if (accumulate) {
                const Vector<float, 2> old = load<2>(line + c);
                x += old.at[0], y += old.at[1];
            }
            store<2>(line + c, Vector<float, 2>{{x, y}});
        }
    }
}

// The same in half precision, through the warp's buffer.
__device__ __forceinline__ void store_tile(Half *to, const float (&acc)[COLUMNS / 2], const Ending &ending,
                                           u32 row, u32 end, u32 column, u32 columns, u32 buffer,
                                           bool accumulate) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 first = 0; first < COLUMNS; first += STORED) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 line = buffer + (lane / 4 + half * 8) * BUFFER_ROW + lane % 4 * 4;
            const u32 at = row + lane / 4 + half * 8;
            const float factor = at < end ? ending.factor_of_row(at) : 1.0f;
#pragma unroll
            for (u32 n = 0; n < STORED / 8; ++n) {
                const u32 i = (first / 8 + n) * 4 + half * 2, c = column + first + n * 8 + lane % 4 * 2;
                float x = acc[i], y = acc[i + 1];
                if (c < columns) ending.apply(x, y, factor, c);
                if (accumulate && at < end && c < columns) {
                    const u32 old = *reinterpret_cast<const u32 *>(to + u64(at) * columns + c);
                    x += Word<Half>::first(old), y += Word<Half>::last(old);
                }
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(line + n * 16), "r"(pack_half(x, y)) : "memory");
            }
        }
        __syncwarp();
        const u32 c = column + first + lane % 8 * 8;
#pragma unroll
        for (u32 i = 0; i < 16; i += 4) {
            const u32 at = i + lane / 8;
            Vector<u32, 4> x;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.at[0]), "=r"(x.at[1]), "=r"(x.at[2]), "=r"(x.at[3])
                         : "r"(buffer + at * BUFFER_ROW + lane % 8 * 16)
                         : "memory");
            if (row + at < end && c < columns)
                store<4>(reinterpret_cast<u32 *>(to + u64(row + at) * columns + c), x);
        }
        __syncwarp();
    }
}

// Lets threads meet at one of the barriers 1 to 15.
__device__ __forceinline__ void meet(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Waits until the copy engine has read all but the last PENDING boxes.
template <int PENDING> __device__ __forceinline__ void wait_boxes() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Lets the copy engine store the results of a consumer's 64 rows from `row` on in a matrix of the tile's
// expert, or add them to it, which rounds as an addition of f32 does but takes subnormal numbers for 0. It
// leaves out what lies outside of the matrix.
template <typename Out>
__device__ __forceinline__ void store_boxes(const TensorMap &matrices, const float (&acc)[COLUMNS / 2],
                                            const Ending &ending, const Tile &tile, u32 row, u32 rows,
                                            u32 columns, u32 boxes, bool &is_second, u32 consumer,
                                            bool accumulate) {
    constexpr u32 WIDTH = 128 / sizeof(Out);
    const u32 lane = threadIdx.x % WARP, thread = threadIdx.x % GROUP, own = thread / WARP * 16 + lane / 4;
    const float factors[2] = {ending.factor_of_row(min(row + own, rows - 1)),
                              ending.factor_of_row(min(row + own + 8, rows - 1))};
#pragma unroll
    for (u32 first = 0; first < COLUMNS; first += WIDTH) {
        const u32 box = boxes + (is_second ? BOX : 0);
        is_second = !is_second;
        if (thread == 0) wait_boxes<1>();
        meet(2 + consumer, GROUP);
#pragma unroll
        for (u32 n = 0; n < WIDTH / 8; ++n)
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 i = (first / 8 + n) * 4 + half * 2, at = own + half * 8;
                const u32 c = n * 8 + lane % 4 * 2, byte = c * sizeof(Out);
                float x = acc[i], y = acc[i + 1];
                ending.apply(x, y, factors[half], min(tile.column + first + c, columns - 2));
                const u32 to = box + at * 128 + (((byte >> 4) ^ at % 8) << 4) + byte % 16;
                if (sizeof(Out) == 4)
                    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
                else
                    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pack_half(x, y)) : "memory");
            }
        publish_stores();
        meet(2 + consumer, GROUP);
        if (thread != 0) continue;
        if (accumulate)
            asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
                         "[%0, {%2, %3, %4}], [%1];" ::"l"(&matrices),
                         "r"(box), "r"(tile.column + first), "r"(row), "r"(tile.expert)
                         : "memory");
        else
            asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], "
                         "[%1];" ::"l"(&matrices),
                         "r"(box), "r"(tile.column + first), "r"(row), "r"(tile.expert)
                         : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

#endif
