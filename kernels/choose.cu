// The next token of each row of logits. Without limits, launch: blocks of THREADS for slices of a row, and a
// warp that joins their results, both early and therefore without __restrict__, so that no load moves before
// their waits; with limits, a block of ROW_THREADS threads for a row, which reads it once to find its largest
// score, four times for each limit, and once to draw; a row stays in L2. Sums are of integers, so that their
// order does not matter. Floor: the logits, once.
#include "early.cuh"
#include "philox.cuh"

#define PER_THREAD (SLICE / THREADS)

static_assert(PER_THREAD % 4 == 0, "a thread takes the tokens of whole random words");

#define ROW_WARPS (ROW_THREADS / WARP)

// Scores in the order of their keys.
__device__ __forceinline__ u32 key_of(float score) {
    const u32 bits = __float_as_uint(score);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float score_of(u32 key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// The largest of a block's values, for all its threads.
template <int WARPS> __device__ __forceinline__ u64 block_max(u64 own, u64 *shared) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const u64 other = __shfl_xor_sync(ALL_LANES, own, offset);
        own = own > other ? own : other;
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = own;
    __syncthreads();
    for (u32 warp = 0; warp < WARPS; warp++) own = own > shared[warp] ? own : shared[warp];
    return own;
}

// Logits after penalty and temperature. The latest token counts as seen, also before it is marked.
template <typename T> struct Scores {
    const T *logits;
    const u32 *seen;
    u32 latest;
    float scale, penalty;
    __device__ __forceinline__ float at(u32 token) const {
        float logit = to_f32(logits[token]);
        const bool is_seen = seen && (token == latest || seen[token / 32] >> (token % 32) & 1);
        if (is_seen) logit = logit > 0.0f ? logit / penalty : logit * penalty;
        return logit * scale;
    }
};

// The largest key of which all larger ones and itself weigh at least `wanted`, digit by digit; only keys from
// `least` on count. weight(score) gives a token's weight.
template <typename T, typename F>
__device__ __forceinline__ u32 select(const Scores<T> &scores, u32 vocabulary, u32 least, u64 wanted,
                                      u64 *bins, F weight) {
    __shared__ u32 digit;
    __shared__ u64 above;
    u32 found = 0;
    u64 left = wanted;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (u32 i = threadIdx.x; i < 256; i += ROW_THREADS) bins[i] = 0;
        __syncthreads();
        for (u32 token = threadIdx.x; token < vocabulary; token += ROW_THREADS) {
            const float score = scores.at(token);
            const u32 key = key_of(score);
            const bool same = shift == 24 || key >> (shift + 8) == found >> (shift + 8);
            if (key >= least && same) atomicAdd(bins + (key >> shift & 255u), weight(score));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 sum = 0;
            u32 at = 256;
            // The least digit of a key that counts, where all together weigh less than is wanted.
            u32 last = 0;
            while (at > 0) {
                at--;
                if (bins[at] == 0) continue;
                last = at;
                if (sum + bins[at] >= left) break;
                sum += bins[at];
            }
            digit = last;
            above = sum;
        }
        __syncthreads();
        found |= digit << shift;
        left -= above < left ? above : left;
        __syncthreads();
    }
    return found;
}

// A token's random number: Gumbel's distribution.
__device__ __forceinline__ float gumbel(u32 word) {
    const double uniform = (double(word) + 0.5) / 4294967296.0;
    return float(-log(-log(uniform)));
}
// The same within MARGIN, without f64: near 1, log(1 - x) has the digits that log has not.
#define MARGIN 1e-3f
__device__ __forceinline__ float nearly_gumbel(u32 word) {
    const bool is_large = word >> 31;
    const float part = (float(is_large ? ~word : word) + 0.5f) * 2.3283064365386963e-10f;
    return -logf(-(is_large ? log1pf(-part) : logf(part)));
}

