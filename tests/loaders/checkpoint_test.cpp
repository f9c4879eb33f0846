#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "engine/quant_blocks.h"
#include "loaders/loaders.h"
#include "loaders/packed_file.h"
#include "loaders/quantise.h"
#include "tests/loaders/expect_error.h"
#include "tests/loaders/stored_pieces.h"
#include "tests/loaders/tiny_checkpoint.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;
using test::fails_with;
using test::same_bits;
using test::WrittenTensor;

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() : config_(test::tiny_config()), tensors_(test::tiny_tensors(test::spec_of(config_))) {}

  const fs::path& write() {
    test::write_checkpoint(folder_.path(), config_, tensors_);
    return folder_.path();
  }
  std::shared_ptr<const WeightSource> open(const WeightOptions& options = {}) {
    return open_checkpoint(write(), options);
  }
  WrittenTensor& tensor(std::string_view name) {
    for (WrittenTensor& tensor : tensors_)
      if (tensor.name == name) return tensor;
    throw std::logic_error("no such tensor in the fixture");
  }
  void drop(std::string_view name) {
    std::erase_if(tensors_, [&](const WrittenTensor& tensor) { return tensor.name == name; });
  }
  void add(const std::string& name, std::vector<std::int64_t> shape, const std::string& dtype = "F32") {
    std::size_t count = 1;
    for (const auto size : shape) count *= static_cast<std::size_t>(size);
    tensors_.push_back({name, dtype, std::move(shape), std::vector<float>(count, 1.0F)});
  }

  nlohmann::ordered_json config_;
  std::vector<WrittenTensor> tensors_;
  test::TemporaryDirectory folder_;
};

std::vector<float> floats_of(const WeightSource& source, std::size_t index) {
  const WeightTensor& tensor = source.tensors().at(index);
  std::vector<std::byte> region(tensor.bytes, std::byte{0xA5});
  source.read(index, region);
  std::vector<float> values(static_cast<std::size_t>(tensor.row.rows * tensor.row.columns));
  dequantise(view_of(tensor.row.rows, tensor.row.columns, tensor.storage, region.data()), 0, values);
  return values;
}

std::size_t index_of(const WeightSource& source, std::string_view name) {
  for (std::size_t i = 0; i < source.tensors().size(); ++i)
    if (source.tensors()[i].row.name == name) return i;
  throw std::logic_error("no such tensor in the model");
}

std::string text_of(const std::vector<std::string>& report) {
  std::string text;
  for (const std::string& line : report) text += line + '\n';
  return text;
}

constexpr std::string_view kQuery = "model.layers.1.self_attn.q_proj.weight";

// ---- what is read ----

TEST_F(Checkpoint, EveryTensorComesBackAsStored) {
  const auto source = open();
  ASSERT_EQ(source->tensors().size(), tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    EXPECT_EQ(source->tensors()[i].row.name, tensors_[i].name);
    EXPECT_EQ(source->tensors()[i].storage.storage, Storage::f32);
    EXPECT_TRUE(same_bits(floats_of(*source, i), tensors_[i].values)) << tensors_[i].name;
  }
  EXPECT_NE(text_of(source->report()).find("20 of 20 tensors used"), std::string::npos) << text_of(source->report());
}

TEST_F(Checkpoint, SixteenBitStaysAndVectorsBecomeFloat32) {
  for (const std::string dtype : {"F16", "BF16"}) {
    tensors_ = test::tiny_tensors(test::spec_of(config_), dtype);
    const auto source = open();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const WeightTensor& got = source->tensors()[i];
      const bool vector = got.row.role == TensorRole::vector;
      EXPECT_EQ(got.storage.storage, vector ? Storage::f32 : dtype == "F16" ? Storage::f16 : Storage::bf16);
      std::vector<float> want;
      for (const float value : tensors_[i].values)
        want.push_back(dtype == "F16" ? to_float(to_half(value)) : to_float(to_bfloat16(value)));
      EXPECT_TRUE(same_bits(floats_of(*source, i), want)) << got.row.name;
    }
  }
}

