#include "loaders/peft_resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

constexpr std::size_t kShownNames = 4;

bool is_table(const BaseModule& module) { return module.weight == Part::embedding || module.weight == Part::head; }

/// The tensors that the config wants of a module.
std::vector<AdapterLeaf> wanted_leaves(const PeftConfig& config, const TargetedModule& target) {
  std::vector<AdapterLeaf> leaves;
  if (target.lora) {
    const bool embedding = target.base.kind == ModuleKind::embedding;
    leaves.push_back(embedding ? AdapterLeaf::embedding_a : AdapterLeaf::lora_a);
    leaves.push_back(embedding ? AdapterLeaf::embedding_b : AdapterLeaf::lora_b);
    if (config.dora) leaves.push_back(AdapterLeaf::magnitude);
    if (config.lora_bias) leaves.push_back(AdapterLeaf::lora_bias);
  }
  if (target.saved) leaves.push_back(AdapterLeaf::saved_weight);
  const bool trained_bias =
      config.bias == TrainedBias::all || (config.bias == TrainedBias::lora_only && target.lora) || target.saved;
  if (target.base.has_bias && trained_bias) leaves.push_back(AdapterLeaf::saved_bias);
  return leaves;
}

/// Tensors that PEFT adds by itself: tables that were resized, or stand beside LoRA.
bool is_optional(const TargetedModule& target, AdapterLeaf leaf) {
  if (!is_table(target.base)) return false;
  return target.lora ? leaf == AdapterLeaf::base_layer_weight : leaf == AdapterLeaf::saved_weight;
}

/// Why a tensor of a known module is not wanted.
std::string reason_against(const PeftConfig& config, const TargetedModule& target, AdapterLeaf leaf) {
  switch (leaf) {
    case AdapterLeaf::magnitude:
      if (target.lora) return "use_dora is false";
      break;
    case AdapterLeaf::lora_bias:
      if (target.lora) return "lora_bias is false";
      break;
    case AdapterLeaf::saved_bias:
      if (!target.base.has_bias) return "the base has no such bias";
      return config.bias == TrainedBias::none ? "bias is none" : "bias is lora_only";
    case AdapterLeaf::saved_weight:
    case AdapterLeaf::base_layer_weight:
      return "modules_to_save does not name it";
    default:
      break;
  }
  if (!target.lora) return "target_modules does not reach it";
  return target.base.kind == ModuleKind::embedding ? "the module is an embedding" : "the module is no embedding";
}

struct ParsedKey {
  const Tensor* tensor = nullptr;
  std::optional<AdapterKey> key;
};

using ModuleIndex = std::map<std::string, std::size_t, std::less<>>;

std::optional<std::size_t> find_module(const ParsedKey& parsed, int form, const ModuleIndex& index) {
  if (!parsed.key) return std::nullopt;
  const auto name = strip_prefix(parsed.key->module, form);
  if (!name) return std::nullopt;
  const auto found = index.find(*name);
  return found == index.end() ? std::nullopt : std::optional(found->second);
}

std::vector<ParsedKey> parsed_keys(const SafetensorsFile& file) {
  std::vector<ParsedKey> keys;
  keys.reserve(file.tensors().size());
  for (const Tensor& tensor : file.tensors()) keys.push_back({&tensor, parse_adapter_key(tensor.name)});
  return keys;
}

struct FormCount {
  int form = 0;
  std::ptrdiff_t found = -1;
};

/// The form under which most keys name a module; the first of equals.
FormCount best_form(const std::vector<ParsedKey>& keys, const ModuleIndex& index) {
  FormCount best;
  for (int form = 0; form < kPrefixForms; ++form) {
    const auto found = std::count_if(keys.begin(), keys.end(),
                                     [&](const ParsedKey& key) { return find_module(key, form, index).has_value(); });
    if (found > best.found) best = {form, found};
  }
  return best;
}

/// What does not fit, in words.
class Misfits {
 public:
  explicit Misfits(std::vector<std::string> real_names) : real_names_(std::move(real_names)) {}

  void unknown(const std::string& key) {
    ++unused_count_;
    if (unused_.size() >= kShownNames) return;
    const std::string nearest = nearest_name(key, real_names_);
    unused_.push_back(nearest.empty() ? quote(key)
                                      : fmt::format("{} (the nearest real name is {})", quote(key), quote(nearest)));
  }
  void unwanted(const std::string& key, const std::string& reason) {
    ++unused_count_;
    if (unused_.size() < kShownNames) unused_.push_back(fmt::format("{} ({})", quote(key), reason));
  }
  void missing(const std::string& key) { missing_.push_back(key); }

