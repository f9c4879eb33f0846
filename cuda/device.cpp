#include "cuda/device.h"

#include "cuda/check.h"

namespace duet::cuda {

DeviceMemory allocate_device(std::size_t bytes) {
  void* memory = nullptr;
  DUET_CUDA(cudaMalloc(&memory, bytes));
  return DeviceMemory(memory);
}

}  // namespace duet::cuda