TEST_F(Checkpoint, StreamsWhatTheFileHoldsWhateverStorageIsAskedFor) {
  for (const std::string dtype : {"F16", "BF16", "F32"}) {
    tensors_ = test::tiny_tensors(test::spec_of(config_), dtype);
    const auto as_stored = open();
    WeightOptions options;
    options.linear = WeightType::nf4;
    const auto quantised = open(options);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (as_stored->tensors()[i].row.role == TensorRole::vector) continue;
      ASSERT_EQ(quantised->stored(i), as_stored->tensors()[i].storage);
      std::vector<std::byte> want(as_stored->tensors()[i].bytes);
      as_stored->read(i, want);
      for (const std::size_t room : {std::size_t{5}, std::size_t{1} << 16}) {
        test::Pieces pieces(room);
        quantised->stream(i, pieces);
        EXPECT_EQ(pieces.bytes, want) << tensors_[i].name;
      }
    }
  }
}

TEST_F(Checkpoint, Float64BecomesFloat32) {
  tensors_ = test::tiny_tensors(test::spec_of(config_), "F64");
  const auto source = open();
  EXPECT_EQ(source->tensors()[0].storage.storage, Storage::f32);
  EXPECT_TRUE(same_bits(floats_of(*source, 0), tensors_[0].values));
}

TEST_F(Checkpoint, QuantisesByRole) {
  WeightOptions options;
  options.linear = WeightType::nf4;
  options.embedding = WeightType::int8;
  options.block_size = 128;
  options.double_quant = true;
  const auto source = open(options);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const WeightTensor& got = source->tensors()[i];
    StorageSpec want{Storage::f32, 0, false};
    if (got.row.role == TensorRole::linear) want = {Storage::nf4, 128, true};
    if (got.row.role == TensorRole::embedding) want = {Storage::int8, 64, false};
    EXPECT_EQ(got.storage, want) << got.row.name;
    EXPECT_EQ(got.bytes, layout_of(got.row.rows, got.row.columns, want).bytes);
    // The quantiser itself is judged by golden data: here, that this tensor's values went through it.
    std::vector<std::byte> expected(got.bytes), region(got.bytes);
    const std::vector<float>& values = tensors_[i].values;
    store_matrix(
        [&](std::int64_t first, std::span<float> out) { std::copy_n(values.begin() + first, out.size(), out.begin()); },
        got.row.rows, got.row.columns, want, expected, "w");
    source->read(i, region);
    EXPECT_EQ(region, expected) << got.row.name;
  }
}

TEST_F(Checkpoint, BlockSizesThatATypeCannotHaveAreRefused) {
  WeightOptions options;
  options.linear = WeightType::int8;
  options.block_size = 128;
  EXPECT_TRUE(fails_with(Code::invalid_argument, {"128", "int8", "32 or 64"}, [&] { open(options); }));
  options.linear = WeightType::nf4;
  options.block_size = 100;
  EXPECT_TRUE(fails_with(Code::invalid_argument, {"100", "nf4"}, [&] { open(options); }));
}

TEST_F(Checkpoint, ValuesThatSixteenBitsCannotHoldNameTheTensor) {
  tensor(kQuery).values[70] = 1e6F;
  WeightOptions options;
  options.linear = WeightType::f16;
  const auto source = open(options);
  EXPECT_TRUE(fails_with(Code::non_finite, {kQuery, "1000000", "row 1, column 6", "65504"},
                         [&] { floats_of(*source, index_of(*source, kQuery)); }));
}

TEST_F(Checkpoint, NonFiniteValuesNameTheTensor) {
  for (const std::string dtype : {"F32", "F16", "BF16"}) {
    tensors_ = test::tiny_tensors(test::spec_of(config_), dtype);
    tensor(kQuery).values[130] = std::numeric_limits<float>::infinity();
    const auto source = open();
    EXPECT_TRUE(fails_with(Code::non_finite, {kQuery, "row 2, column 2"},
                           [&] { floats_of(*source, index_of(*source, kQuery)); }));
  }
}

