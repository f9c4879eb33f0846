#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "loaders/peft_config.h"
#include "loaders/peft_names.h"
#include "loaders/peft_targets.h"
#include "loaders/safetensors.h"

namespace duet::loaders {

/// A module of the base and the tensors of the file that are its own.
struct ResolvedModule {
  TargetedModule target;
  std::map<AdapterLeaf, const Tensor*> tensors;
};

/// The names under which more of the file's tensors find a module of the base; those of the causal model where it makes
/// no difference.
BaseNames base_names_in(const SafetensorsFile& file, const ModelSpec& base);

/// Matches the file and the config both ways: every tensor of the file belongs to a module that the config adapts,
/// every module that the config adapts has all its tensors. Throws Error(bad_file) that lists what is left over on
/// either side, why, and the nearest name that would have been right. The result points into `file`, which must outlive
/// it, and holds only modules that have tensors. `base_name`: of the base model, for messages.
std::vector<ResolvedModule> resolve_tensors(const PeftConfig& config, std::vector<TargetedModule> targets,
                                            const SafetensorsFile& file, std::string_view base_name,
                                            std::vector<std::string>& report);

}  // namespace duet::loaders
