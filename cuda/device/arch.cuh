#pragma once

// What differs between architectures, all of it: cached and streaming loads, copies that run beside the maths, and the
// sizes that follow from an architecture's shared memory. The tensor cores' differences are in mma.cuh.

#include <cuda_runtime.h>

#include <cstdint>

namespace duet::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool kHasAsyncCopy = false;
/// Copies of the byte-to-half2 table in shared memory (tiles.cuh): one a bank, or half of that where 64 KB are all.
constexpr int kTableCopies = 16;
#else
constexpr bool kHasAsyncCopy = true;
constexpr int kTableCopies = 32;
#endif

/// 16 bytes that are read once by the whole card: past the first cache.
__device__ inline uint4 load_streaming(const void* source) {
  uint4 value;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(source));
  return value;
}

/// Asks for the 128 bytes around `source` to be brought to the second cache.
__device__ inline void prefetch_to_l2(const void* source) { asm volatile("prefetch.global.L2 [%0];" ::"l"(source)); }

/// 16 bytes from device memory to shared memory, zeros where `valid` is false. Complete after copies_arrived and a
/// barrier; where there are no asynchronous copies it is complete at once.
__device__ inline void copy_async(void* shared, const void* source, bool valid) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  *static_cast<uint4*>(shared) = valid ? *static_cast<const uint4*>(source) : uint4{};
#else
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(valid ? 16 : 0)
               : "memory");
#endif
}

/// Ends a group of copies; copies_arrived<n> waits until at most the n latest groups are still on their way.
__device__ inline void end_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kStillOnTheirWay>
__device__ inline void copies_arrived() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kStillOnTheirWay) : "memory");
#endif
}

}  // namespace duet::cuda
