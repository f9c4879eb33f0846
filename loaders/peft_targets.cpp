#include "loaders/peft_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "duet/error.h"
#include "loaders/names.h"
#include "loaders/peft_regex.h"

namespace duet::loaders {

namespace {

// ---- modules of the base ----

/// Writes down the modules of one layer.
class LayerLister {
 public:
  LayerLister(const ModelSpec& spec, int layer, std::vector<BaseModule>& modules)
      : m_(spec), layer_(layer), modules_(modules) {}

  void list() {
    container("");
    if (m_.is_delta(layer_))
      delta();
    else
      attention();
    container(".mlp");
    linear(".mlp.gate_proj", Part::gate, m_.mlp, m_.hidden, m_.mlp_bias, Part::gate_bias);
    linear(".mlp.up_proj", Part::up, m_.mlp, m_.hidden, m_.mlp_bias, Part::up_bias);
    linear(".mlp.down_proj", Part::down, m_.hidden, m_.mlp, m_.mlp_bias, Part::down_bias);
    container(".mlp.act_fn");
    norm(".input_layernorm", Part::input_norm, m_.hidden);
    norm(".post_attention_layernorm", Part::post_attention_norm, m_.hidden);
  }

 private:
  void attention() {
    container(".self_attn");
    linear(".self_attn.q_proj", Part::query, m_.query_rows(), m_.hidden, m_.query_key_value_bias, Part::query_bias);
    linear(".self_attn.k_proj", Part::key, m_.kv_width(), m_.hidden, m_.query_key_value_bias, Part::key_bias);
    linear(".self_attn.v_proj", Part::value, m_.kv_width(), m_.hidden, m_.query_key_value_bias, Part::value_bias);
    linear(".self_attn.o_proj", Part::output, m_.hidden, m_.query_width(), m_.output_bias, Part::output_bias);
    if (!m_.query_key_norm) return;
    norm(".self_attn.q_norm", Part::query_norm, m_.head_size);
    norm(".self_attn.k_norm", Part::key_norm, m_.head_size);
  }

  void delta() {
    const DeltaSpec& d = m_.delta;
    container(".linear_attn");
    container(".linear_attn.conv1d");
    norm(".linear_attn.norm", Part::delta_norm, d.value_size);
    linear(".linear_attn.out_proj", Part::delta_output, m_.hidden, d.value_width());
    linear(".linear_attn.in_proj_qkv", Part::delta_query_key_value, d.channels(), m_.hidden);
    linear(".linear_attn.in_proj_z", Part::delta_gate, d.value_width(), m_.hidden);
    linear(".linear_attn.in_proj_b", Part::delta_rate, d.value_heads, m_.hidden);
    linear(".linear_attn.in_proj_a", Part::delta_decay, d.value_heads, m_.hidden);
  }

  std::string named(std::string_view name) const { return fmt::format("model.layers.{}{}", layer_, name); }
  void container(std::string_view name) { modules_.push_back({.name = named(name), .layer = layer_}); }
  void linear(std::string_view name, Part part, int rows, int columns, bool has_bias = false,
              Part bias = Part::embedding) {
    modules_.push_back({named(name), ModuleKind::linear, part, layer_, rows, columns, has_bias, bias});
  }
  void norm(std::string_view name, Part part, int size) {
    modules_.push_back(
        {.name = named(name), .kind = ModuleKind::norm, .weight = part, .layer = layer_, .rows = 1, .columns = size});
  }

  const ModelSpec& m_;
  int layer_;
  std::vector<BaseModule>& modules_;
};

// ---- what a config says of a module ----

bool is_at_or_below(std::string_view name, std::string_view module) {
  return name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.');
}

/// Python: key == name or key.endswith("." + name).
bool is_named(std::string_view key, std::string_view name) {
  return key == name || (key.size() > name.size() && key.ends_with(name) && key[key.size() - name.size() - 1] == '.');
}

bool any_is_named(std::string_view key, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return is_named(key, name); });
}

