#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "duet/engine.h"
#include "engine/weight_source.h"

namespace duet::loaders {

/// A Hugging Face folder: config.json and safetensors, 16/32-bit or bitsandbytes 4-bit (or both in one folder).
/// Headers, names and shapes are checked here, before anything is read. See open_checkpoint (loaders/loaders.h), which
/// also takes packed files.
std::shared_ptr<const WeightSource> open_hf_checkpoint(const std::filesystem::path& folder,
                                                       const WeightOptions& options);

/// Everything about a model that decides what its weights are in memory, as text for WeightSource::identity.
std::string describe_weights(const ModelSpec& spec, const std::vector<WeightTensor>& tensors);

}  // namespace duet::loaders