// The largest key of a slice of a row, with its token. Drawing needs f64 for tokens near the largest alone.
template <typename T>
__device__ __forceinline__ u64 best_of_slice(const Scores<T> &scores, const u32 *draws, u32 rows, u32 row,
                                             u32 vocabulary, bool draws_one) {
    __shared__ u64 largest[THREADS / WARP];
    const u32 first = blockIdx.x * SLICE;
    float score[PER_THREAD], nearly[PER_THREAD];
    Words words[PER_THREAD / 4];
    u64 best = 0;
    if (draws_one) {
        const u32 number = draws[row], key0 = draws[rows + row], key1 = draws[2 * rows + row];
#pragma unroll
        for (u32 i = 0; i < PER_THREAD / 4; i++)
            words[i] = philox(key0, key1, first / 4 + i * THREADS + threadIdx.x, number, 0, 0);
    }
#pragma unroll
    for (u32 i = 0; i < PER_THREAD; i++) {
        const u32 token = first + (i / 4 * THREADS + threadIdx.x) * 4 + i % 4;
        if (token >= vocabulary) continue;
        score[i] = scores.at(token);
        nearly[i] = draws_one ? score[i] + nearly_gumbel(words[i / 4].at[i % 4]) : score[i];
        const u64 here = u64(key_of(nearly[i])) << 32 | ~token;
        best = best > here ? best : here;
    }
    best = block_max<THREADS / WARP>(best, largest);
    if (!draws_one) return best;
    const float top = score_of(u32(best >> 32)), least = top - MARGIN - 1e-6f * fabsf(top);
    best = 0;
#pragma unroll
    for (u32 i = 0; i < PER_THREAD; i++) {
        const u32 token = first + (i / 4 * THREADS + threadIdx.x) * 4 + i % 4;
        // Scores that are no numbers are not left out.
        if (token >= vocabulary || nearly[i] < least) continue;
        const u64 here = u64(key_of(score[i] + gumbel(words[i / 4].at[i % 4]))) << 32 | ~token;
        best = best > here ? best : here;
    }
    return block_max<THREADS / WARP>(best, largest);
}

template <typename T>
__device__ __forceinline__ void choose_slice(const T *logits, const u32 *draws, const u32 *tokens, u32 *seen,
                                             u64 *parts, u32 rows, u32 vocabulary, float scale,
                                             float penalty) {
    let_next_begin();
    wait_for_earlier();
    const u32 row = blockIdx.y;
    u32 *own = seen ? seen + u64(row) * ((vocabulary + 31) / 32) : seen;
    const u32 latest = seen ? tokens[row] : 0;
    const bool draws_one = scale > 0.0f;
    const Scores<T> scores{logits + u64(row) * vocabulary, own, latest, draws_one ? scale : 1.0f, penalty};
    const u64 best = best_of_slice(scores, draws, rows, row, vocabulary, draws_one);
    if (threadIdx.x != 0) return;
    parts[row * gridDim.x + blockIdx.x] = best;
    if (seen && blockIdx.x == 0 && latest < vocabulary) atomicOr(own + latest / 32, 1u << (latest % 32));
}

// Launch: a warp for each row.
KERNEL __launch_bounds__(WARP) join(const u64 *parts, u32 *chosen, u32 count) {
    __shared__ u64 largest[1];
    wait_for_earlier();
    u64 best = 0;
    for (u32 i = threadIdx.x; i < count; i += WARP) {
        const u64 here = parts[blockIdx.x * count + i];
        best = best > here ? best : here;
    }
    best = block_max<1>(best, largest);
    if (threadIdx.x == 0) chosen[blockIdx.x] = ~u32(best);
}