/// A value for the modules whose whole tail the key matches: r"(.*\.)?({key})$".
template <typename Value>
class TailPatterns {
 public:
  TailPatterns(const std::vector<std::pair<std::string, Value>>& rows, std::string where) : where_(std::move(where)) {
    for (const auto& [key, value] : rows) {
      rows_.push_back(
          {key, value, Pattern(fmt::format("(.*\\.)?({})$", key), fmt::format("{}: {}", where_, quote(key)))});
    }
  }

  /// The first key in file order that matches counts.
  Value value_or(std::string_view module, Value fallback) {
    std::optional<Value> found;
    for (Row& row : rows_) {
      if (!row.pattern.matches_start(module)) continue;
      row.used = true;  // A key hidden behind an earlier one is no typing error.
      if (!found) found = row.value;
    }
    return found.value_or(fallback);
  }

  void report_unused(std::vector<std::string>& report) const {
    for (const Row& row : rows_) {
      if (!row.used) report.push_back(fmt::format("{}: {} matches no adapted module", where_, quote(row.key)));
    }
  }

 private:
  struct Row {
    std::string key;
    Value value;
    Pattern pattern;
    bool used = false;
  };
  std::vector<Row> rows_;
  std::string where_;
};

/// Which modules LoRA goes on.
class TargetRules {
 public:
  explicit TargetRules(const PeftConfig& config) : config_(config) {
    const auto where = [&](std::string_view key) {
      return fmt::format("{}: key {}", quote(config.source), quote(key));
    };
    if (config.target_expression) target_.emplace(*config.target_expression, where("target_modules"));
    if (config.exclude_expression) exclude_.emplace(*config.exclude_expression, where("exclude_modules"));
    for (const std::string& name : config.saved_modules) {
      saved_.emplace_back(fmt::format("(^|.*\\.){}($|\\..*)", name), where("modules_to_save"));
    }
    if (config.layer_patterns.empty()) {
      layers_.emplace_back(R"(.*?\.[^.]*\.(?P<idx>\d+)\.)", where("layers_pattern"));
    }
    for (const std::string& name : config.layer_patterns) {
      layers_.emplace_back(fmt::format(R"((?:^|.*?\.){}\.(?P<idx>\d+)\.)", name), where("layers_pattern"));
    }
  }

  bool is_target(const BaseModule& module) const {
    if (is_excluded(module.name)) return false;
    if (config_.all_linear) return module.kind == ModuleKind::linear && module.weight != Part::head;
    if (target_) return target_->matches_whole(module.name);
    if (std::find(config_.targets.begin(), config_.targets.end(), module.name) != config_.targets.end()) return true;
    return any_is_named(module.name, config_.targets) && is_chosen_layer(module.name);
  }

 private:
  bool is_excluded(std::string_view name) const {
    if (exclude_ && exclude_->matches_whole(name)) return true;
    if (any_is_named(name, config_.excluded)) return true;
    return std::any_of(saved_.begin(), saved_.end(),
                       [&](const Pattern& pattern) { return pattern.matches_start(name); });
  }

  bool is_chosen_layer(std::string_view name) const {
    if (config_.layers.empty()) return true;
    for (const Pattern& pattern : layers_) {
      const auto text = pattern.group_idx(name);
      if (!text) continue;
      std::int64_t layer = -1;
      std::from_chars(text->data(), text->data() + text->size(), layer);
      return std::find(config_.layers.begin(), config_.layers.end(), layer) != config_.layers.end();
    }
    return false;
  }

  const PeftConfig& config_;
  std::optional<Pattern> target_, exclude_;
  std::vector<Pattern> saved_, layers_;
};

/// The modules that modules_to_save names. As in PEFT, an ending of a name is enough, whatever letter is before it.
std::vector<std::string> saved_modules(const PeftConfig& config, const std::vector<BaseModule>& modules,
                                       std::vector<std::string>& report) {
  std::vector<std::string> saved;
  for (const std::string& name : config.saved_modules) {
    const std::size_t before = saved.size();
    for (const BaseModule& module : modules) {
      if (!name.empty() && module.name.ends_with(name)) saved.push_back(module.name);
    }
    if (saved.size() == before) {
      report.push_back(fmt::format("{}: modules_to_save names {}, which the model does not have", quote(config.source),
                                   quote(name)));
    }
  }
  return saved;
}

