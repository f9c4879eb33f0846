#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/backend.h"

/// The CUDA backend's factory. Built without CUDA, the same functions say so (no_cuda.cpp).
namespace duet::cuda {

/// Empty when a usable card and driver are there; else the sentence that says why not.
std::optional<std::string> why_unavailable();

/// Creates the card's context when there is none yet, to know what it costs.
BackendFacts cuda_facts(KvStorage kv_storage);
std::unique_ptr<Backend> make_cuda_backend(const Plan& plan);

}  // namespace duet::cuda
