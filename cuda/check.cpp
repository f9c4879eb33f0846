#include "cuda/check.h"

#include <fmt/format.h>

#include <string_view>

#include "duet/error.h"

namespace duet::cuda {
namespace {

std::string_view remedy_of(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "Lower --budget, or close other programs that use the card (nvidia-smi lists them)";
    case cudaErrorInsufficientDriver:
      return "Install a driver of version 580 or newer, or pass --device host";
    case cudaErrorNoDevice:
      return "No NVIDIA card is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or pass --device host";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "This build holds no code for the card: configure with -DCMAKE_CUDA_ARCHITECTURES=<its compute "
             "capability>";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
      return "The card's context is lost and the program must be started again; if it happens twice, please report it "
             "with the command";
    default:
      return "Look at nvidia-smi; if the card is healthy, please report this with the command";
  }
}

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // a sticky error stays, any other must not surface in a later call
  const std::string_view name(call);
  throw Error(status == cudaErrorMemoryAllocation ? Code::no_room : Code::device,
              fmt::format("The card refused {}: {} ({})", name.substr(0, name.find('(')), cudaGetErrorString(status),
                          cudaGetErrorName(status)),
              remedy_of(status));
}

}  // namespace duet::cuda
