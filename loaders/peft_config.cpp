#include "loaders/peft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

constexpr std::int64_t kLargestRank = 1 << 16;
constexpr std::int64_t kLargestLayer = 1 << 16;

/// Keys that are read below.
constexpr auto kReadKeys = std::to_array<std::string_view>(
    {"peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "lora_bias", "bias", "target_modules", "exclude_modules",
     "layers_to_transform", "layers_pattern", "modules_to_save", "rank_pattern", "alpha_pattern", "init_lora_weights",
     "fan_in_fan_out", "ensure_weight_tying"});

/// Keys that change nothing that is computed when an adapter is applied.
constexpr auto kHarmlessKeys = std::to_array<std::string_view>(
    {"auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "task_type", "peft_version",
     "lora_dropout", "runtime_config", "eva_config", "corda_config", "lora_ga_config", "loftq_config", "velora_config",
     "qalora_group_size", "megatron_core", "target_modules_to_tie", "modules_to_tie"});

struct Feature {
  std::string_view key;
  std::string_view what;
};

/// Keys that may only stand there switched off: null, false, 0 or empty.
constexpr auto kUnsupportedKeys = std::to_array<Feature>({
    {"target_parameters", "LoRA on bare parameters"},
    {"trainable_token_indices", "single trained rows of the embedding"},
    {"layer_replication", "replicated layers"},
    {"alora_invocation_tokens", "activated LoRA, which begins at a token"},
    {"use_qalora", "QALoRA's pooled inputs"},
    {"use_bdlora", "block-diagonal LoRA"},
    {"arrow_config", "routing among adapters"},
    {"kasa_config", "KaSA, which changes the base weights"},
    {"monteclora_config", "sampled adapter weights"},
    {"megatron_config", "Megatron's parallel layers"},
});

/// Initialisations that leave the base weights alone, so that what is in the file is the whole adapter.
constexpr auto kHarmlessInits = std::to_array<std::string_view>({"gaussian", "eva", "orthogonal", "mica"});

template <typename Table>
bool contains(const Table& table, std::string_view key) {
  return std::find(table.begin(), table.end(), key) != table.end();
}

bool is_switched_off(const Json& value) {
  if (value.is_null() || (value.is_boolean() && !value.get<bool>())) return true;
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_structured() && value.empty();
}

void check_unknown_key(const JsonObject& config, const std::string& key, const Json& value,
                       std::vector<std::string>& report) {
  if (is_switched_off(value)) return;
  // A name or a number is a note; what looks like a feature switched on may change how the adapter is applied.
  if (value.is_string() || value.is_number()) {
    report.push_back(fmt::format("{} is not known and not used", config.where(key)));
    return;
  }
  throw Error(Code::unsupported,
              fmt::format("{} is {}; Duet does not know this key, and it may change how the adapter is applied",
                          config.where(key), shown(value)),
              "Remove the key if it does not");
}

void check_keys(const JsonObject& config, std::vector<std::string>& report) {
  for (const auto& [key, value] : config.json().get_ref<const Json::object_t&>()) {
    const std::string& name = key;
    if (contains(kReadKeys, name) || contains(kHarmlessKeys, name)) continue;
    const auto feature = std::find_if(kUnsupportedKeys.begin(), kUnsupportedKeys.end(),
                                      [&](const Feature& row) { return row.key == name; });
    if (feature == kUnsupportedKeys.end()) {
      check_unknown_key(config, name, value, report);
    } else if (!is_switched_off(value)) {
      throw Error(Code::unsupported,
                  fmt::format("{} is {}: {} is not supported", config.where(name), shown(value), feature->what));
    }
  }
}

void check_method(const JsonObject& config) {
  const std::string type = config.text("peft_type");
  if (type != "LORA") {
    throw Error(Code::unsupported, fmt::format("{} is {}; Duet applies LORA", config.where("peft_type"), quote(type)));
  }
  if (config.boolean_or("fan_in_fan_out", false)) {
    throw Error(Code::unsupported,
                fmt::format("{} is true; the linear layers of these models are stored [out, in]",
                            config.where("fan_in_fan_out")),
                "Set it to false");
  }
  const Json* init = config.find("init_lora_weights");
  if (init == nullptr || init->is_boolean()) return;
  const std::string name = config.text("init_lora_weights");
  if (!contains(kHarmlessInits, name)) {
    throw Error(Code::unsupported,
                fmt::format("{} is {}: this initialisation changes the base weights too",
                            config.where("init_lora_weights"), quote(name)),
                "Save the adapter again with path_initial_model_for_weight_conversion, which makes a plain LoRA of it");
  }
}

/// A string, or a list of strings. The string goes to `expression`, the list to `names`.
void read_expression_or_names(const JsonObject& config, std::string_view key, std::optional<std::string>& expression,
                              std::vector<std::string>& names) {
  const Json* value = config.find(key);
  if (value == nullptr) return;
  if (value->is_string()) {
    expression = config.text(key);
  } else {
    names = config.texts(key);
  }
}

