// Softmax cross-entropy of scores whose columns are computed in pieces, one after another: statistics of each
// row over all pieces, then each piece's gradient, written over its scores. A score may be capped: it is then
// cap * tanh(x / cap).
//
// Shapes: scores_tv for some of the v classes; targets_t, maxima_t, sums_t, losses_t, weights_t. Letters as
// in CONTRIBUTING.md.
#include "scores.cuh"

__device__ __forceinline__ float capped(float x, float cap) { return cap > 0.0f ? cap * tanhf(x / cap) : x; }

// Launch of both kernels: a block per row, up to MOST_THREADS threads, rows as the grid. `first` is the
// piece's first class, `width` its number of classes, rows begin `stride` scores apart, and `cap` is 0 for
// none. Floor: the piece once through
// memory; the second reading is mostly from L2.

// Adds a piece to the rows' largest scores and sums of e^(score - largest), and keeps the targets' scores in
// `losses`, which the last piece turns into losses. A fresh piece begins the statistics. Pieces are processed
// in the order of their classes.
template <typename T>
__device__ __forceinline__ void join(const T *scores_tv, const u32 *targets_t, float *maxima_t, float *sums_t,
                                     float *losses_t, u32 first, u32 width, u32 stride, u32 vocab,
                                     u32 fresh, u32 last, float cap) {
    constexpr u32 N = Cut<T>::N;
    __shared__ float of_warps[MOST_THREADS / WARP], sums_of_warps[MOST_THREADS / WARP];
    const u32 at_row = blockIdx.x, target = targets_t[at_row];
    if (target == IGNORED) {
        if (threadIdx.x == 0 && last) losses_t[at_row] = NO_LOSS;
        return;
    }
    if (target >= vocab) __trap();
    const T *row = scores_tv + u64(at_row) * stride;
    const Cut<T> cut(row, width);

    float largest = __uint_as_float(0xff800000u);
    cut.for_each([&](u32 at) { largest = fmaxf(largest, Wide<T>(row + at).largest()); },
                 [&](u32 at) { largest = fmaxf(largest, to_f32(row[at])); });
    largest = capped(block_max(largest, of_warps), cap);

    float total = 0.0f;
    cut.for_each(
        [&](u32 at) {
            const Wide<T> values(row + at);
#pragma unroll
            for (u32 i = 0; i < N; i++) total += exponential(capped(values.at(i), cap) - largest, T());
        },
        [&](u32 at) { total += exponential(capped(to_f32(row[at]), cap) - largest, T()); });
    total = block_sum(total, sums_of_warps);
    if (threadIdx.x != 0) return;

    if (!fresh) {
        const float before = maxima_t[at_row], both = fmaxf(before, largest);
        total = sums_t[at_row] * expf(before - both) + total * expf(largest - both);
        largest = both;
    }
    maxima_t[at_row] = largest;
    sums_t[at_row] = total;
    // A target in another piece is beyond the width, even if it is before the first class.
    float score = fresh ? 0.0f : losses_t[at_row];
    if (target - first < width) score = capped(to_f32(row[target - first]), cap);
    losses_t[at_row] = last ? float(log(double(total)) + (double(largest) - double(score))) : score;
}

// Merges the statistics of `lanes` runs of `width` classes, [lanes][3][rows], in the order of the classes, to
// those of all classes, [3][rows], with the rows' losses. Launch: a thread per row.
KERNEL __launch_bounds__(MOST_THREADS)
    merge(const float *__restrict__ parts, const u32 *__restrict__ targets, float *__restrict__ merged,
          u32 lanes, u32 width, u32 rows) {
    const u32 row = blockIdx.x * MOST_THREADS + threadIdx.x;
    if (row >= rows) return;
    const u32 target = targets[row];
    float *loss = merged + 2 * u64(rows) + row;
    if (target == IGNORED) {
        *loss = NO_LOSS;
        return;
    }
    if (target / width >= lanes) __trap();
    const auto part = [&](u32 lane, u32 which) { return parts[(u64(lane) * 3 + which) * rows + row]; };
    float largest = part(0, 0), total = 0.0f;
    for (u32 lane = 1; lane < lanes; lane++) largest = fmaxf(largest, part(lane, 0));
    for (u32 lane = 0; lane < lanes; lane++) total += part(lane, 1) * expf(part(lane, 0) - largest);
    merged[row] = largest;
    merged[u64(rows) + row] = total;
    *loss = float(log(double(total)) + (double(largest) - double(part(target / width, 2))));
}

// Replaces scores by the gradient of factor * scale * mean loss with respect to them; with `weights` by that
// of factor * the sum of weight * loss over rows.
template <typename T>
__device__ __forceinline__ void gradient(T *scores_tv, const u32 *targets_t, const float *maxima_t,
                                         const float *sums_t, const u32 *counted, const float *weights_t,
                                         const float *factor, u32 first, u32 width, u32 stride, float cap,
                                         float scale) {
    constexpr u32 N = Cut<T>::N;
    const u32 at_row = blockIdx.x, target = targets_t[at_row];
    T *row = scores_tv + u64(at_row) * stride;
    const Cut<T> cut(row, width);
    if (target == IGNORED) {
        cut.for_each([&](u32 at) { store<4>(reinterpret_cast<u32 *>(row + at), Vector<u32, 4>{}); },
                     [&](u32 at) { row[at] = from_f32<T>(0.0f); });
        return;
    }
    const float of_loss = weights_t ? weights_t[at_row] : __fdiv_rn(scale, __uint2float_rn(*counted));
    const float weight = of_loss * *factor;
    const float largest = maxima_t[at_row], share = weight / sums_t[at_row];
    const u32 hot = target - first;
    const auto slope = [&](float x, u32 at) {
        const float score = capped(x, cap), part = score / cap;
        const float of_score = exponential(score - largest, T()) * share - (at == hot ? weight : 0.0f);
        return cap > 0.0f ? of_score * (1.0f - part * part) : of_score;
    };
    cut.for_each(
        [&](u32 at) {
            Wide<T> values(row + at);
            float slopes[N];
#pragma unroll
            for (u32 i = 0; i < N; i++) slopes[i] = slope(values.at(i), at + i);
            values.write(row + at, slopes);
        },
        [&](u32 at) { row[at] = from_f32<T>(slope(to_f32(row[at]), at)); });
}

#define FOR_TYPE(NAME, T)                                                                                 \
    KERNEL __launch_bounds__(MOST_THREADS)                                                                \
        join_##NAME(const T *__restrict__ scores, const u32 *__restrict__ targets,                        \
                    float *__restrict__ maxima, float *__restrict__ sums, float *__restrict__ losses,     \
                    u32 first, u32 width, u32 stride, u32 vocab, u32 fresh, u32 last, float cap) {        \
        join(scores, targets, maxima, sums, losses, first, width, stride, vocab, fresh, last, cap);       \
    }                                                                                                     \
    KERNEL __launch_bounds__(MOST_THREADS)                                                                \
        gradient_##NAME(T *__restrict__ scores, const u32 *__restrict__ targets,                          \
                        const float *__restrict__ maxima, const float *__restrict__ sums,                 \
                        const u32 *__restrict__ counted, const float *__restrict__ weights,               \
                        const float *__restrict__ factor, u32 first, u32 width, u32 stride, float cap,    \
                        float scale) {                                                                    \
        gradient(scores, targets, maxima, sums, counted, weights, factor, first, width, stride, cap,      \
                 scale);                                                                                  \
    }

FOR_EACH_TYPE(FOR_TYPE)
