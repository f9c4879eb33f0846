#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "cuda/check.h"
#include "cuda/device.h"

/// Device buffers for tests: poisoned inside, guarded on both sides.
namespace duet::test {

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/// First line of every GPU test: without a card the test is reported as skipped, never as passed.
#define DUET_NEEDS_GPU() \
  if (!::duet::test::has_gpu()) GTEST_SKIP() << "no NVIDIA card on this machine"

/// `bytes` of device memory between two guards of 0xA5, all of it 0xFF (NaN in every float format) at first.
class PoisonedBuffer {
 public:
  explicit PoisonedBuffer(std::size_t bytes) : bytes_(bytes), memory_(cuda::allocate_device(bytes + 2 * kGuard)) {
    DUET_CUDA(cudaMemset(memory_.get(), 0xA5, bytes_ + 2 * kGuard));
    DUET_CUDA(cudaMemset(data(), 0xFF, bytes_));
  }
  std::byte* data() const { return static_cast<std::byte*>(memory_.get()) + kGuard; }
  std::size_t size() const { return bytes_; }

  void upload(const void* source) const { DUET_CUDA(cudaMemcpy(data(), source, bytes_, cudaMemcpyHostToDevice)); }
  void download(void* destination) const { DUET_CUDA(cudaMemcpy(destination, data(), bytes_, cudaMemcpyDeviceToHost)); }

  bool guards_intact() const {
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    DUET_CUDA(cudaMemcpy(all.data(), memory_.get(), all.size(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < kGuard; ++i)
      if (all[i] != 0xA5 || all[all.size() - 1 - i] != 0xA5) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t bytes_;
  cuda::DeviceMemory memory_;
};

/// A poisoned buffer that holds `values`.
template <class T>
PoisonedBuffer on_card(const std::vector<T>& values) {
  PoisonedBuffer buffer(values.size() * sizeof(T));
  buffer.upload(values.data());
  return buffer;
}

template <class T>
T* as(const PoisonedBuffer& buffer) {
  return reinterpret_cast<T*>(buffer.data());
}

/// What lies in `buffer`, after everything on the card has ended.
template <class T>
std::vector<T> from_card(const PoisonedBuffer& buffer) {
  DUET_CUDA(cudaDeviceSynchronize());
  std::vector<T> values(buffer.size() / sizeof(T));
  buffer.download(values.data());
  return values;
}

}  // namespace duet::test
