// Softmax cross-entropy of rows of scores against distributions over classes, with the gradient written over
// the scores. A target is one class, or MIXED values: class, other class, and the class's share of SHARES.
// Rows whose class is IGNORED have no loss and no gradient, and the mean is over the others.
//
// Shapes: scores_tv, losses_t; targets_t, or three values for each row. Letters as in CONTRIBUTING.md.
#include "scores.cuh"

// Launch: a block per row, up to MOST_THREADS threads (the host gives short rows fewer), rows as the grid. A
// row is read twice, and a third time for the gradient, from the cache: it has at most some thousand classes.
// Rows begin `stride` scores apart.
template <typename T>
__device__ __forceinline__ void soft_cross_entropy(T *scores_tv, const u32 *targets, const u32 *counted,
                                                   float *losses_t, u32 classes, u32 stride, u32 each,
                                                   float smoothing, float scale, u32 gradient) {
    __shared__ float maxima[MOST_THREADS / WARP], sums[MOST_THREADS / WARP], gaps[MOST_THREADS / WARP];
    T *row = scores_tv + u64(blockIdx.x) * stride;
    const u32 *target = targets + u64(blockIdx.x) * each;
    const u32 own = target[0], other = each == MIXED ? target[1] : own;
    const float share = each == MIXED ? __uint2float_rn(target[2]) / float(SHARES) : 1.0f;
    if (own == IGNORED) {
        if (threadIdx.x == 0) losses_t[blockIdx.x] = NO_LOSS;
        if (!gradient) return;
        for (u32 at = threadIdx.x; at < classes; at += blockDim.x) row[at] = from_f32<T>(0.0f);
        return;
    }
    if (own >= classes || other >= classes) __trap();
    const float own_score = to_f32(row[own]), other_score = to_f32(row[other]);

    // The barriers of the sums separate these reads from the first write of the row.
    float largest = __uint_as_float(0xff800000u);
    for (u32 at = threadIdx.x; at < classes; at += blockDim.x) largest = fmaxf(largest, to_f32(row[at]));
    largest = block_max(largest, maxima);
    float total = 0.0f, gap = 0.0f;
    for (u32 at = threadIdx.x; at < classes; at += blockDim.x) {
        const float score = to_f32(row[at]);
        total += exponential(score - largest, T());
        gap += largest - score;
    }
    total = block_sum(total, sums);
    gap = block_sum(gap, gaps);

    if (threadIdx.x == 0) {
        const double own_gap = double(largest) - double(own_score),
                     other_gap = double(largest) - double(other_score);
        const double hard = double(share) * own_gap + (1.0 - double(share)) * other_gap;
        const double expected =
            (1.0 - double(smoothing)) * hard + double(smoothing) * (double(gap) / double(classes));
        losses_t[blockIdx.x] = float(log(double(total)) + expected);
    }
    if (!gradient) return;
    const float weight = __fdiv_rn(scale, __uint2float_rn(*counted));
    const float factor = weight / total, rest = weight * smoothing / float(classes);
    const float kept = weight * (1.0f - smoothing);
    for (u32 at = threadIdx.x; at < classes; at += blockDim.x) {
        float slope = exponential(to_f32(row[at]) - largest, T()) * factor - rest;
        if (at == own) slope -= kept * share;
        if (at == other) slope -= kept * (1.0f - share);
        row[at] = from_f32<T>(slope);
    }
}

#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(MOST_THREADS)                                                                 \
        soft_cross_entropy_##NAME(T *scores, const u32 *__restrict__ targets,                              \
                                  const u32 *__restrict__ counted, float *__restrict__ losses,             \
                                  u32 classes, u32 stride, u32 each, float smoothing, float scale,         \
                                  u32 gradient) {                                                          \
        soft_cross_entropy<T>(scores, targets, counted, losses, classes, stride, each, smoothing, scale,   \
                              gradient);                                                                   \
    }

FOR_EACH_TYPE(FOR_TYPE)

// The number of rows that are not ignored. Launch: one block of MEAN_THREADS threads.
KERNEL __launch_bounds__(MEAN_THREADS)
    count_rows(const u32 *__restrict__ targets, u32 *__restrict__ counted, u32 rows, u32 each) {
    __shared__ u32 counts[MEAN_THREADS];
    u32 count = 0;
    for (u32 row = threadIdx.x; row < rows; row += MEAN_THREADS) count += targets[u64(row) * each] != IGNORED;
    counts[threadIdx.x] = count;
    for (u32 half = MEAN_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) counts[threadIdx.x] += counts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *counted = counts[0];
}
