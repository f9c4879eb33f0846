// A backend against transformers, bitsandbytes and PEFT in float32: tiny checkpoints of every family, 4-bit
// ones, every kind of adapter, and a real trained model (tests/golden).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "loaders/loaders.h"
#include "loaders/safetensors.h"
#include "loaders/safetensors_writer.h"
#include "loaders/tokenizer_json.h"
#include "tests/host/device_under_test.h"
#include "tests/host/step_runner.h"
#include "tests/loaders/write_safetensors.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/test_data.h"

namespace duet::test {
namespace {

/// Rows `positions` of logits [tokens, vocabulary].
std::vector<float> rows_of(const std::vector<float>& logits, const std::vector<std::int32_t>& positions,
                           int vocabulary) {
  std::vector<float> rows;
  for (const std::int32_t position : positions) {
    const auto row = logits.begin() + std::ptrdiff_t{position} * vocabulary;
    rows.insert(rows.end(), row, row + vocabulary);
  }
  return rows;
}

/// Logits and greedy ids of every prompt in `golden`.
void expect_prompts(const GoldenArrays& golden, const WeightSource& source) {
  StepRunner runner(source, {.chunk_tokens = 48, .kv_tokens = 1024, .adapter_slots = 0});
  for (const GoldenPrompt& prompt : golden_prompts(golden.index())) {
    SCOPED_TRACE(prompt.name);
    const std::vector<float> got = rows_of(runner.logits(prompt.ids, 48), prompt.positions, source.spec().vocabulary);
    EXPECT_TRUE(all_within_relative(got, golden.floats("logits." + prompt.name), device_under_test().golden_tolerance));
    if (!prompt.greedy.empty()) {
      EXPECT_EQ(runner.greedy(prompt.ids, prompt.greedy.size()), prompt.greedy);
    }
  }
}

/// "part/name" of every golden folder in `parts`.
std::vector<std::string> folders_of(const std::vector<std::string>& parts) {
  std::vector<std::string> folders;
  for (const std::string& part : parts) {
    for (const std::string& name : golden_names(part)) folders.push_back(part + "/" + name);
  }
  return folders;
}

std::string test_name(const testing::TestParamInfo<std::string>& folder) {
  std::string name = folder.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

// ---- checkpoints ----

class GoldenCheckpoints : public testing::TestWithParam<std::string> {};

TEST_P(GoldenCheckpoints, LogitsAndGreedyIdsEqualTransformers) {
  DUET_NEEDS_DEVICE();
  const GoldenArrays golden(GetParam() + "/expected.json");
  const std::string folder = golden.index().value("checkpoint", GetParam());
  const auto source = loaders::open_checkpoint(golden_directory() / folder, {});
  if (source->spec().is_hybrid() && !device_under_test().facts.hybrids) GTEST_SKIP() << "no hybrids on this device";
  expect_prompts(golden, *source);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenCheckpoints, testing::ValuesIn(folders_of({"models", "bnb", "hybrids"})),
                         test_name);

// ---- adapters ----

class GoldenAdapters : public testing::TestWithParam<std::string> {};

TEST_P(GoldenAdapters, LogitsEqualPeftOverEveryBaseAndScale) {
  DUET_NEEDS_DEVICE();
  const GoldenArrays golden(GetParam() + "/expected.json");
  const auto ids = golden.index().at("ids").get<std::vector<std::int32_t>>();
  const auto positions = golden.index().at("positions").get<std::vector<std::int32_t>>();

  const auto expect_on = [&](const std::string& base, const std::string& base_array, const std::string& adapted_array) {
    SCOPED_TRACE(base);
    const auto source = loaders::open_checkpoint(golden_directory() / base, {});
    const auto adapter = loaders::open_adapter(golden_directory() / GetParam(), source->spec(), source->name());
    StepRunner runner(*source);
    const auto logits = [&](int slot, float scale) {
      return rows_of(runner.logits(ids, 5, slot, scale), positions, source->spec().vocabulary);
    };
    runner.backend->load_adapter(0, 0, *adapter, 1.0F);
    EXPECT_TRUE(
        all_within_relative(logits(0, 1.0F), golden.floats(adapted_array), device_under_test().golden_tolerance));
    EXPECT_TRUE(all_within_relative(logits(-1, 1.0F), golden.floats(base_array), device_under_test().golden_tolerance));
    if (adapted_array == "logits" && golden.has("half_scale_logits")) {
      const bool dora = adapter->spec().has_dora();  // Whose scale is chosen when it is loaded.
      if (dora) runner.backend->load_adapter(0, 1, *adapter, 0.5F);
      EXPECT_TRUE(all_within_relative(logits(dora ? 1 : 0, 0.5F), golden.floats("half_scale_logits"),
                                      device_under_test().golden_tolerance));
    }
  };
  expect_on(golden.index().at("base").get<std::string>(), "base_logits", "logits");
  if (golden.has("nf4_logits"))
    expect_on(golden.index().at("nf4_base").get<std::string>(), "nf4_base_logits", "nf4_logits");
}

std::vector<std::string> adapter_folders() {
  std::vector<std::string> parts;
  for (const std::string& base : golden_names("adapters")) parts.push_back("adapters/" + base);
  return folders_of(parts);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenAdapters, testing::ValuesIn(adapter_folders()), test_name);

/// O-06. The copy is held in float16 where that is exact, else in bfloat16: 2^-30 is a number of the latter only.
TEST(AdapterFormats, ABfloat16FileAndItsExactFloat32CopyGiveTheSameLogits) {
  DUET_NEEDS_DEVICE();
  const std::filesystem::path original = golden_directory() / "adapters/qwen2/all_r16";
  const loaders::SafetensorsFile file(original / "adapter_model.safetensors");
  std::vector<WrittenTensor> tensors;
  for (const loaders::Tensor& tensor : file.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements));
    loaders::read_floats(tensor, 0, values);
    for (float& value : values) value = to_float(to_bfloat16(value));
    if (tensors.size() % 3 == 0) values[0] = 0x1p-30F;
    tensors.push_back({tensor.name, "BF16", tensor.shape, std::move(values)});
  }
  const auto base = loaders::open_checkpoint(golden_directory() / "models/qwen2", {});
  StepRunner runner(*base);
  std::set<Storage> held;
  const auto load_as = [&](int slot, const std::string& dtype) {
    for (WrittenTensor& tensor : tensors) tensor.dtype = dtype;
    const TemporaryDirectory folder;
    std::filesystem::copy_file(original / "adapter_config.json", folder.path() / "adapter_config.json");
    write_file(folder.path() / "adapter_model.safetensors", safetensors_file(tensors));
    const auto adapter = loaders::open_adapter(folder.path(), base->spec(), base->name());
    for (const AdapterTensor& tensor : adapter->spec().tensors) held.insert(tensor.storage);
    runner.backend->load_adapter(0, slot, *adapter, 1.0F);
  };
  load_as(0, "BF16");
  EXPECT_EQ(held, std::set{Storage::bf16});
  load_as(1, "F32");
  EXPECT_EQ(held, (std::set{Storage::f16, Storage::bf16}));
  const auto ids =
      GoldenArrays("adapters/qwen2/all_r16/expected.json").index().at("ids").get<std::vector<std::int32_t>>();
  EXPECT_TRUE(same_or_close(runner.logits(ids, 5, 1), runner.logits(ids, 5, 0)));
  EXPECT_FALSE(all_within_relative(runner.logits(ids, 5, 0), runner.logits(ids, 5), 1e-2));
}

// ---- a real model ----

/// A copy of stories260K that calls itself Qwen2 and has q/k/v biases of zero.
void write_as_qwen2(const std::filesystem::path& from, const ModelSpec& llama, const std::filesystem::path& to) {
  std::filesystem::copy_file(from / "model.safetensors", to / "model-00001-of-00002.safetensors");
  std::filesystem::copy_file(from / "tokenizer.json", to / "tokenizer.json");
  nlohmann::json config = nlohmann::json::parse(read_file(from / "config.json"));
  config["model_type"] = "qwen2";
  config["architectures"] = {"Qwen2ForCausalLM"};
  config.erase("attention_bias");
  config.erase("mlp_bias");
  write_file(to / "config.json", config.dump());

  nlohmann::json map;
  for (const TensorRow& row : tensors_of(llama)) map[row.name] = "model-00001-of-00002.safetensors";
  std::vector<loaders::TensorToWrite> biases;
  for (int layer = 0; layer < llama.layers; ++layer) {
    for (const auto& [part, width] :
         {std::pair{"q", llama.query_width()}, {"k", llama.kv_width()}, {"v", llama.kv_width()}}) {
      const std::string name = "model.layers." + std::to_string(layer) + ".self_attn." + part + "_proj.bias";
      biases.push_back({.name = name, .dtype = "F32", .shape = {width}, .element_bytes = 4});
      map[name] = "model-00002-of-00002.safetensors";
    }
  }
  loaders::write_safetensors(to / "model-00002-of-00002.safetensors", biases, [](const loaders::TensorToWrite& tensor) {
    return std::vector<std::byte>(tensor.bytes());
  });
  write_file(to / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
}

TEST(GoldenStories, PrintItsKnownTextAsLlamaAndAsQwen2) {
  DUET_NEEDS_DEVICE();
  const auto shared = shared_data_directory();
  if (!shared) GTEST_SKIP() << "the folder shared/data with stories260K is not here";
  const GoldenArrays golden("stories260k/expected.json");
  const auto llama = loaders::open_checkpoint(*shared / "stories260k", {});
  expect_prompts(golden, *llama);

  const TemporaryDirectory folder;
  write_as_qwen2(*shared / "stories260k", llama->spec(), folder.path());
  const auto qwen2 = loaders::open_checkpoint(folder.path(), {});
  EXPECT_TRUE(qwen2->spec().query_key_value_bias);
  expect_prompts(golden, *qwen2);

  const auto tokenizer = loaders::load_tokenizer(folder.path());
  const std::vector<std::int32_t> prompt{1, 403, 407, 261, 378};
  std::vector<std::int32_t> ids = prompt;
  for (const std::int32_t id : StepRunner(*qwen2).greedy(prompt, 40)) ids.push_back(id);
  EXPECT_TRUE(tokenizer->decode(ids, true).starts_with(
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day,"))
      << tokenizer->decode(ids, true);
}

}  // namespace
}  // namespace duet::test
