#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loaders/safetensors.h"

namespace duet::loaders {

/// The head's file in any of its spellings, its fields as they stand there; kev_checkpoint judges them.
struct KevHeadFile {
  std::string source;                                   ///< For messages: where the fields stand.
  std::vector<std::pair<std::string, Tensor>> tensors;  ///< By their names in the head: "q.weight".
  bool is_torch_file = false;
  std::optional<std::string> base, base_revision, weights, weights_dtype;
  std::optional<std::int64_t> lora_rank, head_size;
  std::optional<bool> option_isolation, special_embeddings;
  std::optional<double> temperature;
};

bool has_kev_head(const std::filesystem::path& folder);

/// Throws Error(not_found) when there is none or its JSON is missing, Error(bad_file) for fields of the wrong kind,
/// Error(unsupported) for other delimiters or a newer format than the ones known.
KevHeadFile read_kev_head_file(const std::filesystem::path& folder, std::vector<std::string>& report);

}  // namespace duet::loaders