  void throw_if_any(const SafetensorsFile& file, const PeftConfig& config, std::string_view base_name) const {
    if (unused_count_ == 0 && missing_.empty()) return;
    std::string text;
    if (unused_count_ > 0) {
      const std::size_t hidden = unused_count_ - unused_.size();
      text = fmt::format("{} of its {} tensors fit nothing in {}: {}{}", unused_count_, file.tensors().size(),
                         quote(base_name), fmt::join(unused_, ", "),
                         hidden > 0 ? fmt::format(" and {} more", hidden) : "");
    }
    if (!missing_.empty()) {
      text += fmt::format("{}{} that {} asks for are missing: {}", text.empty() ? "" : "; ", missing_.size(),
                          quote(config.source), listed(missing_, kShownNames));
    }
    throw Error(Code::bad_file, fmt::format("{}: {}", quote(file.file()->name()), text),
                "Was the adapter trained on this base, and are its two files of one run?");
  }

 private:
  std::vector<std::string> real_names_;
  std::vector<std::string> unused_;
  std::size_t unused_count_ = 0;
  std::vector<std::string> missing_;
};

std::vector<std::string> wanted_names(const PeftConfig& config, const std::vector<TargetedModule>& targets) {
  std::vector<std::string> names;
  for (const TargetedModule& target : targets) {
    for (const AdapterLeaf leaf : wanted_leaves(config, target)) names.push_back(canonical_key(target.base.name, leaf));
  }
  return names;
}

}  // namespace

BaseNames base_names_in(const SafetensorsFile& file, const ModelSpec& base) {
  const std::vector<ParsedKey> keys = parsed_keys(file);
  const auto found = [&](BaseNames names) {
    ModuleIndex index;
    for (const BaseModule& module : modules_of(base, names)) index.emplace(module.name, 0);
    return best_form(keys, index).found;
  };
  return found(BaseNames::headless) > found(BaseNames::causal) ? BaseNames::headless : BaseNames::causal;
}

std::vector<ResolvedModule> resolve_tensors(const PeftConfig& config, std::vector<TargetedModule> targets,
                                            const SafetensorsFile& file, std::string_view base_name,
                                            std::vector<std::string>& report) {
  const std::vector<ParsedKey> keys = parsed_keys(file);
  ModuleIndex index;
  for (std::size_t i = 0; i < targets.size(); ++i) index.emplace(targets[i].base.name, i);
  const int form = best_form(keys, index).form;

  Misfits misfits(wanted_names(config, targets));
  std::vector<ResolvedModule> modules;
  modules.reserve(targets.size());
  for (TargetedModule& target : targets) modules.push_back({std::move(target), {}});
  for (const ParsedKey& parsed : keys) {
    const auto found = find_module(parsed, form, index);
    if (!found) {
      misfits.unknown(parsed.tensor->name);
      continue;
    }
    ResolvedModule& module = modules[*found];
    const AdapterLeaf leaf = parsed.key->leaf;
    const std::vector<AdapterLeaf> wanted = wanted_leaves(config, module.target);
    if (std::find(wanted.begin(), wanted.end(), leaf) == wanted.end() && !is_optional(module.target, leaf)) {
      misfits.unwanted(parsed.tensor->name, reason_against(config, module.target, leaf));
      continue;
    }
    const auto [place, is_new] = module.tensors.emplace(leaf, parsed.tensor);
    if (!is_new) misfits.unwanted(parsed.tensor->name, fmt::format("it is {} again", quote(place->second->name)));
  }
  for (const ResolvedModule& module : modules) {
    for (const AdapterLeaf leaf : wanted_leaves(config, module.target)) {
      if (!module.tensors.contains(leaf)) misfits.missing(canonical_key(module.target.base.name, leaf));
    }
  }
  misfits.throw_if_any(file, config, base_name);
  if (form != 0)
    report.push_back(fmt::format("{}: names have {}", quote(file.file()->name()), describe_prefix_form(form)));
  std::erase_if(modules, [](const ResolvedModule& module) { return module.tensors.empty(); });
  return modules;
}

}  // namespace duet::loaders
