#include "loaders/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/quant_blocks.h"
#include "loaders/loaders.h"
#include "loaders/safetensors.h"
#include "loaders/synthetic_weights.h"
#include "tests/loaders/expect_error.h"
#include "tests/loaders/tiny_checkpoint.h"
#include "tests/support/compare.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;

std::int64_t parameters_of(const WeightSource& source) {
  std::int64_t count = 0;
  for (const WeightTensor& tensor : source.tensors()) count += tensor.row.rows * tensor.row.columns;
  return count;
}

TEST(Synthetic, HasTheParametersOfThePublishedModels) {
  // Counts of the published checkpoints (tied embedding counted once; of Qwen3.5 the text model's part).
  const std::vector<std::pair<std::string, std::int64_t>> want = {
      {"qwen2.5-0.5b", 494'032'768}, {"qwen2.5-1.5b", 1'543'714'304}, {"qwen2.5-3b", 3'085'938'688},
      {"qwen3-0.6b", 596'049'920},   {"qwen3-1.7b", 1'720'574'976},   {"qwen3-4b", 4'022'468'096},
      {"qwen3.5-0.8b", 752'393'024}, {"qwen3.5-4b", 4'205'751'296},   {"llama-3.2-1b", 1'235'814'400},
      {"smollm2-135m", 134'515'008}};
  ASSERT_EQ(synthetic_names().size(), want.size());
  for (const auto& [name, parameters] : want)
    EXPECT_EQ(parameters_of(*make_synthetic(name, {}, 1)), parameters) << name;
}

TEST(Synthetic, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_TRUE(test::fails_with(Code::invalid_argument, {"qwen2.5-1.6b", "qwen2.5-1.5b"},
                               [] { make_synthetic("qwen2.5-1.6b", {}, 1); }));
}

std::vector<float> decoded(const WeightSource& source, std::size_t index) {
  const WeightTensor& tensor = source.tensors()[index];
  std::vector<std::byte> region(tensor.bytes);
  source.read(index, region);
  std::vector<float> values(static_cast<std::size_t>(tensor.row.rows * tensor.row.columns));
  dequantise(view_of(tensor.row.rows, tensor.row.columns, tensor.storage, region.data()), 0, values);
  return values;
}

/// A spec small enough to read whole.
ModelSpec small_spec() {
  auto config = test::tiny_config();
  config["hidden_size"] = 256;
  config["head_dim"] = 64;
  config["intermediate_size"] = 512;
  return test::spec_of(config);
}

TEST(Synthetic, WeightsHaveTheSaidSpreadInEveryStorage) {
  for (const WeightType type :
       {WeightType::f32, WeightType::f16, WeightType::bf16, WeightType::int8, WeightType::nf4, WeightType::fp4})
    for (const bool nested : {false, true}) {
      WeightOptions options;
      options.linear = options.embedding = type;
      options.double_quant = nested;
      const auto source = random_weights(small_spec(), "small", options, 3);
      for (std::size_t i = 0; i < source->tensors().size(); ++i) {
        const TensorRow& row = source->tensors()[i].row;
        const std::vector<float> values = decoded(*source, i);
        double sum = 0, squares = 0;
        for (const float value : values) {
          ASSERT_TRUE(std::isfinite(value));
          sum += value;
          squares += double{value} * value;
        }
        const auto count = static_cast<double>(values.size());
        if (row.role == TensorRole::vector) {
          EXPECT_NEAR(sum / count, 1.0, 0.05) << row.name;
          continue;
        }
        const double want =
            row.role == TensorRole::embedding ? 0.02 : 0.8 / std::sqrt(static_cast<double>(row.columns));
        EXPECT_NEAR(std::sqrt(squares / count), want, 0.05 * want) << row.name;
        EXPECT_NEAR(sum / count, 0, 0.1 * want) << row.name;
      }
    }
}

TEST(Synthetic, SeedsReproduceAndDiffer) {
  const auto read = [](std::uint64_t seed) { return decoded(*random_weights(small_spec(), "small", {}, seed), 2); };
  EXPECT_TRUE(test::same_bits(read(1), read(1)));
  EXPECT_FALSE(test::same_bits(read(1), read(2)));
  const auto source = random_weights(small_spec(), "small", {}, 1);
  EXPECT_FALSE(test::same_bits(decoded(*source, 4), decoded(*source, 5)));  // key and value: same shape, other numbers
}

