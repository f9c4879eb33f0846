#include "cuda/cuda_backend.h"
#include "duet/error.h"

namespace duet::cuda {

std::optional<std::string> why_unavailable() { return "this Duet was built without its CUDA backend"; }

BackendFacts cuda_facts(KvStorage) {
  throw Error(Code::unsupported, "This Duet was built without its CUDA backend", "Pass --device host");
}

std::unique_ptr<Backend> make_cuda_backend(const Plan&) {
  throw Error(Code::unsupported, "This Duet was built without its CUDA backend", "Pass --device host");
}

}  // namespace duet::cuda
