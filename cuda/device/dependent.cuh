#pragma once

// Programmatic dependent launch: a kernel of a chain begins while the one before it still runs, does what does not need
// its results (tables, adapters, the first weights), and waits only then. Source: CUDA C++ Programming Guide,
// "Programmatic Dependent Launch". Cards before sm_90 run the same kernels one after the other.
//
// Every kernel launched by launch_dependent
//   calls wait_for_previous() before it touches anything that an earlier kernel of the step writes or still reads; in
//   at least one thread of every launch, so that a finished kernel means that all before it have finished; reads such
//   memory by ordinary loads, never by __ldg.
// The step's inputs (rows, page lists, adapters' tables) were there before its first kernel, which is launched as
// usual.

#include <cstdint>
#include <utility>

#include "cuda/check.h"

namespace duet::cuda {

__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The next kernel may begin as soon as all blocks have said this.
__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Towards the second-level cache, if `pointer` is not null.
__device__ inline void prefetch(const void* pointer) {
  if (pointer != nullptr) asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

/// Likewise `bytes` (a multiple of 16, like the address), where kernels overlap; elsewhere there is nothing to gain.
__device__ inline void prefetch_where_overlapping(const void* pointer, std::uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(pointer)), "r"(bytes));
#else
  static_cast<void>(pointer), static_cast<void>(bytes);
#endif
}

inline bool launches_overlap() {
  static const bool overlap = [] {
    int device = 0;
    int major = 0;
    DUET_CUDA(cudaGetDevice(&device));
    DUET_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
  }();
  return overlap;
}

template <class... Parameters, class... Arguments>
void launch_dependent(void (*kernel)(Parameters...), dim3 grid, unsigned threads, cudaStream_t stream,
                      Arguments&&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = launches_overlap() ? 1 : 0;
  DUET_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace duet::cuda
