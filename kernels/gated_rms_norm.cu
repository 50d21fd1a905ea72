// RMS norm of each head of a row, times a gate: y = x * rstd * weight * f(z).
//
// Shapes: x_tk, z_tk, y_tk, a row for each head; weight_k. Letters as in CONTRIBUTING.md.
#include "activation.cuh"
#include "columns.cuh"
#include "held_rows.cuh"

// The gate's value and slope.
template <typename Math> __device__ __forceinline__ float2 gate(float z, bool is_silu) {
    const float steep = decay<Math>(z);
    const float sigmoid = Math::quotient(1.0f, 1.0f + steep);
    // 1 - sigmoid, so that nothing cancels.
    const float rest = steep * sigmoid;
    if (is_silu) return make_float2(z * sigmoid, sigmoid * fmaf(z, rest, 1.0f));
    return make_float2(sigmoid, sigmoid * rest);
}

__device__ __forceinline__ float reciprocal_root(Exact, float x) { return 1.0f / sqrtf(x); }
__device__ __forceinline__ float reciprocal_root(Fast, float x) { return rsqrtf(x); }

// A thread's vector of a head. A head has 2^`log_lanes` threads of a warp and at most as many vectors.
template <typename T> struct HeadVector {
    u32 log_lanes, column, group;
    bool is_inside;
    __device__ __forceinline__ HeadVector(u32 width, u32 log_lanes)
        : log_lanes(log_lanes),
          column((threadIdx.x & ((1u << log_lanes) - 1)) * Wide<T>::N),
          group(threadIdx.x >> log_lanes),
          is_inside(column < width) {}
    // Heads of a block.
    __device__ __forceinline__ u32 groups() const { return THREADS >> log_lanes; }
    // Sums over a head's threads in a fixed butterfly.
    __device__ __forceinline__ float sum(float x) const {
        for (u32 offset = (1u << log_lanes) / 2; offset > 0; offset /= 2)
            x += __shfl_xor_sync(ALL_LANES, x, offset);
        return x;
    }
    __device__ __forceinline__ float rstd(const Floats<Wide<T>::N> &x, float per_column,
                                          float epsilon) const {
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < Wide<T>::N; i++) square = fmaf(x.at[i], x.at[i], square);
        return reciprocal_root(typename MathFor<T>::Math(), fmaf(sum(square), per_column, epsilon));
    }
};

// Launch: THREADS threads, as many heads as they have vectors for. Floor: x and z in, y out.
template <typename T>
__device__ __forceinline__ void forward(const T *x_tk, const T *z_tk, const T *weight_k, T *y_tk, u32 rows,
                                        u32 width, float epsilon, u32 is_silu, u32 log_lanes) {
    constexpr int N = Wide<T>::N;
    typedef typename MathFor<T>::Math Math;
    const HeadVector<T> own(width, log_lanes);
    const u32 row = blockIdx.x * own.groups() + own.group;
    const bool is_active = own.is_inside && row < rows;
    const u64 at = u64(row) * width + own.column;
    Wide<T> x = {}, z = {}, weight = {};
    if (is_active) x.read(x_tk + at), z.read(z_tk + at), weight.read(weight_k + own.column);
    Floats<N> values = x.floats();
    const Floats<N> gates = z.floats(), weights = weight.floats();
    const float rstd = own.rstd(values, Math::quotient(1.0f, float(width)), epsilon);
#pragma unroll
    for (int i = 0; i < N; i++)
        values.at[i] = values.at[i] * rstd * weights.at[i] * gate<Math>(gates.at[i], is_silu).x;
    x.round(values);
    if (is_active) x.write(y_tk + at);
}

