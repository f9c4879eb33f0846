#pragma once

#include <string>
#include <vector>

#include "engine/model.h"
#include "loaders/json_file.h"

namespace duet::loaders {

/// Rotary embedding of a config in any of its spellings: `rope_theta` at the top with `rope_scaling`, or
/// `rope_parameters`, flat or nested by layer type. Sizes and sliding layers of `spec` are already set. Both spellings
/// at once must agree.
RopeSpec read_rope(const JsonObject& config, const ModelSpec& spec, std::vector<std::string>& report);

}  // namespace duet::loaders