// ---- names, both ways (O-13, O-15) ----

TEST_F(Checkpoint, AMissingTensorIsNamedWithTheNearestOne) {
  tensor(kQuery).name = "model.layers.1.self_attn.p_proj.weight";
  EXPECT_TRUE(fails_with(Code::bad_file, {kQuery, "p_proj"}, [&] { open(); }));
}

TEST_F(Checkpoint, NormsAndBiasesOfTheConfigMustBeThere) {
  config_["architectures"] = {"Qwen3ForCausalLM"};
  config_["model_type"] = "qwen3";
  config_["attention_bias"] = true;
  const std::vector<WrittenTensor> whole = test::tiny_tensors(test::spec_of(config_));
  for (const char* part :
       {"q_norm.weight", "k_norm.weight", "q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"}) {
    const std::string name = std::string("model.layers.1.self_attn.") + part;
    tensors_ = whole;
    EXPECT_NO_THROW(open());
    drop(name);
    EXPECT_TRUE(fails_with(Code::bad_file, {"lacks 1 of the tensors", name}, [&] { open(); }));
  }
  tensors_ = whole;
  std::erase_if(tensors_, [](const WrittenTensor& tensor) { return tensor.name.ends_with(".bias"); });
  EXPECT_TRUE(
      fails_with(Code::bad_file, {"lacks 8 of the tensors", "model.layers.0.self_attn.q_proj.bias"}, [&] { open(); }));
}

TEST_F(Checkpoint, TiedHeadIsOneTableAndAHeadInTheFileIsReported) {
  EXPECT_EQ(open()->tensors().size(), 20U);
  add("lm_head.weight", {320, 64});
  const auto source = open();
  EXPECT_EQ(source->tensors().size(), 20U);
  EXPECT_NE(text_of(source->report()).find("lm_head.weight is unused"), std::string::npos);
}

TEST_F(Checkpoint, AnUntiedHeadMustBeThere) {
  config_["tie_word_embeddings"] = false;
  EXPECT_TRUE(fails_with(Code::bad_file, {"lm_head.weight", "tie"}, [&] { open(); }));
  config_.erase("tie_word_embeddings");
  EXPECT_TRUE(fails_with(Code::bad_file, {"lm_head.weight", "tie_word_embeddings"}, [&] { open(); }));
  add("lm_head.weight", {320, 64});
  EXPECT_EQ(open()->tensors().size(), 21U);
}

TEST_F(Checkpoint, BuffersAndStrangersAreReported) {
  add("model.layers.0.self_attn.rotary_emb.inv_freq", {8});
  add("score.weight", {2, 64});
  add("model.layers.7.mlp.up_proj.weight", {1});
  const std::string report = text_of(open()->report());
  for (const char* name : {"inv_freq", "score.weight", "layers.7"})
    EXPECT_NE(report.find(name), std::string::npos) << report;
}

TEST_F(Checkpoint, TensorsThatWouldChangeTheMathsAreRefused) {
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.q_norm.weight",
                           "model.layers.1.mlp.extra.weight", "model.norm.bias", "lm_head.bias"}) {
    const auto kept = tensors_;
    add(name, {64});
    EXPECT_TRUE(fails_with(Code::unsupported, {name}, [&] { open(); }));
    tensors_ = kept;
  }
}

TEST_F(Checkpoint, TheBareModelsNamesAreUnderstood) {
  for (WrittenTensor& tensor : tensors_) tensor.name.erase(0, std::string("model.").size());
  const auto source = open();
  EXPECT_EQ(source->tensors()[0].row.name, "model.embed_tokens.weight");
  EXPECT_TRUE(same_bits(floats_of(*source, 5), tensors_[5].values));
}

// ---- Qwen3.5 ----

