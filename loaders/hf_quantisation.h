#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights.h"
#include "loaders/json_file.h"

/// What config.json says of a bitsandbytes 4-bit checkpoint. Only the plan made without weights relies on it: once
/// there are tensors, they decide.
namespace duet::loaders {

struct HfQuantisation {
  StorageSpec storage;               ///< Block size 64: config.json does not say it, and bitsandbytes has this default.
  std::vector<std::string> skipped;  ///< Modules left dense: "lm_head", "model.layers.1.mlp".
};

/// Empty when the config has no 4-bit `quantization_config`. A list of skipped modules that is absent, null or the
/// string "null" means the head alone. Throws Error(bad_file).
std::optional<HfQuantisation> parse_quantisation(const Json& config, const std::string& source);
std::optional<HfQuantisation> read_quantisation(const std::filesystem::path& folder);

/// Whether the tensor belongs to a listed module: the whole path, a leading part of it or a trailing one, with or
/// without "model." in front.
bool is_skipped(const HfQuantisation& quantisation, std::string_view tensor);

/// `dtype` or `torch_dtype` of the config; float32, transformers' default, with a note when there is none.
Storage parse_dtype(const Json& config, const std::string& source, std::vector<std::string>& report);

}  // namespace duet::loaders
