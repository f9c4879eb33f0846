#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace duet::cuda {

/// What a kernel's tuning may ask of the card.
struct DeviceFacts {
  std::string name;
  int compute_capability = 0;  ///< 75, 80, 86, 89, 90, 120.
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::size_t l2_bytes = 0;
};

DeviceFacts facts_of_device(int device);

/// Owns a CUDA object; a destructor never throws.
template <class T, auto Destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T raw) : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Handle() {
    if (raw_ != T{}) static_cast<void>(Destroy(raw_));
  }
  T get() const { return raw_; }

 private:
  T raw_{};
};

using StreamHandle = Handle<cudaStream_t, cudaStreamDestroy>;
using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;
using DeviceMemory = Handle<void*, cudaFree>;

StreamHandle make_stream();
EventHandle make_event();
/// The arena is the one caller in the engine; tests and benchmarks use it for their own buffers.
DeviceMemory allocate_device(std::size_t bytes);

}  // namespace duet::cuda