TEST(Synthetic, FolderAndPackedFileHoldTheSameNumbers) {
  const test::TemporaryDirectory folder;
  WeightOptions options;
  options.linear = options.embedding = WeightType::bf16;
  const auto source = random_weights(small_spec(), "small", options, 5);
  auto config = test::tiny_config();
  config["hidden_size"] = 256;
  config["head_dim"] = 64;
  config["intermediate_size"] = 512;
  write_hf_folder(folder.path() / "hf", *source, {{"config.json", config.dump()}}, Storage::bf16, {}, 500'000);
  write_packed_file(folder.path() / "x.duet", *source, {});
  EXPECT_TRUE(fs::exists(folder.path() / "hf/model.safetensors.index.json"));
  const auto hf = open_checkpoint(folder.path() / "hf", {});
  const auto packed = open_checkpoint(folder.path() / "x.duet", {});
  for (std::size_t i = 0; i < source->tensors().size(); ++i) {
    if (source->tensors()[i].row.role == TensorRole::vector) continue;  // 16 bit in the folder, float32 in the file.
    EXPECT_TRUE(test::same_bits(decoded(*hf, i), decoded(*source, i)));
    EXPECT_TRUE(test::same_bits(decoded(*packed, i), decoded(*source, i)));
  }
}

TEST(Synthetic, TextsAreACheckpointsTexts) {
  for (const std::string& name : synthetic_names()) {
    const test::TemporaryDirectory folder;
    std::map<std::string, nlohmann::json> texts;
    for (const auto& [file, text] : synthetic_texts(name)) {
      texts[file] = nlohmann::json::parse(text);
      test::write_file(folder.path() / file, text);
    }
    const ConfigOnly config = read_config_only(folder.path(), {});
    EXPECT_EQ(config.tensors.size(), make_synthetic(name, {}, 1)->tensors().size());
    // Every id up to the last control token is there once. An added token is in the model with the same id, or gets the
    // next id after the model's: that is how the tokenizers library numbers them, whatever the file says.
    const auto& vocab = texts["tokenizer.json"]["model"]["vocab"];
    std::vector<int> seen(static_cast<std::size_t>(config.spec.vocabulary), 0);
    for (const auto& entry : vocab) ++seen.at(entry.get<std::size_t>());
    std::size_t next = vocab.size();
    for (const auto& token : texts["tokenizer.json"]["added_tokens"]) {
      const auto known = vocab.find(token["content"].get<std::string>());
      const std::size_t id = known != vocab.end() ? known->get<std::size_t>() : next++;
      EXPECT_EQ(token["id"].get<std::size_t>(), id) << name;
      if (known == vocab.end()) ++seen.at(id);
    }
    const std::size_t first_gap = static_cast<std::size_t>(std::find(seen.begin(), seen.end(), 0) - seen.begin());
    EXPECT_GE(first_gap, static_cast<std::size_t>(config.spec.vocabulary) * 99 / 100) << name;
    EXPECT_EQ(std::count_if(seen.begin(), seen.end(), [](int times) { return times > 1; }), 0) << name;
    for (const std::int32_t id : config.spec.end_ids) EXPECT_EQ(seen.at(static_cast<std::size_t>(id)), 1) << name;
  }
}

TEST(Synthetic, AdaptersHaveAllSevenProjections) {
  const test::TemporaryDirectory folder;
  write_synthetic_adapter(folder.path(), "smollm2-135m", 4, 1);
  const SafetensorsFile file(folder.path() / "adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), 30U * 7 * 2);
  const Tensor* b = file.find("base_model.model.model.layers.29.mlp.down_proj.lora_B.weight");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (std::vector<std::int64_t>{576, 4}));
  std::vector<float> values(576 * 4);
  read_floats(*b, 0, values);
  EXPECT_GT(*std::max_element(values.begin(), values.end()), 0.01F);
  const auto config = nlohmann::json::parse(test::read_file(folder.path() / "adapter_config.json"));
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["target_modules"].size(), 7U);
  EXPECT_TRUE(test::fails_with(Code::invalid_argument, {"rank 0"},
                               [&] { write_synthetic_adapter(folder.path(), "smollm2-135m", 0, 1); }));
}

}  // namespace
}  // namespace duet::loaders