template <typename T>
__device__ __forceinline__ void choose_row(const T *logits, const u32 *draws, const u32 *tokens, u32 *seen,
                                           u32 *chosen, u32 rows, u32 vocabulary, float scale, u32 top_k,
                                           float top_p, float penalty) {
    __shared__ u64 largest[ROW_WARPS], bins[256];
    const u32 row = blockIdx.x;
    u32 *own = seen ? seen + u64(row) * ((vocabulary + 31) / 32) : seen;
    const u32 latest = seen ? tokens[row] : 0;
    if (seen) {
        if (threadIdx.x == 0 && latest < vocabulary) own[latest / 32] |= 1u << (latest % 32);
        __syncthreads();
    }
    const bool draws_one = scale > 0.0f;
    const Scores<T> scores{logits + u64(row) * vocabulary, own, latest, draws_one ? scale : 1.0f, penalty};
    u64 best = 0;
    for (u32 token = threadIdx.x; token < vocabulary; token += ROW_THREADS) {
        const u64 here = u64(key_of(scores.at(token))) << 32 | ~token;
        best = best > here ? best : here;
    }
    best = block_max<ROW_WARPS>(best, largest);
    if (draws_one) {
        const float top = score_of(u32(best >> 32));
        u32 least = 0;
        if (top_k > 0 && top_k < vocabulary)
            least = select(scores, vocabulary, least, top_k, bins, [](float) { return u64(1); });
        if (top_p < 1.0f) {
            const auto mass = [&](float score) { return u64(double(expf(score - top)) * 4294967296.0); };
            if (threadIdx.x == 0) bins[0] = 0;
            __syncthreads();
            u64 part = 0;
            for (u32 token = threadIdx.x; token < vocabulary; token += ROW_THREADS) {
                const float score = scores.at(token);
                if (key_of(score) >= least) part += mass(score);
            }
            atomicAdd(bins, part);
            __syncthreads();
            const u64 wanted = u64(ceil(double(top_p) * double(bins[0])));
            __syncthreads();
            least = select(scores, vocabulary, least, wanted, bins, mass);
        }
        const u32 number = draws[row], key0 = draws[rows + row], key1 = draws[2 * rows + row];
        best = 0;
        for (u32 four = threadIdx.x * 4; four < vocabulary; four += ROW_THREADS * 4) {
            bool any = false;
            float score[4];
            for (u32 i = 0; i < 4; i++) {
                score[i] = four + i < vocabulary ? scores.at(four + i) : 0.0f;
                any |= four + i < vocabulary && key_of(score[i]) >= least;
            }
            if (!any) continue;
            const Words words = philox(key0, key1, four / 4, number, 0, 0);
            for (u32 i = 0; i < 4; i++) {
                if (four + i >= vocabulary || key_of(score[i]) < least) continue;
                const u64 here = u64(key_of(score[i] + gumbel(words.at[i]))) << 32 | ~(four + i);
                best = best > here ? best : here;
            }
        }
        best = block_max<ROW_WARPS>(best, largest);
    }
    if (threadIdx.x == 0) chosen[row] = ~u32(best);
}

#define FOR_TYPE(NAME, T)                                                                                 \
    KERNEL __launch_bounds__(ROW_THREADS)                                                                 \
        choose_##NAME(const T *__restrict__ logits, const u32 *__restrict__ draws,                        \
                      const u32 *__restrict__ tokens, u32 *seen, u32 *__restrict__ chosen, u32 rows,      \
                      u32 vocabulary, float scale, u32 top_k, float top_p, float penalty) {               \
        choose_row(logits, draws, tokens, seen, chosen, rows, vocabulary, scale, top_k, top_p, penalty);  \
    }                                                                                                     \
    KERNEL __launch_bounds__(THREADS)                                                                     \
        slices_##NAME(const T *logits, const u32 *draws, const u32 *tokens, u32 *seen, u64 *parts,        \
                      u32 rows, u32 vocabulary, float scale, float penalty) {                             \
        choose_slice(logits, draws, tokens, seen, parts, rows, vocabulary, scale, penalty);               \
    }

FOR_EACH_TYPE(FOR_TYPE)
