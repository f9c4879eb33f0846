#include "loaders/laya_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <system_error>

#include "duet/error.h"
#include "loaders/json_file.h"
#include "loaders/names.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestNumber = std::numeric_limits<std::int32_t>::max();
constexpr std::array<std::string_view, 3> kKinds = {"choice", "score", "noul"};  // As QuestionKind counts.
constexpr int kDecisionHeadSize = 64;

fs::path encoder_config_of(const fs::path& folder) { return folder / "encoder" / "config.json"; }

int size_or(const JsonObject& object, std::string_view key, int fallback) {
  return static_cast<int>(object.integer_or(key, fallback, 1, kLargestNumber));
}

void refuse_unsupported(const JsonObject& config) {
  const std::string type = config.text_or("model_type", "modernbert");
  if (type != "modernbert")
    throw Error(Code::unsupported,
                fmt::format("{} is {}; Laya's encoder is a modernbert", config.where("model_type"), quote(type)));
  const std::string activation = config.text_or("hidden_activation", "gelu");
  if (activation != "gelu")
    throw Error(Code::unsupported, fmt::format("{} is {}; Duet computes the exact gelu of ModernBERT",
                                               config.where("hidden_activation"), quote(activation)));
  for (const std::string_view key : {"attention_bias", "mlp_bias", "norm_bias"})
    if (config.boolean_or(key, false))
      throw Error(Code::unsupported, fmt::format("{} is true; Laya's encoders have no such bias", config.where(key)));
}

/// The base of one kind of layer: transformers 5 writes rope_parameters, transformers 4 a key of its own.
double rope_theta(const JsonObject& config, std::string_view layer_type, std::string_view old_key, double fallback) {
  if (const auto all = config.object("rope_parameters")) {
    const auto own = all->object(layer_type);
    const JsonObject& rope = own ? *own : *all;
    const std::string type = rope.text_or("rope_type", "default");
    if (type != "default")
      throw Error(Code::unsupported,
                  fmt::format("{} is {}; ModernBERT's is default", rope.where("rope_type"), quote(type)));
    if (rope.has("rope_theta")) return rope.number("rope_theta");
  }
  return config.number_or(old_key, fallback);
}

void read_layer_types(const JsonObject& config, ModelSpec& spec) {
  const std::vector<std::string> types = config.texts("layer_types");
  const int every = size_or(config, "global_attn_every_n_layers", 3);
  if (!types.empty() && types.size() != static_cast<std::size_t>(spec.layers))
    config.refuse("layer_types", fmt::format("a list of {} layers", spec.layers));
  for (int layer = 0; layer < spec.layers; ++layer) {
    if (types.empty()) {
      spec.layer_slides.push_back(layer % every != 0);
      continue;
    }
    const std::string& type = types[static_cast<std::size_t>(layer)];
    if (type != "full_attention" && type != "sliding_attention")
      config.refuse("layer_types", "full_attention or sliding_attention for each layer");
    spec.layer_slides.push_back(type == "sliding_attention");
  }
}

void read_encoder(const JsonObject& config, ModelSpec& spec) {
  refuse_unsupported(config);
  const auto needed = [&](std::string_view key) { return static_cast<int>(config.integer(key, 1, kLargestNumber)); };
  spec.layers = needed("num_hidden_layers");
  spec.hidden = needed("hidden_size");
  spec.query_heads = spec.kv_heads = needed("num_attention_heads");
  spec.head_size = spec.hidden / spec.query_heads;
  spec.mlp = needed("intermediate_size");
  spec.vocabulary = needed("vocab_size");
  spec.norm_epsilon = config.number_or("norm_eps", 1e-5);
  spec.sliding_window_tokens = size_or(config, "local_attention", 128) / 2;  // Of each side.
  read_layer_types(config, spec);
  spec.rope.theta = rope_theta(config, "full_attention", "global_rope_theta", 160000.0);
  spec.sliding_rope.theta = rope_theta(config, "sliding_attention", "local_rope_theta", 10000.0);
}

