#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace duet::cuda {

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

using DeviceMemory = Handle<void*, cudaFree>;
using PinnedMemory = Handle<void*, cudaFreeHost>;
using StreamHandle = Handle<cudaStream_t, cudaStreamDestroy>;
using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;
using GraphHandle = Handle<cudaGraph_t, cudaGraphDestroy>;
using GraphExecHandle = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

/// The arena is the one caller in the engine; tests and benchmarks use it for their own buffers.
DeviceMemory allocate_device(std::size_t bytes);
/// Host memory that the card reads and copies directly.
PinnedMemory allocate_pinned(std::size_t bytes);
StreamHandle make_stream();
EventHandle make_event();
EventHandle make_timer_event();

}  // namespace duet::cuda