class HybridCheckpoint : public Checkpoint {
 protected:
  HybridCheckpoint() {
    config_ = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
               {"model_type", "qwen3_5"},
               {"tie_word_embeddings", true},
               {"text_config", test::tiny_config()}};
    auto& text = config_["text_config"];
    for (const char* key : {"architectures", "tie_word_embeddings", "bos_token_id"}) text.erase(key);
    text.update({{"model_type", "qwen3_5_text"},
                 {"head_dim", 32},
                 {"full_attention_interval", 2},
                 {"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 16},
                 {"linear_value_head_dim", 32}});
    tensors_ = test::tiny_tensors(test::spec_of(config_), "BF16");
  }
  void rename(std::string_view from, std::string_view to) {
    for (WrittenTensor& tensor : tensors_)
      if (tensor.name.starts_with(from)) tensor.name.replace(0, from.size(), to);
  }
};

TEST_F(HybridCheckpoint, NamesOfEveryPublishedKindAreUnderstood) {
  const auto read = [&] {
    const auto source = open();
    EXPECT_TRUE(source->spec().is_delta(0) && !source->spec().is_delta(1));
    std::vector<std::vector<float>> values;
    for (std::size_t i = 0; i < source->tensors().size(); ++i) values.push_back(floats_of(*source, i));
    return values;
  };
  const auto published = read();
  rename("model.language_model.", "model.");
  EXPECT_EQ(read(), published);
  add("model.visual.blocks.0.attn.qkv.weight", {24, 8});
  EXPECT_EQ(read(), published);
  rename("model.visual.", "visual.");
  rename("model.", "");
  EXPECT_EQ(read(), published);
}

TEST_F(HybridCheckpoint, PicturePartAndTokensAheadAreNotedTheRestIsStrict) {
  add("model.visual.blocks.0.attn.qkv.weight", {24, 8});
  add("mtp.layers.0.mlp.gate_proj.weight", {128, 64});
  const auto source = open();
  bool noted = false;
  for (const std::string& line : source->report())
    noted =
        noted || (line.find("model.visual.blocks.0") != std::string::npos && line.find("mtp.") != std::string::npos);
  EXPECT_TRUE(noted);
  add("model.language_model.layers.0.linear_attn.conv1d.bias", {192});
  EXPECT_TRUE(fails_with(Code::unsupported, {"conv1d.bias"}, [&] { open(); }));
  tensors_.back().name = "model.language_model.extra.weight";
  EXPECT_TRUE(fails_with(Code::unsupported, {"model.language_model.extra.weight"}, [&] { open(); }));
  tensors_.pop_back();
  tensor("model.language_model.layers.0.linear_attn.conv1d.weight").shape = {192, 4};
  EXPECT_TRUE(fails_with(Code::bad_file, {"conv1d.weight", "[192, 4]", "[192, 1, 4]"}, [&] { open(); }));
  drop("model.language_model.layers.0.linear_attn.conv1d.weight");
  EXPECT_TRUE(fails_with(Code::bad_file, {"conv1d.weight"}, [&] { open(); }));
}

TEST_F(HybridCheckpoint, OnlyLinearMatricesAreQuantised) {
  WeightOptions options;
  options.linear = WeightType::nf4;
  const auto source = open(options);
  for (const WeightTensor& tensor : source->tensors()) {
    const TensorRow& row = tensor.row;
    Storage want = Storage::nf4;
    if (row.role == TensorRole::vector) want = Storage::f32;
    if (row.role == TensorRole::embedding || row.part == Part::delta_decay || row.part == Part::delta_rate)
      want = Storage::bf16;
    EXPECT_EQ(tensor.storage.storage, want) << row.name;
    EXPECT_EQ(row.role == TensorRole::vector, row.name.ends_with("norm.weight") || row.part >= Part::delta_convolution)
        << row.name;
  }
  write_packed_file(folder_.path() / "tiny.duet", *source, {});
  const auto packed = open_checkpoint(folder_.path() / "tiny.duet", {});
  EXPECT_EQ(packed->spec(), source->spec());
  for (std::size_t i = 0; i < source->tensors().size(); ++i) {
    EXPECT_EQ(packed->tensors()[i].storage, source->tensors()[i].storage);
    EXPECT_TRUE(same_bits(floats_of(*packed, i), floats_of(*source, i)));
  }
}

