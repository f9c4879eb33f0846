#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model.h"
#include "loaders/peft_config.h"

namespace duet::loaders {

enum class ModuleKind : std::uint8_t { container, linear, embedding, norm };

/// What PEFT was put around: a causal model ("model.layers.0.self_attn.q_proj", "lm_head"), or the model without its
/// head ("layers.0.self_attn.q_proj").
enum class BaseNames : std::uint8_t { causal, headless };

/// A module of the base as transformers names it.
struct BaseModule {
  std::string name;
  ModuleKind kind = ModuleKind::container;
  Part weight = Part::embedding;  ///< Leaves only.
  int layer = -1;
  std::int64_t rows = 0;  ///< Of the weight; norms: 1.
  std::int64_t columns = 0;
  bool has_bias = false;
  Part bias = Part::embedding;  ///< With has_bias.
};

/// What a PEFT config makes of one module of the base.
struct TargetedModule {
  BaseModule base;
  bool lora = false;
  bool saved = false;  ///< By modules_to_save, itself or with what it stands in.
  int rank = 0;        ///< With lora, as the config says.
  double alpha = 0;
  double scale = 0;  ///< alpha / rank, or alpha / sqrt(rank).
};

/// Every module of a decoder, containers included, in the order of transformers' named_modules(). A tied head has its
/// module all the same.
std::vector<BaseModule> modules_of(const ModelSpec& spec, BaseNames names = BaseNames::causal);

/// The leaves of `spec`, each with what PEFT 0.21 would do to it (tuners_utils.check_target_module_exists,
/// other.get_pattern_key, other._set_trainable). Throws Error(unsupported) when a target is neither a linear layer nor
/// an embedding, Error(bad_file) when the targets match nothing. Patterns that match nothing are reported.
std::vector<TargetedModule> resolve_targets(const PeftConfig& config, const ModelSpec& spec,
                                            std::vector<std::string>& report, BaseNames names = BaseNames::causal);

}  // namespace duet::loaders