// Gradients of x and z, and the sums of the weight's gradient over a run of heads. Launch: a block for each
// run, whose groups of threads take heads in turn, the next heads being loaded meanwhile; the groups' sums
// are added in order. Floor: dy, x and z in, dx and dz out.
template <typename T>
__device__ __forceinline__ void backward(const T *dy_tk, const T *x_tk, const T *z_tk, const T *weight_k,
                                         T *dx_tk, T *dz_tk, float *sums, u32 rows, u32 width,
                                         u32 rows_per_run, float epsilon, u32 is_silu, u32 log_lanes) {
    constexpr int N = Wide<T>::N;
    typedef typename MathFor<T>::Math Math;
    const HeadVector<T> own(width, log_lanes);
    const u32 first = blockIdx.x * rows_per_run, end = min(rows, first + rows_per_run);
    const float per_column = Math::quotient(1.0f, float(width));
    Wide<T> weight = {}, dy = {}, x = {}, z = {};
    const auto load = [&](u32 row) {
        if (!own.is_inside || row >= end) return;
        const u64 at = u64(row) * width + own.column;
        dy.read(dy_tk + at), x.read(x_tk + at), z.read(z_tk + at);
    };
    if (own.is_inside) weight.read(weight_k + own.column);
    load(first + own.group);
    Floats<N> total = {};
    // All threads take the same number of turns, because they add together.
    for (u32 turn = first; turn < end; turn += own.groups()) {
        const u32 row = turn + own.group;
        const bool is_active = own.is_inside && row < end;
        Wide<T> held_dy = dy, held_x = x, held_z = z;
        load(row + own.groups());
        Floats<N> normed = held_x.floats(), g, dz;
        const float rstd = own.rstd(normed, per_column, epsilon);
        const Floats<N> weights = weight.floats(), dys = held_dy.floats(), gates = held_z.floats();
        float product = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float2 value = gate<Math>(gates.at[i], is_silu);
            normed.at[i] *= rstd;
            if (is_active) total.at[i] = fmaf(dys.at[i] * value.x, normed.at[i], total.at[i]);
            const float scaled = dys.at[i] * weights.at[i];
            dz.at[i] = scaled * normed.at[i] * value.y;
            g.at[i] = scaled * value.x;
            product = fmaf(g.at[i], normed.at[i], product);
        }
        const float mean = own.sum(product) * per_column;
#pragma unroll
        for (int i = 0; i < N; i++) g.at[i] = rstd * (g.at[i] - normed.at[i] * mean);
        if (is_active) {
            const u64 at = u64(row) * width + own.column;
            held_z.round(dz), held_x.round(g);
            held_z.write(dz_tk + at), held_x.write(dx_tk + at);
        }
    }
    // A row of vectors for each group.
    __shared__ float partial[THREADS * N];
#pragma unroll
    for (int i = 0; i < N; i++) partial[threadIdx.x * N + i] = total.at[i];
    __syncthreads();
    for (u32 c = threadIdx.x; c < width; c += THREADS) {
        float sum = 0.0f;
        for (u32 group = 0; group < own.groups(); group++) sum += partial[(group << log_lanes) * N + c];
        sums[u64(blockIdx.x) * width + c] = sum;
    }
}

// Heads of any width and alignment.

template <typename T>
__device__ __forceinline__ float row_rstd(const T *x_k, u32 width, float epsilon, u32 lane) {
    float square = 0.0f;
    for (u32 c = lane; c < width; c += WARP) square = fmaf(to_f32(x_k[c]), to_f32(x_k[c]), square);
    return 1.0f / sqrtf(warp_sum(square) * (1.0f / width) + epsilon);
}

