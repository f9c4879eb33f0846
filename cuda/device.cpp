#include "cuda/device.h"

#include "cuda/check.h"

namespace duet::cuda {

DeviceMemory allocate_device(std::size_t bytes) {
  void* memory = nullptr;
  DUET_CUDA(cudaMalloc(&memory, bytes));
  return DeviceMemory(memory);
}

PinnedMemory allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  DUET_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  return PinnedMemory(memory);
}

StreamHandle make_stream() {
  cudaStream_t stream = nullptr;
  DUET_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return StreamHandle(stream);
}

EventHandle make_event() {
  cudaEvent_t event = nullptr;
  DUET_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return EventHandle(event);
}

EventHandle make_timer_event() {
  cudaEvent_t event = nullptr;
  DUET_CUDA(cudaEventCreate(&event));
  return EventHandle(event);
}

}  // namespace duet::cuda
