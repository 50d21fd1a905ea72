// Softmax cross-entropy of rows of scores, with the gradient written over them. Rows whose target is IGNORED
// have no loss and no gradient, and the mean is over the others.
//
// Shapes: scores_tv, targets_t, losses_t. Letters as in CONTRIBUTING.md.
#include "scores.cuh"

// Launch: a block per row, up to MOST_THREADS threads (the host gives short rows fewer), rows as the grid.
// Rows of up to 101,000 bytes (50,304 bf16 scores have 100,608) are kept in shared memory, filled by
// asynchronous copies, so that they are read once, and two blocks fit on a multiprocessor of an H100: one
// loads while the other computes. Longer rows are read twice, for their sum and for the gradient. A row may
// begin at any element: the scores before the first 16-byte boundary and after the last are processed one by
// one. Floor: the scores in once, the gradient out once.

// Copies the row to shared memory, at the same offset from a 16-byte boundary, and returns the copy.
template <typename T> __device__ __forceinline__ const T *fetch(const T *row, const Cut<T> &cut) {
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr u32 N = Cut<T>::N;
    T *copy = reinterpret_cast<T *>(memory) + (N - cut.head) % N;
    cut.for_each([&](u32 at) { copy_async<16>(u32(__cvta_generic_to_shared(copy + at)), row + at); },
                 [&](u32 at) { copy[at] = row[at]; });
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    return copy;
}

// The largest score of a row, and the sum of e^(score - largest).
struct Normalizer {
    float largest, total;
};

// For a row in shared memory.
template <typename T>
__device__ __forceinline__ Normalizer in_two_readings(const T *in, const Cut<T> &cut, float *maxima,
                                                      float *sums) {
    float largest = __uint_as_float(0xff800000u);
    cut.for_each([&](u32 at) { largest = fmaxf(largest, Wide<T>(in + at).largest()); },
                 [&](u32 at) { largest = fmaxf(largest, to_f32(in[at])); });
    largest = block_max(largest, maxima);

    float total = 0.0f;
    cut.for_each(
        [&](u32 at) {
            const Wide<T> values(in + at);
#pragma unroll
            for (u32 i = 0; i < Cut<T>::N; i++) total += exponential(values.at(i) - largest, T());
        },
        [&](u32 at) { total += exponential(to_f32(in[at]) - largest, T()); });
    return {largest, block_sum(total, sums)};
}

// For a row in memory: each thread's sum shrinks when its maximum grows (Milakov and Gimelshein, Online
// normalizer calculation for softmax, 2018).
template <typename T>
__device__ __forceinline__ Normalizer in_one_reading(const T *in, const Cut<T> &cut, float *maxima,
                                                     float *sums) {
    // The least finite number, whose difference from an infinite score is not NaN.
    float own = __uint_as_float(0xff7fffffu), total = 0.0f;
    const auto raise = [&](float here) {
        if (here > own) total *= exponential(own - here, T()), own = here;
    };
    cut.for_each(
        [&](u32 at) {
            const Wide<T> values(in + at);
            raise(values.largest());
#pragma unroll
            for (u32 i = 0; i < Cut<T>::N; i++) total += exponential(values.at(i) - own, T());
        },
        [&](u32 at) {
            const float here = to_f32(in[at]);
            raise(here);
            total += exponential(here - own, T());
        });
    const float largest = block_max(own, maxima);
    return {largest, block_sum(total * exponential(own - largest, T()), sums)};
}

