// How fast the card reads its memory: the limit that decode steps are compared with.
//   source   [n] 16-byte vectors, read once, in order
//   launch   8 blocks of 512 threads a multiprocessor, 4 vectors a thread and turn

#include <cuda_runtime.h>

#include <vector>

#include "bench/card_bandwidth.h"
#include "cuda/check.h"
#include "cuda/device.h"

namespace duet::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kVectors = 4;

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* __restrict__ source, std::size_t n, unsigned* sink) {
  unsigned sum = 0;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kVectors - 1) * stride < n; i += kVectors * stride) {
    uint4 v[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) v[k] = __ldcs(source + i + k * stride);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < n; i += stride) sum += source[i].x;
  if (sum == 0x12345678U) *sink = sum;  // Never true of zeros; keeps the reads.
}

}  // namespace

Spread seconds_per_byte_read_on_card(std::size_t bytes, int repeats) {
  const cuda::DeviceMemory memory = cuda::allocate_device(bytes);
  const cuda::DeviceMemory sink = cuda::allocate_device(sizeof(unsigned));
  DUET_CUDA(cudaMemset(memory.get(), 0, bytes));
  int processors = 0;
  DUET_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  const cuda::EventHandle begin = cuda::make_timer_event(), end = cuda::make_timer_event();
  std::vector<double> samples;
  for (int i = 0; i < repeats + 2; ++i) {
    DUET_CUDA(cudaEventRecord(begin.get()));
    read_kernel<<<static_cast<unsigned>(8 * processors), kThreads>>>(static_cast<const uint4*>(memory.get()),
                                                                     bytes / 16, static_cast<unsigned*>(sink.get()));
    DUET_CUDA(cudaGetLastError());
    DUET_CUDA(cudaEventRecord(end.get()));
    DUET_CUDA(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    DUET_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (i >= 2) samples.push_back(double{milliseconds} * 1e-3 / static_cast<double>(bytes));
  }
  return spread_of(samples);
}

}  // namespace duet::bench