TEST_F(Checkpoint, ShapesMustBeThoseOfTheConfig) {
  tensor(kQuery).shape = {32, 128};
  EXPECT_TRUE(fails_with(Code::bad_file, {kQuery, "[32, 128]", "[64, 64]"}, [&] { open(); }));
}

TEST_F(Checkpoint, IntegerWeightsWithoutScalesAreRefused) {
  tensor(kQuery).dtype = "I8";
  EXPECT_TRUE(fails_with(Code::unsupported, {kQuery, "I8"}, [&] { open(); }));
}

TEST_F(Checkpoint, ACutFileIsRefused) {
  const fs::path file = write() / "model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1000);
  EXPECT_TRUE(fails_with(Code::bad_file, {"model.safetensors"}, [&] { open_checkpoint(folder_.path(), {}); }));
}

TEST_F(Checkpoint, APathWithNothingThereIsSaidSo) {
  EXPECT_TRUE(fails_with(Code::not_found, {"nowhere"}, [&] { open_checkpoint(folder_.path() / "nowhere", {}); }));
}

// ---- identity ----

TEST_F(Checkpoint, IdentityIsThatOfFilesAndStorage) {
  const std::string first = open()->identity();
  const fs::path link = folder_.path().string() + "-link";
  fs::create_directory_symlink(folder_.path(), link);
  EXPECT_EQ(open_checkpoint(link, {})->identity(), first);
  EXPECT_EQ(open_checkpoint(folder_.path() / ".", {})->identity(), first);
  fs::remove(link);
  WeightOptions options;
  options.linear = WeightType::nf4;
  EXPECT_NE(open_checkpoint(folder_.path(), options)->identity(), first);
  tensors_[0].values[0] += 1;
  EXPECT_NE(open()->identity(), first);
}

// ---- 4-bit checkpoints (O-09) ----

class MixedCheckpoint : public Checkpoint {
 protected:
  /// Turns a dense tensor into a 4-bit one, [blocks of 64], by the quantiser that golden data judges.
  void quantise(const std::string& name) {
    WrittenTensor& dense = tensor(name);
    const std::int64_t rows = dense.shape[0], columns = dense.shape[1];
    const StorageSpec spec{Storage::nf4, 64, false};
    const MatrixLayout layout = layout_of(rows, columns, spec);
    std::vector<std::byte> region(layout.bytes);
    const std::vector<float> values = dense.values;
    store_matrix(
        [&](std::int64_t first, std::span<float> out) { std::copy_n(values.begin() + first, out.size(), out.begin()); },
        rows, columns, spec, region, name);
    regions_[name] = region;
    const Matrix matrix = view_of(rows, columns, spec, region.data());
    dense.dtype = "U8";
    dense.shape = {static_cast<std::int64_t>(layout.data_bytes), 1};
    dense.values.clear();
    for (std::size_t i = 0; i < layout.data_bytes; ++i) dense.values.push_back(static_cast<float>(region[i]));
    const std::string json = R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[)" +
                             std::to_string(rows) + "," + std::to_string(columns) + "]}";
    tensors_.push_back({name + ".absmax", "F32", {layout.blocks}, {matrix.scales, matrix.scales + layout.blocks}});
    tensors_.push_back({name + ".quant_map", "F32", {16}, {kNf4Codes.begin(), kNf4Codes.end()}});
    tensors_.push_back({name + ".quant_state.bitsandbytes__nf4",
                        "U8",
                        {static_cast<std::int64_t>(json.size())},
                        {json.begin(), json.end()}});
  }

  void quantise_all_but(std::string_view kept) {
    for (const TensorRow& row : tensors_of(test::spec_of(config_)))
      if (row.role == TensorRole::linear && row.name.find(kept) == std::string::npos) quantise(row.name);
  }

  void set_skipped(const nlohmann::ordered_json& list) {
    config_["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                      {"load_in_4bit", true},
                                      {"bnb_4bit_quant_type", "nf4"},
                                      {"llm_int8_skip_modules", list}};
  }

