#pragma once

#include <string>
#include <vector>

#include "loaders/json_file.h"

namespace duet::loaders {

/// Throws Error(unsupported) for a key of config.json that asks for other maths than Duet's decoders do, whatever
/// family it stands in; notes keys nobody here knows in `report`. Keys that the config reader itself uses are passed
/// over.
void refuse_unsupported_keys(const JsonObject& config, std::vector<std::string>& report);

}  // namespace duet::loaders
