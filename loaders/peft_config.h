#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loaders/json_file.h"

namespace duet::loaders {

enum class TrainedBias : std::uint8_t { none, lora_only, all };

/// adapter_config.json of a LoRA adapter, as far as it decides what the tensors mean. Defaults are PEFT's.
struct PeftConfig {
  std::string source;  ///< File name, for messages.
  int rank = 8;
  double alpha = 8;
  bool rank_stabilised = false;  ///< use_rslora: alpha / sqrt(rank) instead of alpha / rank.
  bool dora = false;
  bool lora_bias = false;
  TrainedBias bias = TrainedBias::none;

  bool all_linear = false;                                    ///< target_modules "all-linear".
  std::optional<std::string> target_expression;               ///< target_modules as one regular expression, ...
  std::vector<std::string> targets;                           ///< ... or as a list of names and endings of names.
  std::optional<std::string> exclude_expression;              ///< exclude_modules, likewise.
  std::vector<std::string> excluded;                          //
  std::vector<std::int64_t> layers;                           ///< layers_to_transform; empty: all.
  std::vector<std::string> layer_patterns;                    ///< layers_pattern
  std::vector<std::string> saved_modules;                     ///< modules_to_save
  std::vector<std::pair<std::string, int>> rank_pattern;      ///< In file order: the first that matches counts.
  std::vector<std::pair<std::string, double>> alpha_pattern;  ///< Likewise.
};

/// Throws Error(unsupported) naming the key for other methods than LoRA and for settings that change the formula in
/// ways Duet does not do; Error(bad_file) for values that make no sense. `ties_embeddings`: the base's head is its
/// embedding.
PeftConfig parse_peft_config(const Json& json, const std::string& source, bool ties_embeddings,
                             std::vector<std::string>& report);

}  // namespace duet::loaders
