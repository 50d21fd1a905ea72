// Kernels that begin while the one before them still runs (programmatic dependent launch, from sm_90 on).
#pragma once
#include "common.cuh"

// Waits until earlier kernels have ended; before it, a kernel that is launched early reads constants only,
// and writes nothing. Kernels that are not launched early do not wait.
__device__ __forceinline__ void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel begin, if it is launched early, as soon as all blocks of this one have called it.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