  std::map<std::string, std::vector<std::byte>> regions_;
};

TEST_F(MixedCheckpoint, TheTensorsDecideWhateverTheListSays) {
  quantise_all_but("layers.1.mlp");
  for (const nlohmann::ordered_json& list :
       {nlohmann::ordered_json{"lm_head", "model.layers.1.mlp"}, nlohmann::ordered_json{nullptr}[0],
        nlohmann::ordered_json("null"), nlohmann::ordered_json{"language_model.layers.1.mlp"}}) {
    set_skipped(list);
    const auto source = open();
    for (std::size_t i = 0; i < source->tensors().size(); ++i) {
      const WeightTensor& tensor = source->tensors()[i];
      const bool is_4bit = regions_.contains(tensor.row.name);
      EXPECT_EQ(tensor.storage.storage, is_4bit ? Storage::nf4 : Storage::f32) << tensor.row.name << list;
      if (!is_4bit) continue;
      std::vector<std::byte> region(tensor.bytes);
      source->read(i, region);
      EXPECT_EQ(region, regions_[tensor.row.name]);
    }
    const bool agrees = list.is_array() && list.size() == 2;
    EXPECT_EQ(text_of(source->report()).find("dense in the file") == std::string::npos, agrees) << list;
  }
}

TEST_F(MixedCheckpoint, AListedModuleThatIsFourBitIsReported) {
  quantise_all_but("nothing");
  set_skipped({"model.layers.1.mlp"});
  EXPECT_NE(text_of(open()->report()).find("4-bit in the file"), std::string::npos);
}

TEST_F(MixedCheckpoint, EqualsACopyWrittenOutDensely) {
  const auto dense_tensors = tensors_;
  quantise_all_but("layers.1.mlp");
  WeightOptions options;
  options.linear = WeightType::f32;
  const auto decoded = open(options);
  for (std::size_t i = 0; i < decoded->tensors().size(); ++i) {
    const WeightTensor& tensor = decoded->tensors()[i];
    EXPECT_EQ(tensor.storage.storage, Storage::f32);
    const auto region = regions_.find(tensor.row.name);
    std::vector<float> want = dense_tensors[i].values;
    if (region != regions_.end())
      dequantise(view_of(tensor.row.rows, tensor.row.columns, {Storage::nf4, 64, false}, region->second.data()), 0,
                 want);
    EXPECT_TRUE(same_bits(floats_of(*decoded, i), want)) << tensor.row.name;
  }
}

TEST_F(MixedCheckpoint, QuantisingAgainIsRefused) {
  quantise_all_but("nothing");
  WeightOptions options;
  options.linear = WeightType::int8;
  EXPECT_TRUE(fails_with(Code::unsupported, {"nf4", "int8", "16-bit"}, [&] { open(options); }));
  options.linear = WeightType::nf4;
  options.block_size = 128;
  EXPECT_EQ(open(options)->tensors()[2].storage, (StorageSpec{Storage::nf4, 64, false}));
}

// ---- the plan from config.json alone ----

TEST_F(MixedCheckpoint, ConfigAlonePlansTheBytesThatAreUsed) {
  quantise_all_but("layers.1.mlp");
  set_skipped({"lm_head", "model.layers.1.mlp"});
  const auto source = open();
  fs::remove(folder_.path() / "model.safetensors");
  const ConfigOnly planned = read_config_only(folder_.path(), {});
  ASSERT_EQ(planned.tensors.size(), source->tensors().size());
  for (std::size_t i = 0; i < planned.tensors.size(); ++i) {
    EXPECT_EQ(planned.tensors[i].storage, source->tensors()[i].storage) << planned.tensors[i].row.name;
    EXPECT_EQ(planned.tensors[i].bytes, source->tensors()[i].bytes);
  }
  EXPECT_EQ(planned.spec, source->spec());
}

