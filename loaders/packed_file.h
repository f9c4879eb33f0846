#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "duet/engine.h"
#include "engine/weight_source.h"

/// Duet's own file: a whole model in one piece, each region byte for byte as it lies in memory. docs/formats.md.
namespace duet::loaders {

/// Bytes done and bytes in all.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Name and content of the small files a checkpoint carries (tokenizer.json, ...).
using TextFiles = std::vector<std::pair<std::string, std::string>>;

/// Writes `source` as it is: storage and layout of its tensors. Needs memory for its largest region. The file appears
/// under its name when it is complete; a failed write leaves nothing. Throws Error.
void write_packed_file(const std::filesystem::path& path, const WeightSource& source, const TextFiles& texts,
                       const Progress& progress = {});

/// Whether a regular file of this name begins like a packed file.
bool is_packed_file(const std::filesystem::path& path);

/// Header checked, data mapped. `options` may ask for other storage than the file holds, as with any checkpoint; what
/// is kept is copied without a change. `read` checks the region's checksum each time. Throws Error.
std::shared_ptr<const WeightSource> open_packed_file(const std::filesystem::path& path, const WeightOptions& options);

/// A text from inside; empty when there is none of that name. Throws Error(bad_file).
std::optional<std::string> read_packed_text(const std::filesystem::path& path, std::string_view name);

}  // namespace duet::loaders
