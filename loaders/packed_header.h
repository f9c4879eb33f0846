#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model.h"
#include "engine/weight_source.h"
#include "loaders/json_file.h"

/// The header of a packed file (docs/formats.md): 64 bytes that say what follows, then a JSON directory.
namespace duet::loaders {

constexpr std::uint32_t kPackedVersion = 1;
constexpr std::uint64_t kPackedAlignment = 4096;  ///< Of every text and region in the file.
constexpr std::uint64_t kLargestDirectory = std::uint64_t{64} << 20;
constexpr std::uint64_t kLargestText = std::uint64_t{256} << 20;

struct PackedPrologue {
  std::uint64_t directory_bytes = 0;
  std::uint64_t directory_checksum = 0;
  std::uint64_t file_bytes = 0;
};
constexpr std::size_t kPrologueBytes = 64;

std::array<std::byte, kPrologueBytes> encode(const PackedPrologue& prologue);
bool has_packed_magic(std::span<const std::byte> first_bytes);
/// `bytes`: the first kPrologueBytes of the file. Throws Error(bad_file), or Error(unsupported) for a newer version.
PackedPrologue decode_prologue(std::span<const std::byte> bytes, const std::string& source);

/// Where a piece of the file lies and what its bytes sum to.
struct PackedExtent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

struct PackedText {
  std::string name;  ///< "tokenizer.json"
  PackedExtent extent;
};

struct PackedDirectory {
  ModelSpec spec;
  std::vector<WeightTensor> tensors;  ///< In the order of tensors_of(spec).
  std::vector<PackedExtent> extents;  ///< Of the tensors.
  std::vector<PackedText> texts;
};

/// The text's length depends on sizes and offsets only, not on the checksums: they may be filled in afterwards.
std::string to_json(const PackedDirectory& directory);

/// Throws Error(bad_file) naming the key: tensors that are not exactly those of the spec, sizes that are not those of
/// the layout, extents that are not aligned, leave the file or overlap. `header_bytes`: where the extents may begin.
PackedDirectory parse_directory(std::string_view json, const std::string& source, std::uint64_t header_bytes,
                                std::uint64_t file_bytes);

Json spec_to_json(const ModelSpec& spec);
ModelSpec spec_from_json(const JsonObject& object);  ///< Checked by check(spec).

}  // namespace duet::loaders
