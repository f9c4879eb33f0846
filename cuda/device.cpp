#include "cuda/device.h"

#include "cuda/check.h"

namespace duet::cuda {

DeviceFacts facts_of_device(int device) {
  cudaDeviceProp properties{};
  DUET_CUDA(cudaGetDeviceProperties(&properties, device));
  return {properties.name, properties.major * 10 + properties.minor, properties.multiProcessorCount,
          properties.totalGlobalMem, static_cast<std::size_t>(properties.l2CacheSize)};
}

StreamHandle make_stream() {
  cudaStream_t stream{};
  DUET_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return StreamHandle(stream);
}

EventHandle make_event() {
  cudaEvent_t event{};
  DUET_CUDA(cudaEventCreate(&event));
  return EventHandle(event);
}

DeviceMemory allocate_device(std::size_t bytes) {
  void* memory = nullptr;
  DUET_CUDA(cudaMalloc(&memory, bytes));
  return DeviceMemory(memory);
}

}  // namespace duet::cuda
