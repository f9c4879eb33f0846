#pragma once

#include <cuda_runtime_api.h>

namespace duet::cuda {

/// Throws Error: no_room for out of memory, device for the rest, with the call, the reason and what to do; clears the
/// error first.
void check(cudaError_t status, const char* call);

}  // namespace duet::cuda

/// Every runtime call goes through here, so that none fails unseen.
#define DUET_CUDA(call) ::duet::cuda::check((call), #call)
