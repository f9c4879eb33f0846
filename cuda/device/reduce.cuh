#pragma once

// Reductions over a warp and over a block. Every thread gets the result, with the same bits: partners combine in a
// butterfly, and the operations are commutative. The order depends on the number of threads alone.

#include <cstdint>

namespace duet::cuda {

constexpr int kWarpThreads = 32;
constexpr int kMostWarps = 32;  // Of a block of 1024 threads.

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct Min {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarpThreads; }
__device__ inline int warp_of_thread() { return static_cast<int>(threadIdx.x) / kWarpThreads; }

template <class T, class Combine>
__device__ inline T reduce_warp(T value, Combine combine) {
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(~0U, value, distance));
  return value;
}

/// `shared` [kMostWarps] is the caller's; a __syncthreads() lies between two uses of it. blockDim.x is a multiple of
/// 32 and every thread takes part.
template <class T, class Combine>
__device__ inline T reduce_block(T value, T identity, Combine combine, T* shared) {
  value = reduce_warp(value, combine);
  if (lane_of_thread() == 0) shared[warp_of_thread()] = value;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
  return reduce_warp(lane_of_thread() < warps ? shared[lane_of_thread()] : identity, combine);
}

/// Sum over this thread and all before it; `total` gets the sum over the block. `shared` as above.
template <class T>
__device__ inline T scan_block(T value, T* total, T* shared) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    const T before = __shfl_up_sync(~0U, value, distance);
    if (lane >= distance) value += before;
  }
  if (lane == kWarpThreads - 1) shared[warp_of_thread()] = value;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
  T sum = 0;
  T before = 0;
  for (int warp = 0; warp < warps; ++warp) {
    if (warp == warp_of_thread()) before = sum;
    sum += shared[warp];
  }
  *total = sum;
  return before + value;
}

}  // namespace duet::cuda