// CACHED: the row is kept in shared memory. Rows begin `stride` scores apart. Without `gradient` the scores
// are not overwritten; `loss_scale`, if not null, is a factor of the gradient.
template <bool CACHED, typename T>
__device__ __forceinline__ void cross_entropy(T *scores_tv, const u32 *targets_t, const u32 *counted,
                                              float *losses_t, u32 vocab, u32 stride, float scale,
                                              u32 gradient, const float *loss_scale) {
    constexpr u32 N = Cut<T>::N;
    __shared__ float maxima[MOST_THREADS / WARP], sums[MOST_THREADS / WARP];
    T *row = scores_tv + u64(blockIdx.x) * stride;
    const u32 target = targets_t[blockIdx.x];
    const Cut<T> cut(row, vocab);
    if (target == IGNORED) {
        if (threadIdx.x == 0) losses_t[blockIdx.x] = NO_LOSS;
        if (!gradient) return;
        cut.for_each(
            [&](u32 at) { store<4>(reinterpret_cast<u32 *>(row + at), Vector<u32, 4>{}); },
            [&](u32 at) { row[at] = from_f32<T>(0.0f); });
        return;
    }
    if (target >= vocab) __trap();
    float weight = __fdiv_rn(scale, __uint2float_rn(*counted));
    if (loss_scale) weight = __fmul_rn(weight, *loss_scale);
    const T *in = row;
    if (CACHED) in = fetch<T>(row, cut);
    const float score = to_f32(in[target]);

    // The barriers of both separate the reads of `score` from the first write of the row.
    const Normalizer of_row =
        CACHED ? in_two_readings(in, cut, maxima, sums) : in_one_reading(in, cut, maxima, sums);
    const float largest = of_row.largest, total = of_row.total;

    if (threadIdx.x == 0)
        losses_t[blockIdx.x] = float(log(double(total)) + (double(largest) - double(score)));
    if (!gradient) return;
    const float factor = weight / total;
    cut.for_each(
        [&](u32 at) {
            Wide<T> values(in + at);
            float slopes[N];
#pragma unroll
            for (u32 i = 0; i < N; i++) slopes[i] = exponential(values.at(i) - largest, T()) * factor;
            if (target - at < N) {
#pragma unroll
                for (u32 i = 0; i < N; i++) slopes[i] -= at + i == target ? weight : 0.0f;
            }
            values.write(row + at, slopes);
        },
        [&](u32 at) {
            const float slope = exponential(to_f32(in[at]) - largest, T()) * factor;
            row[at] = from_f32<T>(at == target ? slope - weight : slope);
        });
}

#define FOR_TYPE(NAME, T)                                                                                  \
    KERNEL __launch_bounds__(MOST_THREADS, 2)                                                              \
        cached_##NAME(T *__restrict__ scores, const u32 *__restrict__ targets,                             \
                      const u32 *__restrict__ counted, float *__restrict__ losses, u32 vocab, u32 stride,  \
                      float scale, u32 gradient, const float *__restrict__ loss_scale) {                   \
        cross_entropy<true>(scores, targets, counted, losses, vocab, stride, scale, gradient, loss_scale); \
    }                                                                                                      \
    KERNEL __launch_bounds__(MOST_THREADS, 2)                                                              \
        streamed_##NAME(T *scores, const u32 *__restrict__ targets, const u32 *__restrict__ counted,       \
                        float *__restrict__ losses, u32 vocab, u32 stride, float scale, u32 gradient,      \
                        const float *__restrict__ loss_scale) {                                            \
        cross_entropy<false>(scores, targets, counted, losses, vocab, stride, scale, gradient,             \
                             loss_scale);                                                                  \
    }

FOR_EACH_TYPE(FOR_TYPE)

// The number of targets that are not ignored. Launch: one block of MEAN_THREADS threads.
KERNEL __launch_bounds__(MEAN_THREADS)
    count_targets(const u32 *__restrict__ targets, u32 *__restrict__ counted, u32 rows) {
    __shared__ u32 counts[MEAN_THREADS];
    u32 count = 0;
    for (u32 row = threadIdx.x; row < rows; row += MEAN_THREADS) count += targets[row] != IGNORED;
    counts[threadIdx.x] = count;
    for (u32 half = MEAN_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) counts[threadIdx.x] += counts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *counted = counts[0];
}

// loss = scale * the sum of the rows' losses / counted, added in f64 in a fixed order; 0 if counted is 0.
// `loss` may be where `counted` is. Launch: one block of MEAN_THREADS threads; a few hundred KiB from L2.
KERNEL __launch_bounds__(MEAN_THREADS)
    mean_loss(const float *__restrict__ losses, const u32 *counted, float *loss, u32 rows, float scale) {
    __shared__ double sums[MEAN_THREADS];
    double sum = 0.0;
#pragma unroll 4
    for (u32 row = threadIdx.x; row < rows; row += MEAN_THREADS)
        if (losses[row] != NO_LOSS) sum += double(losses[row]);
    sums[threadIdx.x] = sum;
    for (u32 half = MEAN_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) {
        const u32 divisor = *counted;
        *loss = divisor ? float(double(scale) * sums[0] / double(divisor)) : 0.0f;
    }
}
