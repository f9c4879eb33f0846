#include "cuda/management.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>

namespace duet::cuda {
namespace {

// From the NVML API reference; only what is called here.
struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
constexpr int kSuccess = 0;
constexpr unsigned kMostProcesses = 256;
constexpr unsigned long long kNotAvailable = ~0ULL;

struct Library {
  int (*init)() = nullptr;
  int (*handle_of)(const char*, void**) = nullptr;
  int (*memory_of)(void*, Memory*) = nullptr;
  int (*processes_of)(void*, unsigned*, ProcessInfo*) = nullptr;
  bool usable = false;

  Library() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    usable = find(init, "nvmlInit_v2") && find(handle_of, "nvmlDeviceGetHandleByPciBusId_v2") &&
             find(memory_of, "nvmlDeviceGetMemoryInfo") &&
             find(processes_of, "nvmlDeviceGetComputeRunningProcesses_v3") && init() == kSuccess;
  }
};

const Library& library() {
  static const Library kLibrary;  // Never unloaded: the driver keeps it anyway.
  return kLibrary;
}

void* handle_of(const char* bus_id) {
  void* handle = nullptr;
  if (!library().usable || library().handle_of(bus_id, &handle) != kSuccess) return nullptr;
  return handle;
}

}  // namespace

std::optional<std::size_t> used_bytes_of_card(const char* bus_id) {
  void* const handle = handle_of(bus_id);
  Memory memory{};
  if (handle == nullptr || library().memory_of(handle, &memory) != kSuccess) return std::nullopt;
  return memory.used;
}

std::optional<std::size_t> used_bytes_of_process(const char* bus_id) {
  void* const handle = handle_of(bus_id);
  std::array<ProcessInfo, kMostProcesses> processes{};
  unsigned count = kMostProcesses;
  if (handle == nullptr || library().processes_of(handle, &count, processes.data()) != kSuccess) return std::nullopt;
  for (unsigned i = 0; i < count; ++i) {
    const ProcessInfo& process = processes[i];
    if (process.pid == static_cast<unsigned>(getpid()) && process.used != kNotAvailable) return process.used;
  }
  return std::nullopt;
}

}  // namespace duet::cuda
