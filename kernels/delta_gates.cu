// Decays and rates of the gated delta rule: -exp(log_speed) * softplus(a + bias) and factor * sigmoid(b).
//
// Shapes: a_tc, b_th, log_speed_h, bias_c; c columns of decays, channels of each head. Letters as in
// CONTRIBUTING.md.
#include "common.cuh"

#define TILE 32
#define STRANDS (THREADS / TILE)

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Launch: THREADS threads, an element each: all of a, then all of b. Floor: every element in and out once.
template <typename T>
__device__ __forceinline__ void forward(const T *a_tc, const T *b_th, const T *log_speed_h, const T *bias_c,
                                        float *decay_tc, float *rate_th, u32 rows, u32 decays, u32 heads,
                                        float factor) {
    const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x, of_a = u64(rows) * decays;
    if (at < of_a) {
        const u32 c = at % decays;
        const float speed = expf(to_f32(log_speed_h[c / (decays / heads)]));
        decay_tc[at] = -speed * softplus(to_f32(a_tc[at]) + to_f32(bias_c[c]));
    } else if (at < of_a + u64(rows) * heads) {
        rate_th[at - of_a] = factor * sigmoid(to_f32(b_th[at - of_a]));
    }
}

template <typename T>
__device__ __forceinline__ void backward(const float *ddecay_tc, const float *drate_th, const T *a_tc,
                                         const T *b_th, const T *log_speed_h, const T *bias_c, T *da_tc,
                                         T *db_th, u32 rows, u32 decays, u32 heads, float factor) {
    const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x, of_a = u64(rows) * decays;
    if (at < of_a) {
        const u32 c = at % decays;
        const float speed = expf(to_f32(log_speed_h[c / (decays / heads)]));
        da_tc[at] = from_f32<T>(-speed * sigmoid(to_f32(a_tc[at]) + to_f32(bias_c[c])) * ddecay_tc[at]);
    } else if (at < of_a + u64(rows) * heads) {
        const u64 own = at - of_a;
        const float value = sigmoid(to_f32(b_th[own]));
        db_th[own] = from_f32<T>(factor * value * (1.0f - value) * drate_th[own]);
    }
}

template <typename T>
__device__ __forceinline__ void put(void *out, u32 at, float sum, u32 accumulate, u32 is_single) {
    if (is_single) {
        float *to = static_cast<float *>(out) + at;
        *to = accumulate ? *to + sum : sum;
    } else {
        T *to = static_cast<T *>(out) + at;
        *to = from_f32<T>(accumulate ? to_f32(*to) + sum : sum);
    }
}

// Gradient of the bias of channels. Launch: a block for TILE columns; a strand adds its rows in order, then
// strands are added in order. Floor: ddecay and a once.
template <typename T>
__device__ __forceinline__ void bias_sums(const float *ddecay_tc, const T *a_tc, const T *log_speed_h,
                                          const T *bias_c, void *out, u32 rows, u32 decays, u32 heads,
                                          u32 accumulate, u32 is_single) {
    __shared__ float sums[STRANDS][TILE];
    const u32 lane = threadIdx.x % TILE, strand = threadIdx.x / TILE, c = blockIdx.x * TILE + lane;
    float sum = 0.0f;
    if (c < decays) {
        const float bias = to_f32(bias_c[c]);
#pragma unroll 4
        for (u32 row = strand; row < rows; row += STRANDS) {
            const u64 at = u64(row) * decays + c;
            sum = fmaf(sigmoid(to_f32(a_tc[at]) + bias), ddecay_tc[at], sum);
        }
    }
    sums[strand][lane] = sum;
    __syncthreads();
    if (strand == 0 && c < decays) {
        float total = 0.0f;
        for (int other = 0; other < STRANDS; other++) total += sums[other][lane];
        total *= -expf(to_f32(log_speed_h[c / (decays / heads)]));
        put<T>(out, c, total, accumulate, is_single);
    }
}

// Gradient of the logarithm of a head's speed; with BIAS, of the bias of heads without channels. Launch: a
// block for each head; threads add elements that are THREADS apart, then a fixed butterfly and warps in
// order. Floor: ddecay and a once.
template <bool BIAS, typename T>
__device__ __forceinline__ void head_sums(const float *ddecay_tc, const T *a_tc, const T *log_speed_h,
                                          const T *bias_c, void *out, u32 rows, u32 decays, u32 heads,
                                          u32 accumulate, u32 is_single) {
    __shared__ float sums[THREADS / WARP];
    const u32 channels = decays / heads, head = blockIdx.x;
    float sum = 0.0f;
#pragma unroll 8
    for (u64 item = threadIdx.x; item < u64(rows) * channels; item += THREADS) {
        const u32 c = head * channels + item % channels;
        const u64 at = item / channels * decays + c;
        const float step = to_f32(a_tc[at]) + to_f32(bias_c[c]);
        sum = fmaf(BIAS ? sigmoid(step) : softplus(step), ddecay_tc[at], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int warp = 0; warp < THREADS / WARP; warp++) total += sums[warp];
        put<T>(out, head, total * -expf(to_f32(log_speed_h[head])), accumulate, is_single);
    }
}

#define SIZES u32 rows, u32 decays, u32 heads
#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        forward_##NAME(const T *__restrict__ a, const T *__restrict__ b, const T *__restrict__ log_speed,  \
                       const T *__restrict__ bias, float *__restrict__ decay, float *__restrict__ rate,    \
                       SIZES,                                                                              \
                       float factor) {                                                                     \
        forward(a, b, log_speed, bias, decay, rate, rows, decays, heads, factor);                          \
    }                                                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        backward_##NAME(const float *__restrict__ ddecay, const float *__restrict__ drate,                 \
                        const T *__restrict__ a, const T *__restrict__ b, const T *__restrict__ log_speed, \
                        const T *__restrict__ bias, T *__restrict__ da, T *__restrict__ db, SIZES,         \
                        float factor) {                                                                    \
        backward(ddecay, drate, a, b, log_speed, bias, da, db, rows, decays, heads, factor);               \
    }                                                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        bias_sums_##NAME(const float *__restrict__ ddecay, const T *__restrict__ a,                        \
                         const T *__restrict__ log_speed, const T *__restrict__ bias, void *out, SIZES,    \
                         u32 accumulate, u32 is_single) {                                                  \
        bias_sums(ddecay, a, log_speed, bias, out, rows, decays, heads, accumulate, is_single);            \
    }                                                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        head_bias_sums_##NAME(const float *__restrict__ ddecay, const T *__restrict__ a,                   \
                              const T *__restrict__ log_speed, const T *__restrict__ bias, void *out,      \
                              SIZES, u32 accumulate, u32 is_single) {                                      \
        head_sums<true>(ddecay, a, log_speed, bias, out, rows, decays, heads, accumulate, is_single);      \
    }                                                                                                      \
    KERNEL __launch_bounds__(THREADS)                                                                      \
        speed_sums_##NAME(const float *__restrict__ ddecay, const T *__restrict__ a,                       \
                          const T *__restrict__ log_speed, const T *__restrict__ bias, void *out, SIZES,   \
                          u32 accumulate, u32 is_single) {                                                 \
        head_sums<false>(ddecay, a, log_speed, bias, out, rows, decays, heads, accumulate, is_single);     \
    }

FOR_EACH_TYPE(FOR_TYPE)
