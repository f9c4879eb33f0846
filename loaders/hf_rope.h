#pragma once

#include <string>
#include <vector>

#include "engine/model.h"
#include "loaders/json_file.h"

namespace duet::loaders {

/// Rotary embedding of a config in any of its spellings: `rope_theta` at the top with `rope_scaling`, or
/// `rope_parameters`, flat or nested by layer type. Sizes and sliding layers of `spec` are already set. Both spellings
/// at once must agree. A hybrid's own keys (rotation of heads in part, of pictures) are passed over.
RopeSpec read_rope(const JsonObject& config, const ModelSpec& spec, std::vector<std::string>& report);

/// Elements of a hybrid's head that are rotated: `partial_rotary_factor` of the head size, wherever it stands.
int read_rotary_size(const JsonObject& config, int head_size, std::vector<std::string>& report);

}  // namespace duet::loaders
