// Barriers, bulk copies and warpgroup matmuls of Hopper (sm_90a); empty for other architectures.
#pragma once
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A value that is the same in all lanes, as the compiler then knows: it keeps results in uniform registers.
__device__ __forceinline__ u32 uniform(u32 x) { return __shfl_sync(ALL_LANES, x, 0); }

// ---- mbarriers

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives for this thread once its copies so far are complete.
__device__ __forceinline__ void arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait(u32 barrier, u32 phase) {
    u32 done;
    do {
        asm volatile(
            "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(done)
            : "r"(barrier), "r"(phase)
            : "memory");
    } while (done == 0);
}

// A position in a ring of `SIZE`, and the parity of its rounds.
template <u32 SIZE> struct RingPosition {
    u32 index = 0, phase = 0;
    __device__ __forceinline__ void next() {
        if (++index == SIZE) index = 0, phase ^= 1;
    }
};

// ---- wgmma

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving uses of accumulators over a wait.
template <int N> __device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The low half of the descriptor of a tile in shared memory of `rows` rows (the distance of its panels, if
// rows run along the depth); offsets are added to it in units of 16 bytes. The high half: rows of 128 bytes,
// swizzled in groups of 8.
__device__ __forceinline__ u32 descriptor(u32 address, u32 rows) { return address >> 4 | rows * 8 << 16; }
#define AT(bytes) ((bytes) >> 4)

// Makes stores to shared memory so far visible to warpgroup matmuls and the copy engine, after a barrier.
__device__ __forceinline__ void publish_stores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(d, i) F4(d, i), F4(d, i + 4), F4(d, i + 8), F4(d, i + 12)
#define F32(d, i) F16(d, i), F16(d, i + 16)
#define LOW                                                                                                  \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
    "%28,%29,%30,%31"
#define HIGH                                                                                                \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%" \
    "57,%58,%59,%60,%61,%62,%63"
#define HIGHER                                                                                             \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%" \
    "89,%90,%91,%92,%93,%94,%95"
#define HIGHEST                                                                                             \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116," \
    "%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA "wgmma.mma_async.sync.aligned."

// d[64, 256] (+)= a[64, 16] * b[16, 256], both in shared memory; LEFT_RUNS and RIGHT_RUNS: whether rows of a
// or b run along the sums.
template <bool LEFT_RUNS, bool RIGHT_RUNS>
__device__ __forceinline__ void grouped_product(float (&d)[128], u32 a, u32 b, int add) {
    asm volatile(
        "{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %130, 0;\n"
        "mov.b64 a, {%128, 0x40000040}; mov.b64 b, {%129, 0x40000040};\n" WGMMA
        "m64n256k16.f32." HALF_TYPE "." HALF_TYPE " {" LOW "," HIGH "," HIGHER "," HIGHEST
        "}, a, b, p, 1, 1, %131, %132;}"
        : F32(d, 0), F32(d, 32), F32(d, 64), F32(d, 96)
        : "r"(a), "r"(b), "r"(add), "n"(LEFT_RUNS), "n"(RIGHT_RUNS));
}
template <bool LEFT_RUNS, bool RIGHT_RUNS>
__device__ __forceinline__ void grouped_product(float (&d)[64], u32 a, u32 b, int add) {
    asm volatile(
        "{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %66, 0;\n"
        "mov.b64 a, {%64, 0x40000040}; mov.b64 b, {%65, 0x40000040};\n" WGMMA
        "m64n128k16.f32." HALF_TYPE "." HALF_TYPE " {" LOW "," HIGH "}, a, b, p, 1, 1, %67, %68;}"
        : F32(d, 0), F32(d, 32)
        : "r"(a), "r"(b), "r"(add), "n"(LEFT_RUNS), "n"(RIGHT_RUNS));
}

// The same with a in registers, for 64 and for 128 columns.
template <bool RIGHT_RUNS>
__device__ __forceinline__ void register_product(float (&d)[32], const u32 (&a)[4], u32 b, int add) {
    asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %37, 0; mov.b64 b, {%36, 0x40000040};\n" WGMMA
                 "m64n64k16.f32." HALF_TYPE "." HALF_TYPE " {" LOW "}, {%32,%33,%34,%35}, b, p, 1, 1, %38;}"
                 : F32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(RIGHT_RUNS));
}
template <bool RIGHT_RUNS>
__device__ __forceinline__ void register_product(float (&d)[64], const u32 (&a)[4], u32 b, int add) {
    asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %69, 0; mov.b64 b, {%68, 0x40000040};\n" WGMMA
                 "m64n128k16.f32." HALF_TYPE "." HALF_TYPE " {" LOW "," HIGH
                 "}, {%64,%65,%66,%67}, b, p, 1, 1, %70;}"
                 : F32(d, 0), F32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(RIGHT_RUNS));
}

// Matmuls in FP8: d[64, 128] (+)= a[64, 32] * b[32, 128], where rows of neither run along the sums.
#define WGMMA_FP8(NAME, TYPE)                                                                               \
    __device__ __forceinline__ void NAME(float (&d)[64], u32 a, u32 b, int add) {                           \
        asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %66, 0;\n"                              \
                     "mov.b64 a, {%64, 0x40000040}; mov.b64 b, {%65, 0x40000040};\n" WGMMA                  \
                     "m64n128k32.f32." TYPE ".e4m3 {" LOW "," HIGH "}, a, b, p, 1, 1;}"                     \
                     : F32(d, 0), F32(d, 32)                                                                \
                     : "r"(a), "r"(b), "r"(add));                                                           \
    }                                                                                                       \
    __device__ __forceinline__ void NAME(float (&d)[128], u32 a, u32 b, int add) {                          \
        asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %130, 0;\n"                             \
                     "mov.b64 a, {%128, 0x40000040}; mov.b64 b, {%129, 0x40000040};\n" WGMMA                \
                     "m64n256k32.f32." TYPE ".e4m3 {" LOW "," HIGH "," HIGHER "," HIGHEST                   \
                     "}, a, b, p, 1, 1;}"                                                                   \
                     : F32(d, 0), F32(d, 32), F32(d, 64), F32(d, 96)                                        \
                     : "r"(a), "r"(b), "r"(add));                                                           \
    }
WGMMA_FP8(fp8_product, "e4m3")
WGMMA_FP8(fp8_gradient_product, "e5m2")

// A tensor that the bulk copy engine reads, as the driver describes it.
struct alignas(64) TensorMap {
    u64 words[16];
};

#endif
