#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace duet::loaders {

/// What a tensor of an adapter file is to its module.
enum class AdapterLeaf : std::uint8_t {
  lora_a,
  lora_b,
  lora_bias,         ///< lora_B.bias
  embedding_a,       ///< lora_embedding_A: [rank, vocabulary]
  embedding_b,       ///< lora_embedding_B: [hidden, rank]
  magnitude,         ///< lora_magnitude_vector
  saved_weight,      ///< weight of a whole module
  saved_bias,        ///< bias of a whole module, or of a LoRA module's base
  base_layer_weight  ///< Base weight that PEFT saves beside LoRA on an embedding.
};

/// A key of an adapter file taken apart, the adapter's name ("default") dropped where there is one.
struct AdapterKey {
  std::string module;  ///< With whatever prefix the file has.
  AdapterLeaf leaf = AdapterLeaf::lora_a;
};

/// Nothing when the ending is none that PEFT writes.
std::optional<AdapterKey> parse_adapter_key(std::string_view key);

/// The key PEFT 0.21 writes for this tensor.
std::string canonical_key(std::string_view module, AdapterLeaf leaf);

/// Ways in which whole files name the base's modules, PEFT's own first: "base_model.model." before every name, none, or
/// it twice; and the same with the "language_model." that multimodal wrappers put in. One way holds for a whole file.
constexpr int kPrefixForms = 6;
std::string_view describe_prefix_form(int form);

/// The base's module name behind `module`, or nothing when it does not have this form.
std::optional<std::string> strip_prefix(std::string_view module, int form);

}  // namespace duet::loaders
