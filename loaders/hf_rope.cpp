#include "loaders/hf_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

constexpr double kDefaultTheta = 10000.0;  // Of every family here.
constexpr auto kKnownKeys = std::to_array<std::string_view>(
    {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor", "high_freq_factor",
     "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
     "truncate"});
/// Sections say which axis of a picture turns which pair; of text all axes are the same.
constexpr auto kHybridKeys = std::to_array<std::string_view>({"mrope_section", "mrope_interleaved"});
constexpr std::string_view kPartialFactor = "partial_rotary_factor";
constexpr double kHybridFactor = 0.25;  // Default of the family.

RopeKind kind_of(const JsonObject& parameters) {
  const std::string key = parameters.has("rope_type") ? "rope_type" : "type";
  const std::string name = parameters.text_or(key, "default");
  if (name == "default") return RopeKind::standard;
  if (name == "linear") return RopeKind::linear;
  if (name == "llama3") return RopeKind::llama3;
  if (name == "yarn") return RopeKind::yarn;
  throw Error(Code::unsupported,
              fmt::format("{} is {}; Duet does default, linear, llama3 and yarn", parameters.where(key), quote(name)));
}

/// mscale of the yarn paper, as transformers writes it.
double yarn_scale(double factor, double weight) { return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0; }

double yarn_attention_factor(const JsonObject& parameters, double factor) {
  if (parameters.has("attention_factor")) return parameters.number("attention_factor");
  const double scale = parameters.number_or("mscale", 0);
  const double scale_all = parameters.number_or("mscale_all_dim", 0);
  if (scale != 0 && scale_all != 0) return yarn_scale(factor, scale) / yarn_scale(factor, scale_all);
  return yarn_scale(factor, 1);
}

double original_positions(const JsonObject& config, const JsonObject& parameters, const ModelSpec& spec,
                          std::vector<std::string>& report) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  if (config.has(kKey)) return config.number(kKey);  // The reference lets the one at the top win.
  if (parameters.has(kKey)) return parameters.number(kKey);
  report.push_back(fmt::format("{} is missing; max_position_embeddings, {}, is taken", parameters.where(kKey),
                               spec.max_position_tokens));
  return spec.max_position_tokens;
}

void refuse_partial_rotation(const JsonObject& object) {
  if (object.number_or(kPartialFactor, 1.0) == 1.0) return;
  throw Error(Code::unsupported, fmt::format("{} is {}; Duet rotates whole heads in this family",
                                             object.where(kPartialFactor), object.number(kPartialFactor)));
}

/// `parameters` first, the top of the config second, the family's default last. `parameters` may be null.
double read_theta(const JsonObject& config, const JsonObject* parameters, std::vector<std::string>& report) {
  constexpr std::string_view kKey = "rope_theta";
  if (parameters != nullptr && parameters->has(kKey)) {
    const double theta = parameters->number(kKey);
    if (config.has(kKey) && config.number(kKey) != theta) {
      report.push_back(fmt::format("{} is {}, but {} is {}, which is used", config.where(kKey), config.number(kKey),
                                   parameters->where(kKey), theta));
    }
    return theta;
  }
  if (config.has(kKey)) return config.number(kKey);
  report.push_back(
      fmt::format("{} is missing; {}, the default of the family, is used", config.where(kKey), kDefaultTheta));
  return kDefaultTheta;
}

/// One flat set of parameters.
RopeSpec read_parameters(const JsonObject& config, const JsonObject& parameters, const ModelSpec& spec,
                         std::vector<std::string>& report) {
  for (const std::string& key : parameters.keys()) {
    const bool known =
        std::find(kKnownKeys.begin(), kKnownKeys.end(), key) != kKnownKeys.end() ||
        (spec.is_hybrid() && std::find(kHybridKeys.begin(), kHybridKeys.end(), key) != kHybridKeys.end());
    if (!known) report.push_back(fmt::format("{} is not known and not used", parameters.where(key)));
  }
  if (!spec.is_hybrid()) refuse_partial_rotation(parameters);
  RopeSpec rope;
  rope.kind = kind_of(parameters);
  rope.theta = read_theta(config, &parameters, report);
  if (rope.kind == RopeKind::standard) return rope;
  rope.factor = parameters.number("factor");
  if (rope.kind == RopeKind::linear) return rope;
  rope.original_max_position_tokens = original_positions(config, parameters, spec, report);
  if (rope.kind == RopeKind::llama3) {
    rope.low_frequency_factor = parameters.number("low_freq_factor");
    rope.high_frequency_factor = parameters.number("high_freq_factor");
    return rope;
  }
  const double beta_fast = parameters.number_or("beta_fast", 0);
  const double beta_slow = parameters.number_or("beta_slow", 0);
  if (beta_fast != 0) rope.beta_fast = beta_fast;  // Zero and absent both mean the default, as in the reference.
  if (beta_slow != 0) rope.beta_slow = beta_slow;
  rope.truncate = parameters.boolean_or("truncate", true);
  rope.attention_factor = yarn_attention_factor(parameters, rope.factor);
  return rope;
}