void read_targets(const JsonObject& config, PeftConfig& peft, std::vector<std::string>& report) {
  read_expression_or_names(config, "target_modules", peft.target_expression, peft.targets);
  read_expression_or_names(config, "exclude_modules", peft.exclude_expression, peft.excluded);
  if (!config.has("target_modules")) {
    peft.targets = {"q_proj", "v_proj"};
    report.push_back(fmt::format("{} is missing; q_proj and v_proj, PEFT's default for these families, are taken",
                                 config.where("target_modules")));
  }
  if (peft.target_expression) {
    std::string lower = *peft.target_expression;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    peft.all_linear = lower == "all-linear";
    if (peft.all_linear) peft.target_expression.reset();
  }
}

std::int64_t layer_number(const JsonObject& config, const Json& value) {
  const bool whole =
      value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
  const std::int64_t number = whole ? value.get<std::int64_t>() : -1;
  if (number < 0 || number > kLargestLayer) config.refuse("layers_to_transform", "a layer number or a list of them");
  return number;
}

void read_layers(const JsonObject& config, PeftConfig& peft) {
  if (const Json* layers = config.find("layers_to_transform")) {
    if (layers->is_array()) {
      for (const Json& layer : *layers) peft.layers.push_back(layer_number(config, layer));
    } else {
      peft.layers.push_back(layer_number(config, *layers));
    }
  }
  std::optional<std::string> single;
  read_expression_or_names(config, "layers_pattern", single, peft.layer_patterns);
  if (single && !single->empty()) peft.layer_patterns.push_back(*single);
  if (!peft.layers.empty() && peft.target_expression) {
    throw Error(Code::bad_file,
                fmt::format("{} cannot stand beside target_modules as an expression, in PEFT neither",
                            config.where("layers_to_transform")),
                "Put the layers into the expression");
  }
  if (!peft.layer_patterns.empty() && !config.has("layers_to_transform")) {
    throw Error(Code::bad_file, fmt::format("{} needs layers_to_transform beside it", config.where("layers_pattern")));
  }
}

void read_patterns(const JsonObject& config, PeftConfig& peft) {
  if (const auto ranks = config.object("rank_pattern")) {
    for (const std::string& key : ranks->keys()) {
      peft.rank_pattern.emplace_back(key, static_cast<int>(ranks->integer(key, 1, kLargestRank)));
    }
  }
  if (const auto alphas = config.object("alpha_pattern")) {
    for (const std::string& key : alphas->keys()) peft.alpha_pattern.emplace_back(key, alphas->number(key));
  }
}

TrainedBias read_bias(const JsonObject& config) {
  const std::string bias = config.text_or("bias", "none");
  if (bias == "none") return TrainedBias::none;
  if (bias == "lora_only") return TrainedBias::lora_only;
  if (bias == "all") return TrainedBias::all;
  config.refuse("bias", "none, lora_only or all");
}

bool names_embeddings(const PeftConfig& peft) {
  const auto is_embedding = [](const std::string& name) {
    const std::string last = name.substr(name.rfind('.') + 1);
    return last == "embed_tokens" || last == "lm_head";
  };
  return std::any_of(peft.saved_modules.begin(), peft.saved_modules.end(), is_embedding) ||
         std::any_of(peft.targets.begin(), peft.targets.end(), is_embedding) ||
         (peft.target_expression && (peft.target_expression->find("embed_tokens") != std::string::npos ||
                                     peft.target_expression->find("lm_head") != std::string::npos));
}

}  // namespace

PeftConfig parse_peft_config(const Json& json, const std::string& source, bool ties_embeddings,
                             std::vector<std::string>& report) {
  const JsonObject config(json, source);
  check_method(config);
  check_keys(config, report);
  PeftConfig peft;
  peft.source = source;
  peft.rank = static_cast<int>(config.integer_or("r", peft.rank, 1, kLargestRank));
  peft.alpha = config.number_or("lora_alpha", peft.alpha);
  peft.rank_stabilised = config.boolean_or("use_rslora", false);
  peft.dora = config.boolean_or("use_dora", false);
  peft.lora_bias = config.boolean_or("lora_bias", false);
  peft.bias = read_bias(config);
  peft.saved_modules = config.texts("modules_to_save");
  read_targets(config, peft, report);
  read_layers(config, peft);
  read_patterns(config, peft);
  if (peft.dora && peft.lora_bias) {
    throw Error(Code::bad_file,
                fmt::format("{} and use_dora exclude each other, in PEFT too", config.where("lora_bias")));
  }
  if (config.boolean_or("ensure_weight_tying", false) && ties_embeddings && names_embeddings(peft)) {
    throw Error(Code::unsupported, fmt::format("{} is true: adapters shared by embedding and head are not supported",
                                               config.where("ensure_weight_tying")));
  }
  return peft;
}

}  // namespace duet::loaders
