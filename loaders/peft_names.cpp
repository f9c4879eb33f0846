#include "loaders/peft_names.h"

#include <array>
#include <utility>

namespace duet::loaders {

namespace {

constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kWrapper = "language_model.";

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t dot = text.find('.');
    parts.push_back(text.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    text.remove_prefix(dot + 1);
  }
}

enum class Marker : std::uint8_t { lora_a, lora_b, embedding_a, embedding_b, magnitude, base_layer, saved };

std::optional<Marker> marker_of(std::string_view part) {
  if (part == "lora_A") return Marker::lora_a;
  if (part == "lora_B") return Marker::lora_b;
  if (part == "lora_embedding_A") return Marker::embedding_a;
  if (part == "lora_embedding_B") return Marker::embedding_b;
  if (part == "lora_magnitude_vector") return Marker::magnitude;
  if (part == "base_layer") return Marker::base_layer;
  if (part == "modules_to_save") return Marker::saved;
  return std::nullopt;
}

std::optional<AdapterLeaf> saved_leaf(std::string_view attribute) {
  if (attribute == "weight") return AdapterLeaf::saved_weight;
  if (attribute == "bias") return AdapterLeaf::saved_bias;
  return std::nullopt;
}

/// `tail`: what follows the marker.
std::optional<AdapterLeaf> leaf_of(Marker marker, std::vector<std::string_view> tail) {
  const std::string_view last = tail.empty() ? std::string_view() : tail.back();
  const bool is_attribute = last == "weight" || last == "bias";
  const std::string_view attribute = is_attribute ? last : std::string_view();
  if (is_attribute) tail.pop_back();
  if (tail.size() > 1 || (marker == Marker::base_layer && !tail.empty()))
    return std::nullopt;  // One adapter name at most.
  switch (marker) {
    case Marker::lora_a:
      if (attribute == "weight") return AdapterLeaf::lora_a;
      return std::nullopt;
    case Marker::lora_b:
      if (attribute == "weight") return AdapterLeaf::lora_b;
      if (attribute == "bias") return AdapterLeaf::lora_bias;
      return std::nullopt;
    case Marker::embedding_a:
      if (attribute.empty()) return AdapterLeaf::embedding_a;
      return std::nullopt;
    case Marker::embedding_b:
      if (attribute.empty()) return AdapterLeaf::embedding_b;
      return std::nullopt;
    case Marker::magnitude:
      if (attribute != "bias") return AdapterLeaf::magnitude;
      return std::nullopt;
    case Marker::base_layer:
      if (attribute == "weight") return AdapterLeaf::base_layer_weight;
      return saved_leaf(attribute);
    case Marker::saved:
      return saved_leaf(attribute);
  }
  return std::nullopt;
}

std::string_view ending_of(AdapterLeaf leaf) {
  switch (leaf) {
    case AdapterLeaf::lora_a:
      return "lora_A.weight";
    case AdapterLeaf::lora_b:
      return "lora_B.weight";
    case AdapterLeaf::lora_bias:
      return "lora_B.bias";
    case AdapterLeaf::embedding_a:
      return "lora_embedding_A";
    case AdapterLeaf::embedding_b:
      return "lora_embedding_B";
    case AdapterLeaf::magnitude:
      return "lora_magnitude_vector";
    case AdapterLeaf::saved_weight:
      return "weight";
    case AdapterLeaf::saved_bias:
      return "bias";
    case AdapterLeaf::base_layer_weight:
      return "base_layer.weight";
  }
  return {};
}

}  // namespace

std::optional<AdapterKey> parse_adapter_key(std::string_view key) {
  const std::vector<std::string_view> parts = split(key);
  std::size_t at = 0;
  while (at < parts.size() && !marker_of(parts[at])) ++at;
  std::optional<AdapterLeaf> leaf;
  if (at < parts.size()) {
    leaf = leaf_of(*marker_of(parts[at]), {parts.begin() + static_cast<std::ptrdiff_t>(at) + 1, parts.end()});
  } else {
    at = parts.size() - 1;
    leaf = saved_leaf(parts.back());
  }
  if (!leaf || at == 0) return std::nullopt;
  // Everything before the part at `at`, less the dot between.
  const auto end = static_cast<std::size_t>(parts[at].data() - key.data()) - 1;
  return AdapterKey{std::string(key.substr(0, end)), *leaf};
}

std::string canonical_key(std::string_view module, AdapterLeaf leaf) {
  return std::string(kPeftPrefix) + std::string(module) + "." + std::string(ending_of(leaf));
}

std::string_view describe_prefix_form(int form) {
  constexpr std::array<std::string_view, kPrefixForms> kNames = {
      "the prefix base_model.model.",           "no prefix",
      "the prefix base_model.model. twice",     "the prefix base_model.model. and a language_model. inside",
      "no prefix and a language_model. inside", "the prefix base_model.model. twice and a language_model. inside"};
  return kNames[static_cast<std::size_t>(form)];
}

std::optional<std::string> strip_prefix(std::string_view module, int form) {
  constexpr std::array<int, 3> kPrefixes = {1, 0, 2};
  for (int i = 0; i < kPrefixes[static_cast<std::size_t>(form % 3)]; ++i) {
    if (!module.starts_with(kPeftPrefix)) return std::nullopt;
    module.remove_prefix(kPeftPrefix.size());
  }
  if (form < 3) return std::string(module);
  // "language_model.model.layers..." and "language_model.lm_head", or "model.language_model.layers...", whose head
  // stays outside.
  if (module.starts_with(kWrapper)) return std::string(module.substr(kWrapper.size()));
  constexpr std::string_view kInner = "model.language_model.";
  if (module.starts_with(kInner)) return "model." + std::string(module.substr(kInner.size()));
  return module == "lm_head" ? std::optional<std::string>(module) : std::nullopt;
}

}  // namespace duet::loaders
