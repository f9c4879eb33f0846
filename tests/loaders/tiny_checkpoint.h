#pragma once

#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/model.h"
#include "loaders/hf_config.h"
#include "loaders/json_file.h"
#include "loaders/tensor_match.h"
#include "tests/loaders/write_safetensors.h"
#include "tests/support/test_data.h"

/// The fixture "tiny" of the cases: hidden 64, 2 layers, 4 heads over 2, MLP 128, vocabulary 320, random weights.
namespace duet::test {

inline nlohmann::ordered_json tiny_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"intermediate_size", 128},
          {"vocab_size", 320},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"torch_dtype", "float32"},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

inline ModelSpec spec_of(const nlohmann::ordered_json& config) {
  std::vector<std::string> report;
  return loaders::parse_hf_config(config, "tiny", report);
}

inline std::vector<float> gaussian_values(std::size_t count, unsigned seed, float deviation = 0.05F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

/// Every tensor of the spec, values seeded by its place in the list.
inline std::vector<WrittenTensor> tiny_tensors(const ModelSpec& spec, const std::string& dtype = "F32") {
  std::vector<WrittenTensor> tensors;
  unsigned seed = 1;
  for (const TensorRow& row : tensors_of(spec)) {
    WrittenTensor tensor{row.name, dtype, loaders::shape_in_files(row), {}};
    tensor.values = gaussian_values(static_cast<std::size_t>(row.rows * row.columns), seed++);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

inline void write_checkpoint(const std::filesystem::path& folder, const nlohmann::ordered_json& config,
                             const std::vector<WrittenTensor>& tensors) {
  write_file(folder / "config.json", config.dump());
  write_file(folder / "model.safetensors", safetensors_file(tensors));
}

}  // namespace duet::test