bool is_nested(const JsonObject& parameters) {
  const auto& members = parameters.json().get_ref<const Json::object_t&>();
  return std::any_of(members.begin(), members.end(), [](const auto& member) { return member.second.is_object(); });
}

/// The layer types a model has, as configs name them.
std::vector<std::string> layer_types_of(const ModelSpec& spec) {
  const auto sliding = std::count(spec.layer_slides.begin(), spec.layer_slides.end(), true);
  std::vector<std::string> types;
  if (sliding < spec.layers) types.emplace_back("full_attention");
  if (sliding > 0) types.emplace_back("sliding_attention");
  return types;
}

/// `rope_parameters` or `rope_scaling`, flat or nested by layer type.
RopeSpec read_either_shape(const JsonObject& config, const JsonObject& parameters, const ModelSpec& spec,
                           std::vector<std::string>& report) {
  if (!is_nested(parameters)) return read_parameters(config, parameters, spec, report);
  const std::vector<std::string> types = layer_types_of(spec);
  for (const std::string& key : parameters.keys()) {
    if (key != "full_attention" && key != "sliding_attention") {
      throw Error(Code::unsupported,
                  fmt::format("{} stands beside nested parameters and is neither full_attention nor sliding_attention",
                              parameters.where(key)));
    }
    if (std::find(types.begin(), types.end(), key) == types.end()) {
      report.push_back(fmt::format("{} is not used: the model has no such layers", parameters.where(key)));
    }
  }
  std::optional<RopeSpec> rope;
  for (const std::string& type : types) {
    const auto entry = parameters.object(type);
    if (!entry) parameters.refuse(type, "the rotation of the layers of this type");
    const RopeSpec nested = read_parameters(config, *entry, spec, report);
    if (rope && *rope != nested) {
      throw Error(Code::unsupported,
                  fmt::format("{} differs from that of the other layers; decoders of this family have one rotation",
                              parameters.where(type)));
    }
    rope = nested;
  }
  return *rope;
}

}  // namespace

RopeSpec read_rope(const JsonObject& config, const ModelSpec& spec, std::vector<std::string>& report) {
  if (!spec.is_hybrid()) refuse_partial_rotation(config);
  const auto parameters = config.object("rope_parameters");
  const auto scaling = config.object("rope_scaling");
  const bool has_parameters = parameters && !parameters->json().empty();
  const bool has_scaling = scaling && !scaling->json().empty();
  if (!has_parameters && !has_scaling) {
    RopeSpec rope;
    rope.theta = read_theta(config, nullptr, report);
    return rope;
  }
  const RopeSpec rope = read_either_shape(config, has_parameters ? *parameters : *scaling, spec, report);
  if (has_parameters && has_scaling && read_either_shape(config, *scaling, spec, report) != rope) {
    throw Error(Code::bad_file,
                fmt::format("{} and rope_scaling contradict each other", config.where("rope_parameters")),
                "Remove the one that is wrong");
  }
  return rope;
}

int read_rotary_size(const JsonObject& config, int head_size, std::vector<std::string>& report) {
  const auto rotated = [&](const JsonObject& object) {
    const double factor = object.number(kPartialFactor);
    if (factor <= 0 || factor > 1) object.refuse(kPartialFactor, "a part of 1");
    return static_cast<int>(head_size * factor);
  };
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    const auto parameters = config.object(key);
    if (parameters && parameters->has(kPartialFactor)) return rotated(*parameters);
  }
  if (config.has(kPartialFactor)) return rotated(config);
  report.push_back(fmt::format("{} is missing; {}, the default of the family, is used", config.where(kPartialFactor),
                               kHybridFactor));
  return static_cast<int>(head_size * kHybridFactor);
}

}  // namespace duet::loaders
