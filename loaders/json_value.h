#pragma once

#include <string_view>

#include "engine/json_value.h"
#include "loaders/json_file.h"

namespace duet::loaders {

/// JSON text of a request. `source` is for messages. Throws Error(bad_file) as parse_json does, and for an integer of
/// more than 4,300 digits, which Python refuses too.
JsonValue parse_json_value(std::string_view text, std::string_view source, const JsonLimits& limits = {});

}  // namespace duet::loaders
