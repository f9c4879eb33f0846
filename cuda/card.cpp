#include "cuda/card.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

#include "cuda/check.h"
#include "cuda/management.h"
#include "duet/error.h"

namespace duet::cuda {
namespace {

constexpr int kOldestMajor = 7, kOldestMinor = 5;

std::string bus_id_of(int device) {
  std::array<char, 32> text{};
  DUET_CUDA(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device));
  return text.data();
}

/// Bytes of the card that this process uses, by the best witness there is.
std::size_t used_now(const std::string& bus_id) {
  if (const auto process = used_bytes_of_process(bus_id.c_str())) return *process;
  return used_bytes_of_card(bus_id.c_str()).value_or(0);
}

Card start_card() {
  if (const auto problem = why_no_card()) throw Error(Code::device, "No card can be used: " + *problem);
  Card card;
  cudaDeviceProp properties{};
  DUET_CUDA(cudaGetDeviceProperties(&properties, card.device));
  card.name = properties.name;
  card.major = properties.major;
  card.minor = properties.minor;
  card.multiprocessors = properties.multiProcessorCount;
  card.memory_bytes = properties.totalGlobalMem;

  const std::string bus_id = bus_id_of(card.device);
  const std::size_t before = used_now(bus_id);
  DUET_CUDA(cudaSetDevice(card.device));
  DUET_CUDA(cudaFree(nullptr));
  const std::size_t after = used_now(bus_id);
  const auto process = used_bytes_of_process(bus_id.c_str());
  // A process that had a context before us: it is all the process's, and is counted whole.
  card.context_bytes = process ? *process : after - std::min(before, after);
  return card;
}

}  // namespace

std::optional<std::string> why_no_card() {
  // Before the driver is woken: code loaded later would take memory that the plan does not know of.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) return "the NVIDIA driver is missing or older than this build needs (580)";
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    return "no NVIDIA card is visible (nvidia-smi and CUDA_VISIBLE_DEVICES tell more)";
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return fmt::format("the driver refuses: {}", cudaGetErrorString(status));
  }
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess)
    return "the card does not say what it is";
  if (major < kOldestMajor || (major == kOldestMajor && minor < kOldestMinor))
    return fmt::format("the card's compute capability is {}.{} and Duet needs {}.{} (Turing) or newer", major, minor,
                       kOldestMajor, kOldestMinor);
  return std::nullopt;
}

const Card& the_card() {
  static std::mutex mutex;
  static std::optional<Card> card;
  const std::lock_guard lock(mutex);
  if (!card) card = start_card();
  return *card;
}

std::optional<std::size_t> process_bytes() { return used_bytes_of_process(bus_id_of(the_card().device).c_str()); }

CardMemory card_memory() {
  CardMemory memory;
  std::size_t total = 0;
  DUET_CUDA(cudaMemGetInfo(&memory.free, &total));
  memory.used = used_bytes_of_card(bus_id_of(the_card().device).c_str()).value_or(total - memory.free);
  return memory;
}

}  // namespace duet::cuda
