// Nothing is allocated on the card after start: every way into the driver that gives memory is trapped. The runtime is
// linked statically and finds the driver's functions through dlsym and cuGetProcAddress; this program has a dlsym of
// its own, so it can hand out functions that count.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/card.h"
#include "cuda/check.h"
#include "cuda/cuda_backend.h"
#include "engine/runtime.h"
#include "tests/host/array_source.h"
#include "tests/host/device_under_test.h"
#include "tests/host/step_runner.h"

namespace duet::test {
namespace {

// ---- the trap ----

std::atomic<bool> armed{false};

struct Trap {
  const char* name;
  void* counting;
  void* real = nullptr;
  std::atomic<int> calls{0};
};
extern std::array<Trap, 20> traps;

template <int kTrap, class Function>
struct Counting;
template <int kTrap, class... Arguments>
struct Counting<kTrap, CUresult (*)(Arguments...)> {
  static CUresult call(Arguments... arguments) {
    Trap& trap = traps[kTrap];
    if (armed) ++trap.calls;
    return reinterpret_cast<CUresult (*)(Arguments...)>(trap.real)(arguments...);
  }
};

#define DUET_TRAP(index, function) \
  { #function, reinterpret_cast < void*>(&Counting <index, decltype(&::function)>::call) }
std::array<Trap, 20> traps{{
    {"cuMemAlloc", reinterpret_cast<void*>(&Counting<0, CUresult (*)(CUdeviceptr*, std::size_t)>::call)},
    {"cuMemFree", reinterpret_cast<void*>(&Counting<1, CUresult (*)(CUdeviceptr)>::call)},
    {"cuMemAllocPitch",
     reinterpret_cast<void*>(
         &Counting<2, CUresult (*)(CUdeviceptr*, std::size_t*, std::size_t, std::size_t, unsigned)>::call)},
    {"cuMemAllocHost", reinterpret_cast<void*>(&Counting<3, CUresult (*)(void**, std::size_t)>::call)},
    DUET_TRAP(4, cuMemAllocManaged),
    DUET_TRAP(5, cuMemHostAlloc),
    DUET_TRAP(6, cuMemFreeHost),
    DUET_TRAP(7, cuMemAllocAsync),
    DUET_TRAP(8, cuMemAllocFromPoolAsync),
    DUET_TRAP(9, cuMemFreeAsync),
    DUET_TRAP(10, cuMemCreate),
    DUET_TRAP(11, cuMemMap),
    DUET_TRAP(12, cuMemPoolCreate),
    DUET_TRAP(13, cuGraphInstantiateWithFlags),
    DUET_TRAP(14, cuGraphInstantiateWithParams),
    DUET_TRAP(15, cuModuleLoadData),
    DUET_TRAP(16, cuLibraryLoadData),
    DUET_TRAP(17, cuStreamCreate),
    DUET_TRAP(18, cuEventCreate),
    DUET_TRAP(19, cuMemHostRegister),
}};
#undef DUET_TRAP

/// The counting function in place of `real`, when `name` is trapped.
void* trapped(const char* name, void* real) {
  for (Trap& trap : traps) {
    const std::size_t length = std::strlen(trap.name);
    if (std::strncmp(name, trap.name, length) != 0) continue;
    const char* const rest = name + length;  // "", "_v2", "_ptsz", ...
    if (*rest != '\0' && *rest != '_') continue;
    trap.real = real;
    return trap.counting;
  }
  return real;
}

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
GetProcAddress real_get_proc_address = nullptr;

CUresult counting_get_proc_address(const char* symbol, void** function, int version, cuuint64_t flags,
                                   CUdriverProcAddressQueryResult* status) {
  const CUresult result = real_get_proc_address(symbol, function, version, flags, status);
  if (result != CUDA_SUCCESS || function == nullptr || *function == nullptr) return result;
  if (std::strcmp(symbol, "cuGetProcAddress") == 0)
    *function = reinterpret_cast<void*>(&counting_get_proc_address);
  else
    *function = trapped(symbol, *function);
  return result;
}

std::string calls_text() {
  std::string text;
  for (const Trap& trap : traps)
    if (trap.calls > 0) text += std::string(trap.name) + " " + std::to_string(trap.calls) + " times; ";
  return text;
}

void arm() {
  for (Trap& trap : traps) trap.calls = 0;
  armed = true;
}

}  // namespace
}  // namespace duet::test

/// In place of the C library's: hands out counting functions of the driver.
extern "C" void* dlsym(void* handle, const char* name) {
  using Dlsym = void* (*)(void*, const char*);
  static const auto real = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  void* const function = real(handle, name);
  if (function == nullptr || std::strncmp(name, "cu", 2) != 0) return function;
  if (std::strncmp(name, "cuGetProcAddress", 16) == 0) {
    duet::test::real_get_proc_address = reinterpret_cast<duet::test::GetProcAddress>(function);
    return reinterpret_cast<void*>(&duet::test::counting_get_proc_address);
  }
  return duet::test::trapped(name, function);
}

namespace duet::test {
namespace {

TEST(CudaAllocations, TheTrapCatchesEveryWayToGetMemory) {
  DUET_NEEDS_DEVICE();
  DUET_CUDA(cudaFree(nullptr));
  const auto caught = [](auto&& call) {
    arm();
    call();
    armed = false;
    return calls_text();
  };
  void* memory = nullptr;
  EXPECT_NE(caught([&] { DUET_CUDA(cudaMalloc(&memory, 1 << 20)); }), "");
  EXPECT_NE(caught([&] { DUET_CUDA(cudaFree(memory)); }), "");
  EXPECT_NE(caught([&] { DUET_CUDA(cudaMallocAsync(&memory, 1 << 20, nullptr)); }), "");
  EXPECT_NE(caught([&] { DUET_CUDA(cudaFreeAsync(memory, nullptr)); }), "");
  EXPECT_NE(caught([&] { DUET_CUDA(cudaHostAlloc(&memory, 1 << 20, 0)); }), "");
  EXPECT_NE(caught([&] { DUET_CUDA(cudaFreeHost(memory)); }), "");
  EXPECT_NE(caught([&] { DUET_CUDA(cudaMallocManaged(&memory, 1 << 20)); }), "");
  DUET_CUDA(cudaFree(memory));
  EXPECT_EQ(caught([] { DUET_CUDA(cudaDeviceSynchronize()); }), "");
}

TEST(CudaAllocations, ThereAreNoneOverAThousandSwitchesCancelsAndAdapterSwaps) {
  DUET_NEEDS_DEVICE();
  const std::vector<Part> seven{Part::query, Part::key, Part::value, Part::output, Part::gate, Part::up, Part::down};
  ArraySource first(small_spec(), all_in({.storage = Storage::nf4, .block_size = 64}), 800);
  ArraySource second(small_spec(), all_in({.storage = Storage::int8, .block_size = 64}), 801);
  StepRunner runner({&first, &second}, {.chunk_tokens = 32, .max_sequences = 6, .kv_tokens = 1024, .adapter_slots = 3});
  std::vector<ArrayAdapter> adapters;
  for (std::uint32_t i = 0; i < 3; ++i)
    adapters.push_back(
        random_adapter(small_spec(), seven, 4 + static_cast<int>(i), 0.5F, i == 2, Storage::f16, 810 + i));

  Runtime runtime(*runner.backend, runner.plan, std::vector<RuntimeModel>(2), {.steps_per_turn = 1});
  runtime.load_adapter(0, "stays", adapters[0], 1.0);
  runtime.load_adapter(1, "stays", adapters[1], 1.0);
  const std::size_t used = cuda::process_bytes().value_or(0);
  arm();
  for (int round = 0; round < 120; ++round) {
    std::vector<Ticket> tickets;
    for (int i = 0; i < 6; ++i) {
      TokenRequest request;
      request.model = i % 2;
      request.prompt_ids = random_tokens(1 + static_cast<std::size_t>((round * 7 + i * 13) % 70), 128,
                                         static_cast<std::uint32_t>(round * 10 + i));
      request.adapter = i < 2 ? "none" : "stays";
      request.max_tokens = 8;
      request.ignore_end_tokens = true;
      if (i == 3) {
        request.sampling.temperature = 0.7;
        request.sampling.repetition_penalty = 1.1;
        request.sampling.logit_bias = {{3, 1.0F}};
        request.logprobs = 5;
      }
      tickets.push_back(runtime.submit(request));
    }
    runtime.cancel(tickets[static_cast<std::size_t>(round % 6)]);
    runtime.load_adapter(round % 2, "swapped", adapters[static_cast<std::size_t>(round % 3)], 1.0);
    for (const Ticket ticket : tickets) {
      const Answer answer = runtime.wait(ticket);
      EXPECT_TRUE(answer.code == Code::ok || answer.code == Code::cancelled) << answer.message;
    }
    runtime.drop_adapter(round % 2, "swapped");
  }
  armed = false;
  EXPECT_EQ(calls_text(), "");
  EXPECT_EQ(cuda::process_bytes().value_or(0), used);
  EXPECT_GE(runtime.counters().switches, 1000U);
}

}  // namespace
}  // namespace duet::test