/// A missing file is an Error that says what a Laya folder holds.
JsonObject agent_of(const Json& json, const std::string& source) {
  JsonObject agent(json, source);
  if (!agent.has("encoder")) agent.refuse("encoder", "the name of the encoder that Laya was trained on");
  return agent;
}

}  // namespace

bool is_laya_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kLayaAgentFile, ignored) && fs::exists(encoder_config_of(folder), ignored);
}

ModelSpec read_laya_config(const fs::path& folder, std::vector<std::string>& report) {
  const fs::path encoder_path = encoder_config_of(folder), agent_path = folder / kLayaAgentFile;
  const Json encoder_json = read_json_file(encoder_path), agent_json = read_json_file(agent_path);
  const JsonObject encoder(encoder_json, encoder_path.string());
  const JsonObject agent = agent_of(agent_json, agent_path.string());

  ModelSpec spec;
  spec.kind = ModelKind::encoder;
  spec.architecture = "LayaTypedDecisions";
  read_encoder(encoder, spec);
  spec.decision_layers = static_cast<int>(agent.integer("head_layers", 0, kLargestNumber));
  spec.decision_heads = std::max(1, spec.hidden / kDecisionHeadSize);
  const auto costs = agent.object("act_costs");
  spec.act_outputs = static_cast<int>(costs ? costs->keys().size() : 1) + 1;

  const int positions = size_or(encoder, "max_position_embeddings", 8192);
  const int row_tokens = size_or(agent, "max_len", LayaBudget{}.row_tokens);
  if (row_tokens > positions)
    report.push_back(fmt::format("{} is {}, beyond the encoder's {} positions, which are used", agent.where("max_len"),
                                 row_tokens, positions));
  spec.max_position_tokens = std::min(row_tokens, positions);
  check(spec, quote(encoder_path.string()));
  return spec;
}

LayaSettings parse_laya_settings(std::string_view agent_json, const std::string& source) {
  const Json json = parse_json(agent_json, source);
  const JsonObject agent = agent_of(json, source);
  LayaSettings settings;
  settings.budget.row_tokens = size_or(agent, "max_len", settings.budget.row_tokens);
  settings.budget.head_tokens = size_or(agent, "head_max_len", settings.budget.head_tokens);

  // A temperature that is no number counts as 1, as in the reference.
  const auto temperature = [](const Json& value) {
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  };
  if (const Json* all = agent.find("temperature")) {
    if (!all->is_array() || all->size() != kKinds.size())
      agent.refuse("temperature", "a list of three numbers: choice, score, noul");
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
      settings.calibration.temperature.at(kind) = temperature((*all)[kind]);
  }
  if (const auto buckets = agent.object("temperature_by_options"))
    for (const std::string& name : buckets->keys())
      settings.calibration.by_options[name] = temperature(buckets->json().at(name));
  return settings;
}

LayaTokens laya_tokens(const Tokenizer& tokenizer, std::string_view tokenizer_config_json, const std::string& source) {
  const Json json = parse_json(tokenizer_config_json, source);
  const JsonObject config(json, source);
  const auto text_of = [&](std::string_view role) {
    const Json* token = config.find(role);
    if (token != nullptr && token->is_object()) return JsonObject(*token, source, std::string(role)).text("content");
    return config.text(role);
  };
  const auto id_of = [&](std::string_view role) {
    const std::string text = text_of(role);
    const auto id = tokenizer.id_of(text);
    if (!id)
      throw Error(Code::bad_file,
                  fmt::format("{} is {}, which the tokenizer does not have", config.where(role), quote(text)),
                  "Take the tokenizer of the same checkpoint");
    return *id;
  };
  LayaTokens tokens;
  tokens.start = id_of("cls_token");
  tokens.separator = id_of("sep_token");
  tokens.padding = id_of("pad_token");
  tokens.mask = id_of("mask_token");
  tokens.mask_text = text_of("mask_token");
  return tokens;
}

}  // namespace duet::loaders
