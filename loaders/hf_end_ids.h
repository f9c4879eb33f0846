#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model.h"
#include "loaders/json_file.h"

namespace duet::loaders {

/// Token ids under a key: a number, a list of numbers, null or absent. Ids that no row of the vocabulary has can never
/// be emitted: they are left out, and the report says so.
std::vector<std::int32_t> read_ids(const JsonObject& object, std::string_view key, int vocabulary,
                                   std::vector<std::string>& report);

/// Adds to spec.end_ids what generation_config.json and tokenizer_config.json of the folder name; sorted, no doubles.
/// Where config.json is silent (`named_by_config` false) and one of them speaks, the family's default in `spec` gives
/// way.
void add_end_ids(const std::filesystem::path& folder, bool named_by_config, ModelSpec& spec,
                 std::vector<std::string>& report);

}  // namespace duet::loaders
