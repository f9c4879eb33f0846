#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "duet/engine.h"
#include "engine/weight_source.h"

/// Random weights for any spec; see loaders/synthetic.h for how they are drawn.
namespace duet::loaders {

std::shared_ptr<const WeightSource> random_weights(const ModelSpec& spec, const std::string& name,
                                                   const WeightOptions& options, std::uint64_t seed);

/// Throws Error(invalid_argument) for a rank under 1 or above the smallest side it would have.
void write_random_adapter(const std::filesystem::path& folder, const ModelSpec& spec, std::string_view base_name,
                          int rank, std::uint64_t seed);

}  // namespace duet::loaders