void check_target(const PeftConfig& config, const BaseModule& module, bool saved) {
  if (module.kind != ModuleKind::linear && module.kind != ModuleKind::embedding) {
    throw Error(Code::unsupported,
                fmt::format("{}: target_modules matches {}, which is neither a linear layer nor an embedding",
                            quote(config.source), quote(module.name)),
                "Name linear layers only");
  }
  if (saved) {
    throw Error(Code::bad_file, fmt::format("{}: {} is both in target_modules and in modules_to_save",
                                            quote(config.source), quote(module.name)));
  }
  if (config.lora_bias && module.kind == ModuleKind::embedding) {
    throw Error(Code::bad_file, fmt::format("{}: lora_bias is true, and {} is an embedding, which has no such bias",
                                            quote(config.source), quote(module.name)));
  }
}

[[noreturn]] void refuse_empty(const PeftConfig& config, const std::vector<BaseModule>& modules) {
  std::vector<std::string> names;
  names.reserve(modules.size());
  for (const BaseModule& module : modules) names.push_back(module.name.substr(module.name.rfind('.') + 1));
  const std::string nearest = config.targets.empty() ? "" : nearest_name(config.targets.front(), names);
  throw Error(Code::bad_file,
              fmt::format("{}: target_modules matches none of the model's {} modules{}", quote(config.source),
                          modules.size(), nearest.empty() ? "" : "; did it mean " + quote(nearest)));
}

}  // namespace

std::vector<BaseModule> modules_of(const ModelSpec& spec, BaseNames names) {
  std::vector<BaseModule> modules;
  modules.push_back({.name = "model"});
  modules.push_back({.name = "model.embed_tokens",
                     .kind = ModuleKind::embedding,
                     .weight = Part::embedding,
                     .rows = spec.vocabulary,
                     .columns = spec.hidden});
  modules.push_back({.name = "model.layers"});
  for (int layer = 0; layer < spec.layers; ++layer) LayerLister(spec, layer, modules).list();
  modules.push_back(
      {.name = "model.norm", .kind = ModuleKind::norm, .weight = Part::final_norm, .rows = 1, .columns = spec.hidden});
  modules.push_back({.name = "model.rotary_emb"});
  modules.push_back({.name = "lm_head",
                     .kind = ModuleKind::linear,
                     .weight = Part::head,
                     .rows = spec.vocabulary,
                     .columns = spec.hidden});
  if (names == BaseNames::causal) return modules;
  constexpr std::string_view kModel = "model.";
  std::erase_if(modules, [&](const BaseModule& module) { return !module.name.starts_with(kModel); });
  for (BaseModule& module : modules) module.name.erase(0, kModel.size());
  return modules;
}

std::vector<TargetedModule> resolve_targets(const PeftConfig& config, const ModelSpec& spec,
                                            std::vector<std::string>& report, BaseNames names) {
  const std::vector<BaseModule> modules = modules_of(spec, names);
  const std::vector<std::string> saved = saved_modules(config, modules, report);
  const TargetRules rules(config);
  TailPatterns<int> ranks(config.rank_pattern, quote(config.source) + ": rank_pattern");
  TailPatterns<double> alphas(config.alpha_pattern, quote(config.source) + ": alpha_pattern");
  std::vector<TargetedModule> targeted;
  bool any_target = false;
  for (const BaseModule& module : modules) {
    TargetedModule target{.base = module};
    target.saved = std::any_of(saved.begin(), saved.end(),
                               [&](const std::string& name) { return is_at_or_below(module.name, name); });
    target.lora = rules.is_target(module);
    if (target.lora) {
      check_target(config, module, target.saved);
      any_target = true;
      target.rank = ranks.value_or(module.name, config.rank);
      target.alpha = alphas.value_or(module.name, config.alpha);
      target.scale = target.alpha / (config.rank_stabilised ? std::sqrt(target.rank) : target.rank);
    }
    if (module.kind != ModuleKind::container) targeted.push_back(std::move(target));
  }
  const bool wants_targets = config.all_linear || config.target_expression || !config.targets.empty();
  if (wants_targets && !any_target) refuse_empty(config, modules);
  ranks.report_unused(report);
  alphas.report_unused(report);
  return targeted;
}

}  // namespace duet::loaders
