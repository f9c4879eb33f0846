#pragma once

#include <string_view>

#include "engine/json_value.h"
#include "loaders/json_file.h"

namespace duet::loaders {

/// JSON text of a request. `source` is for messages. Throws Error(bad_file) as parse_json does, and for an integer
/// beyond the range of 64-bit floats.
JsonValue parse_json_value(std::string_view text, std::string_view source, const JsonLimits& limits = {});

}  // namespace duet::loaders