TEST_F(Checkpoint, ConfigAloneTakesItsDtype) {
  write();
  for (const auto& [name, storage] :
       {std::pair{"bfloat16", Storage::bf16}, {"float16", Storage::f16}, {"float32", Storage::f32}}) {
    config_["torch_dtype"] = name;
    test::write_file(folder_.path() / "config.json", config_.dump());
    EXPECT_EQ(read_config_only(folder_.path(), {}).tensors[0].storage.storage, storage);
  }
  config_.erase("torch_dtype");
  test::write_file(folder_.path() / "config.json", config_.dump());
  EXPECT_NE(text_of(read_config_only(folder_.path(), {}).report).find("dtype"), std::string::npos);
}

TEST_F(Checkpoint, TextsAreReadFromTheFolder) {
  write();
  test::write_file(folder_.path() / "chat_template.jinja", "hello");
  EXPECT_EQ(read_checkpoint_text(folder_.path(), "chat_template.jinja"), "hello");
  EXPECT_EQ(read_checkpoint_text(folder_.path(), "tokenizer.json"), std::nullopt);
}

// ---- the reference's own checkpoints ----

TEST(GoldenCheckpoints, EveryFamilyOpensWithEveryTensorUsed) {
  const std::vector<std::string> names = test::golden_names("models");
  ASSERT_GE(names.size(), 20U);
  for (const std::string& name : names) {
    const auto source = open_checkpoint(test::golden_directory() / "models" / name, {});
    for (std::size_t i = 0; i < source->tensors().size(); ++i)
      for (const float value : floats_of(*source, i)) ASSERT_TRUE(std::isfinite(value)) << name;
    const ConfigOnly planned = read_config_only(test::golden_directory() / "models" / name, {});
    for (std::size_t i = 0; i < source->tensors().size(); ++i)
      EXPECT_EQ(planned.tensors[i].storage, source->tensors()[i].storage) << name;
  }
}

TEST(GoldenCheckpoints, BitsandbytesCheckpointsOpenAsTheirTensorsSay) {
  const std::vector<std::string> names = test::golden_names("bnb");
  ASSERT_GE(names.size(), 8U);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const auto expected =
        nlohmann::json::parse(test::read_file(test::golden_directory() / "bnb" / name / "expected.json"));
    const auto dense = expected["dense_modules"].get<std::vector<std::string>>();
    const auto source = open_checkpoint(test::golden_directory() / "bnb" / name, {});
    for (std::size_t i = 0; i < source->tensors().size(); ++i) {
      const WeightTensor& tensor = source->tensors()[i];
      const std::string module = tensor.row.name.substr(0, tensor.row.name.rfind('.'));
      const bool is_dense = std::any_of(dense.begin(), dense.end(), [&](const std::string& listed) {
        return module == listed || module.starts_with(listed + ".");
      });
      const bool matrix = tensor.row.role == TensorRole::linear || tensor.row.role == TensorRole::head;
      if (matrix && !is_dense) {
        const bool nf4 = expected["quant_type"].get<std::string>() == "nf4";
        EXPECT_EQ(tensor.storage, (StorageSpec{nf4 ? Storage::nf4 : Storage::fp4, expected["block_size"].get<int>(),
                                               expected["nested"].get<bool>()}))
            << tensor.row.name;
      } else {
        EXPECT_FALSE(is_quantised(tensor.storage.storage)) << tensor.row.name;
      }
      for (const float value : floats_of(*source, i)) ASSERT_TRUE(std::isfinite(value)) << tensor.row.name;
    }
  }
}

TEST(SharedData, Stories260kOpens) {
  const auto shared = test::shared_data_directory();
  if (!shared) GTEST_SKIP() << "shared/data is not there: stories260k is not read";
  const auto source = open_checkpoint(*shared / "stories260k", {});
  EXPECT_EQ(source->spec().vocabulary, 512);
  std::size_t elements = 0;
  for (const WeightTensor& tensor : source->tensors())
    elements += static_cast<std::size_t>(tensor.row.rows * tensor.row.columns);
  EXPECT_EQ(elements, 260'032U);
}

}  // namespace
}  // namespace duet::loaders