// Launch: THREADS threads, a warp for each head.
template <typename T>
__device__ __forceinline__ void forward_any(const T *x_tk, const T *z_tk, const T *weight_k, T *y_tk,
                                            u32 rows, u32 width, float epsilon, u32 is_silu) {
    typedef typename MathFor<T>::Math Math;
    const u32 row = (blockIdx.x * THREADS + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    const u64 start = u64(row) * width;
    const float rstd = row_rstd(x_tk + start, width, epsilon, lane);
    for (u32 c = lane; c < width; c += WARP) {
        const float value = gate<Math>(to_f32(z_tk[start + c]), is_silu).x;
        y_tk[start + c] = from_f32<T>(to_f32(x_tk[start + c]) * rstd * to_f32(weight_k[c]) * value);
    }
}

// Launch: a block for each run, whose warps take heads in turn and are added in order.
template <typename T>
__device__ __forceinline__ void backward_any(const T *dy_tk, const T *x_tk, const T *z_tk,
                                             const T *weight_k, T *dx_tk, T *dz_tk, float *sums, u32 rows,
                                             u32 width, u32 rows_per_run, float epsilon, u32 is_silu) {
    typedef typename MathFor<T>::Math Math;
    extern __shared__ float partial[];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = THREADS / WARP;
    float *own = partial + warp * width;
    for (u32 c = lane; c < width; c += WARP) own[c] = 0.0f;
    const u32 first = blockIdx.x * rows_per_run, end = min(rows, first + rows_per_run);
    for (u32 row = first + warp; row < end; row += warps) {
        const u64 start = u64(row) * width;
        const float rstd = row_rstd(x_tk + start, width, epsilon, lane);
        float product = 0.0f;
        for (u32 c = lane; c < width; c += WARP) {
            const float2 value = gate<Math>(to_f32(z_tk[start + c]), is_silu);
            const float normed = to_f32(x_tk[start + c]) * rstd, dy = to_f32(dy_tk[start + c]);
            const float weight = to_f32(weight_k[c]);
            own[c] = fmaf(dy * value.x, normed, own[c]);
            dz_tk[start + c] = from_f32<T>(dy * normed * weight * value.y);
            product = fmaf(dy * weight * value.x, normed, product);
        }
        const float mean = warp_sum(product) * (1.0f / width);
        for (u32 c = lane; c < width; c += WARP) {
            const float value = gate<Math>(to_f32(z_tk[start + c]), is_silu).x;
            const float g = to_f32(dy_tk[start + c]) * to_f32(weight_k[c]) * value;
            dx_tk[start + c] = from_f32<T>(rstd * (g - to_f32(x_tk[start + c]) * rstd * mean));
        }
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < width; c += THREADS) {
        float total = 0.0f;
        for (u32 other = 0; other < warps; other++) total += partial[other * width + c];
        sums[u64(blockIdx.x) * width + c] = total;
    }
}

#define FORWARD_ARGUMENTS(T)                                                                           \
    const T *__restrict__ x, const T *__restrict__ z, const T *__restrict__ weight, T *__restrict__ y, \
        u32 rows, u32 width, float epsilon, u32 is_silu
#define BACKWARD_ARGUMENTS(T)                                                                           \
    const T *__restrict__ dy, const T *__restrict__ x, const T *__restrict__ z,                         \
        const T *__restrict__ weight, T *__restrict__ dx, T *__restrict__ dz, float *__restrict__ sums, \
        u32 rows, u32 width, u32 rows_per_run, float epsilon, u32 is_silu
#define FOR_TYPE(NAME, T)                                                                                 \
    KERNEL __launch_bounds__(THREADS) forward_##NAME(FORWARD_ARGUMENTS(T), u32 log_lanes) {               \
        forward(x, z, weight, y, rows, width, epsilon, is_silu, log_lanes);                               \
    }                                                                                                     \
    KERNEL __launch_bounds__(THREADS, 4) backward_##NAME(BACKWARD_ARGUMENTS(T), u32 log_lanes) {          \
        backward(dy, x, z, weight, dx, dz, sums, rows, width, rows_per_run, epsilon, is_silu, log_lanes); \
    }                                                                                                     \
    KERNEL __launch_bounds__(THREADS) forward_any_##NAME(FORWARD_ARGUMENTS(T)) {                          \
        forward_any(x, z, weight, y, rows, width, epsilon, is_silu);                                      \
    }                                                                                                     \
    KERNEL __launch_bounds__(THREADS) backward_any_##NAME(BACKWARD_ARGUMENTS(T)) {                        \
        backward_any(dy, x, z, weight, dx, dz, sums, rows, width, rows_per_run, epsilon, is_silu);        \
    }

FOR_EACH_TYPE(FOR_TYPE)
