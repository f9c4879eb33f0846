#pragma once

#include <string>
#include <vector>

#include "loaders/json_file.h"

namespace duet::loaders {

/// Throws Error(unsupported) for a key of config.json that asks for other maths than Duet's decoders do, whatever
/// family it stands in; notes keys nobody here knows in `report`. Keys that the config reader itself uses are passed
/// over, those of hybrids where `hybrid` says so.
void refuse_unsupported_keys(const JsonObject& config, bool hybrid, std::vector<std::string>& report);

/// The same of what stands around a hybrid's text_config: the picture part is not read.
void refuse_unsupported_wrapper_keys(const JsonObject& wrapper, std::vector<std::string>& report);

}  // namespace duet::loaders
