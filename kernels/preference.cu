// Losses of pairs of answers, of which the first is preferred: sums over the rows of every sequence, then the
// loss of all pairs with its figures, then the weight of every row's loss in it. All sums are in f64 and in a
// fixed order. Floor: the rows' losses and targets once through memory.
#include "common.cuh"

// The sum over the block, in thread 0.
__device__ __forceinline__ double sum_of_block(double x, double *shared) {
    __syncthreads();
    shared[threadIdx.x] = x;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    __syncthreads();
    return shared[0];
}

// Writes score, tokens of the answer, loss and number of all targets of a sequence. Launch: a block each.
KERNEL __launch_bounds__(THREADS)
    sequences(const float *__restrict__ losses, const u32 *__restrict__ targets,
              const u32 *__restrict__ answers, float *__restrict__ sums, u32 time) {
    __shared__ double shared[THREADS];
    const u32 answer = answers[blockIdx.x];
    const u64 first = u64(blockIdx.x) * time;
    double score = 0.0, tokens = 0.0, loss = 0.0, counted = 0.0;
    for (u32 at = threadIdx.x; at < time; at += THREADS) {
        if (targets[first + at] == IGNORED) continue;
        const double own = double(losses[first + at]);
        loss += own;
        counted += 1.0;
        if (at >= answer) {
            score -= own;
            tokens += 1.0;
        }
    }
    score = sum_of_block(score, shared);
    tokens = sum_of_block(tokens, shared);
    loss = sum_of_block(loss, shared);
    counted = sum_of_block(counted, shared);
    if (threadIdx.x != 0) return;
    float *own = sums + u64(blockIdx.x) * SUMS;
    own[0] = float(score);
    own[1] = float(fmax(tokens, 1.0));
    own[2] = float(loss);
    own[3] = float(counted);
}

// Copies the scores. Launch: a thread for each.
KERNEL __launch_bounds__(THREADS)
    scores(const float *__restrict__ sums, float *__restrict__ scores, u32 count) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at < count) scores[at] = sums[u64(at) * SUMS];
}

__device__ __forceinline__ double log_sigmoid(double x) { return fmin(x, 0.0) - log1p(exp(-fabs(x))); }
__device__ __forceinline__ double sigmoid(double x) { return exp(log_sigmoid(x)); }

// Loss of a pair, slopes by both scores, and rewards.
struct PairLoss {
    double loss, slopes[2], rewards[2];
};

__device__ PairLoss of_pair(const float *sums, const float *reference, u32 kind, double parameter,
                            double smoothing) {
    PairLoss out;
    double gains[2], tokens[2];
    for (u32 i = 0; i < 2; i++) {
        gains[i] = double(sums[i * SUMS]) - (reference ? double(reference[i]) : 0.0);
        tokens[i] = double(sums[i * SUMS + 1]);
    }
    for (u32 i = 0; i < 2; i++) out.rewards[i] = parameter * gains[i];
    if (kind == 0) {
        const double margin = out.rewards[0] - out.rewards[1];
        out.loss = -(1.0 - smoothing) * log_sigmoid(margin) - smoothing * log_sigmoid(-margin);
        out.slopes[0] = parameter * (smoothing * sigmoid(margin) - (1.0 - smoothing) * sigmoid(-margin));
        out.slopes[1] = -out.slopes[0];
        return out;
    }
    double means[2];
    if (kind == 1) {
        for (u32 i = 0; i < 2; i++) means[i] = gains[i] / tokens[i];
        const double distance = means[0] - means[1] - 0.5 / parameter;
        out.loss = distance * distance;
        out.slopes[0] = 2.0 * distance / tokens[0];
        out.slopes[1] = -2.0 * distance / tokens[1];
        return out;
    }
    for (u32 i = 0; i < 2; i++) {
        means[i] = fmin(double(sums[i * SUMS]) / tokens[i], -1.0 / double(LEAST_IMPROBABILITY));
        out.rewards[i] = parameter * means[i];
    }
    const double ratio = (means[0] - log(-expm1(means[0]))) - (means[1] - log(-expm1(means[1])));
    const double slope = -parameter * sigmoid(-ratio);
    out.loss = -parameter * log_sigmoid(ratio);
    out.slopes[0] = slope / -expm1(means[0]) / tokens[0];
    out.slopes[1] = -slope / -expm1(means[1]) / tokens[1];
    return out;
}

// Writes the loss and its figures, each times `scale`, and after the sums of every sequence the weights of
// its rows: of those of the answer, and of all. Targets that are learnt have the loss `learnt_scale` times
// their sum, divided by `counted`, or if that is null by their number. Launch: one block.
KERNEL __launch_bounds__(THREADS)
    pairs(float *sums, const float *__restrict__ reference, const u32 *__restrict__ counted,
          float *__restrict__ values, u32 count, u32 kind, float parameter, float smoothing, float scale,
          float learnt_scale) {
    __shared__ double shared[THREADS];
    const bool learns_prompts = kind == 2;
    double learnt = 0.0;
    for (u32 pair = threadIdx.x; pair < count; pair += THREADS)
        learnt += double(sums[u64(pair) * 2 * SUMS + 3]);
    learnt = sum_of_block(learnt, shared);
    if (counted) learnt = double(*counted);
    const double of_target = learns_prompts && learnt > 0.0 ? double(learnt_scale) / learnt : 0.0;
    const double of_each = double(scale) / double(count);
    double totals[VALUES] = {};
    for (u32 pair = threadIdx.x; pair < count; pair += THREADS) {
        float *own = sums + u64(pair) * 2 * SUMS;
        const PairLoss out =
            of_pair(own, reference ? reference + 2 * u64(pair) : nullptr, kind, parameter, smoothing);
        const double margin = out.rewards[0] - out.rewards[1];
        totals[0] += out.loss * of_each + double(own[2]) * of_target;
        totals[1] += margin > 0.0 ? of_each : 0.0;
        totals[2] += margin * of_each;
        totals[3] += out.rewards[0] * of_each;
        totals[4] += out.rewards[1] * of_each;
        totals[5] += double(own[2]) * of_target;
        for (u32 i = 0; i < 2; i++) {
            const double learns = i == 0 ? of_target : 0.0;
            own[i * SUMS + 4] = float(learns - out.slopes[i] * of_each);
            own[i * SUMS + 5] = float(learns);
        }
    }
    for (u32 value = 0; value < VALUES; value++) {
        const double total = sum_of_block(totals[value], shared);
        if (threadIdx.x == 0) values[value] = float(total);
    }
}

// Writes the weight of every row's loss. Launch: a block for each sequence.
KERNEL __launch_bounds__(THREADS)
    weights(const u32 *__restrict__ targets, const u32 *__restrict__ answers, const float *__restrict__ sums,
            float *__restrict__ weights, u32 time) {
    const u32 answer = answers[blockIdx.x];
    const u64 first = u64(blockIdx.x) * time;
    const float *own = sums + u64(blockIdx.x) * SUMS;
    for (u32 at = threadIdx.x; at < time; at += THREADS)
        weights[first + at] = targets[first + at] == IGNORED ? 0.0f : at >= answer ? own[4] : own[5];
}
