// Matrices that are kept as codes: each block of BLOCK elements has a scale, whose 8-bit code is a fraction
// of its group's largest difference from the mean of scales. A value is its code's value times the scale.
#include "common.cuh"

// Elements of a thread's access, and accesses of a thread, which loads all of its codes before it decodes.
#define WIDTH 8
#define ACCESSES (BLOCK * GROUP / (WIDTH * THREADS))

static_assert(GROUP == THREADS, "a thread decodes one scale");

// A group's largest difference and the mean of scales.
struct Group {
    float most, mean;
};

// The first and the last of the values 10^-6 to 1 that fractions are parts of.
__constant__ float DECADES[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};

// The values of NF4 and of integers, as in `crates/tensor/src/ops/block_codes/alphabet.rs`.
__constant__ float NF4[16] = {-1.0f,         -0.6961928f, -0.52507305f, -0.3949175f,
                              -0.28444138f,  -0.18477343f, -0.091050036f, 0.0f,
                              0.0795803f,    0.1609302f,  0.2461123f,   0.33791524f,
                              0.44070983f,   0.562617f,   0.72295684f,  1.0f};

// The fraction of a scale's code, as in `crates/tensor/src/ops/block_codes/scale_code.rs`.
__device__ __forceinline__ float border(u32 index, u32 parts, float step) {
    return index < (parts + 1) / 2 ? __fmaf_rn(step, float(index), 0.1f)
                                   : __fmaf_rn(-step, float(parts - index), 1.0f);
}
__device__ __forceinline__ float fraction(u32 code) {
    const u32 zero = 127;
    if (code == zero) return 0.0f;
    if (code == 255) return 1.0f;
    const u32 magnitude = code < zero ? zero - code : code - zero;
    const u32 decade = 31 - __clz(magnitude), parts = 1u << decade, part = magnitude - parts;
    const float step = __fdiv_rn(1.0f - 0.1f, float(parts));
    const float sum = __fadd_rn(border(part, parts, step), border(part + 1, parts, step));
    const float value = __fmul_rn(DECADES[decade], __fmul_rn(sum, 0.5f));
    return code < zero ? -value : value;
}

// Codes of 4 bits, the first of two in the high bits of a byte, whose values are in shared memory.
struct Nf4 {
    typedef u32 Codes;
    __device__ __forceinline__ static float entry(u32 code) { return NF4[code]; }
};
struct Int4 {
    typedef u32 Codes;
    __device__ __forceinline__ static float entry(u32 code) {
        return __fdiv_rn(float(int(code) - 8), 7.0f);
    }
};
__device__ __forceinline__ float value(const float *values, u32 codes, int i) {
    return values[codes >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 15];
}

// E4M3: the bits of an f16 that is 2^-8 times the value.
struct E4m3 {
    typedef u64 Codes;
    __device__ __forceinline__ static float entry(u32) { return 0.0f; }
};
__device__ __forceinline__ float value(const float *, u64 codes, int i) {
    const u32 code = u32(codes >> 8 * i) & 255, magnitude = code & 127;
    const float own = 256.0f * to_f32(f16{u16((code & 128) << 8 | magnitude << 7)});
    return magnitude == 127 ? __uint_as_float(0x7fffffffu) : own;
}

// Launch: a thread block of THREADS for each group. Floor: codes and scales are read once, and values written
// once.
template <typename Alphabet, typename T>
__device__ __forceinline__ void decode(const u8 *codes, const u8 *scales, const Group *groups, T *to,
                                       u64 count) {
    typedef typename Alphabet::Codes Codes;
    __shared__ float scale_of[GROUP], values[16];
    const u64 first = u64(blockIdx.x) * (BLOCK * GROUP);
    const Codes *from = reinterpret_cast<const Codes *>(codes);
    Codes own[ACCESSES];
#pragma unroll
    for (int i = 0; i < ACCESSES; i++) {
        const u64 at = first + (i * THREADS + threadIdx.x) * WIDTH;
        own[i] = at < count ? from[at / WIDTH] : Codes(0);
    }
    const u64 block = u64(blockIdx.x) * GROUP + threadIdx.x;
    if (block < count / BLOCK) {
        const Group group = groups[blockIdx.x];
        scale_of[threadIdx.x] = __fadd_rn(__fmul_rn(fraction(scales[block]), group.most), group.mean);
    }
    if (threadIdx.x < 16) values[threadIdx.x] = Alphabet::entry(threadIdx.x);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ACCESSES; i++) {
        const u32 access = i * THREADS + threadIdx.x;
        const u64 at = first + access * WIDTH;
        if (at >= count) return;
        const float scale = scale_of[access * WIDTH / BLOCK];
        Floats<WIDTH> decoded;
#pragma unroll
        for (int j = 0; j < WIDTH; j++) decoded.at[j] = __fmul_rn(value(values, own[i], j), scale);
        write<WIDTH>(to + at, decoded);
    }
}

#define FOR_ALPHABET(ALPHABET, CODE, NAME, T)                                                       \
    KERNEL __launch_bounds__(THREADS) decode_##CODE##_##NAME(                                       \
        const u8 *codes, const u8 *scales, const Group *groups, T *to, u64 count) {                 \
        decode<ALPHABET>(codes, scales, groups, to, count);                                         \
    }
#define FOR_TYPE(NAME, T)                                                                           \
    FOR_ALPHABET(Nf4, nf4, NAME, T) FOR_ALPHABET(Int4, int4, NAME, T) FOR_ALPHABET(E4m3, e4m3, NAME, T)

FOR_EACH_TYPE(FOR_TYPE)
