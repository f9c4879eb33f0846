#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "loaders/hf_config.h"
#include "loaders/json_file.h"
#include "loaders/loaders.h"
#include "loaders/peft_targets.h"
#include "loaders/sha256.h"
#include "tests/loaders/expect_error.h"
#include "tests/loaders/hostile_headers.h"
#include "tests/loaders/write_safetensors.h"
#include "tests/support/compare.h"
#include "tests/support/test_data.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;
using test::fails_with;
using test::WrittenTensor;

ModelSpec tiny() {
  ModelSpec spec;
  spec.architecture = "Qwen2ForCausalLM";
  spec.layers = 2;
  spec.hidden = 8;
  spec.query_heads = 2;
  spec.kv_heads = 1;
  spec.head_size = 4;
  spec.mlp = 12;
  spec.vocabulary = 20;
  spec.max_position_tokens = 64;
  spec.query_key_value_bias = true;
  return spec;
}

/// Deterministic values that 16 bits hold exactly: multiples of 2^-6 below 1.
std::vector<float> values(std::size_t count, unsigned seed) {
  std::vector<float> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    seed = seed * 1664525U + 1013904223U;
    made[i] = (static_cast<float>(seed >> 26) - 31.5F) / 32.0F;
  }
  return made;
}

WrittenTensor tensor(std::string name, std::vector<std::int64_t> shape, std::string dtype = "F32", unsigned seed = 1) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return {std::move(name), std::move(dtype), std::move(shape), values(count, seed)};
}

constexpr std::string_view kPrefix = "base_model.model.";

/// LoRA pairs on a module of every layer.
struct Projection {
  std::string name;
  std::int64_t in = 0, out = 0, rank = 4;
};
const Projection kQuery{"self_attn.q_proj", 8, 8};
const Projection kValue{"self_attn.v_proj", 8, 4};
const Projection kDown{"mlp.down_proj", 12, 8};

std::vector<WrittenTensor> lora_pairs(const std::vector<Projection>& projections, const std::string& dtype = "F32") {
  std::vector<WrittenTensor> tensors;
  unsigned seed = 1;
  for (int layer = 0; layer < 2; ++layer) {
    for (const Projection& p : projections) {
      const std::string at = std::string(kPrefix) + "model.layers." + std::to_string(layer) + "." + p.name;
      tensors.push_back(tensor(at + ".lora_A.weight", {p.rank, p.in}, dtype, ++seed));
      tensors.push_back(tensor(at + ".lora_B.weight", {p.out, p.rank}, dtype, ++seed));
    }
  }
  return tensors;
}

Json config(std::string_view changes = "{}") {
  Json made = Json::parse(R"({"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj","v_proj","down_proj"],
    "bias":"none","use_dora":false,"use_rslora":false,"fan_in_fan_out":false,"init_lora_weights":true,
    "task_type":"CAUSAL_LM","base_model_name_or_path":"tiny","inference_mode":true,"lora_dropout":0.05})");
  const Json changed = Json::parse(changes);
  for (const auto& [key, value] : changed.items()) made[key] = value;
  return made;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  if (const auto at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

class Peft : public testing::Test {
 protected:
  void write(const Json& settings, const std::vector<WrittenTensor>& tensors) const {
    test::write_file(path() / "adapter_config.json", settings.dump());
    test::write_file(path() / "adapter_model.safetensors", test::safetensors_file(tensors));
  }
  std::unique_ptr<AdapterSource> open() const { return open_adapter(path(), base_, "laya"); }
  std::unique_ptr<AdapterSource> open(const Json& settings, const std::vector<WrittenTensor>& tensors) const {
    write(settings, tensors);
    return open();
  }
  testing::AssertionResult refuses(const Json& settings, const std::vector<WrittenTensor>& tensors, Code code,
                                   std::initializer_list<std::string_view> parts) const {
    return fails_with(code, parts, [&] { open(settings, tensors); });
  }
  fs::path path() const { return folder_.path(); }

  test::TemporaryDirectory folder_;
  ModelSpec base_ = tiny();
};

bool reports(const AdapterSource& source, std::string_view part) {
  for (const std::string& line : source.report()) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

const AdapterModule* module_at(const AdapterSpec& spec, Part part, int layer) {
  for (const AdapterModule& module : spec.modules) {
    if (module.part == part && module.layer == layer) return &module;
  }
  return nullptr;
}

int replacement_at(const AdapterSpec& spec, Part part, int layer) {
  for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
    const AdapterTensor& tensor = spec.tensors[i];
    if (tensor.kind == AdapterTensorKind::replacement && tensor.part == part && tensor.layer == layer)
      return static_cast<int>(i);
  }
  return -1;
}

std::vector<float> floats_of(const AdapterSource& source, int index) {
  const AdapterTensor& tensor = source.spec().tensors.at(static_cast<std::size_t>(index));
  std::vector<std::byte> bytes(tensor.bytes);
  source.read(static_cast<std::size_t>(index), bytes);
  std::vector<float> floats(static_cast<std::size_t>(tensor.rows * tensor.columns));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    std::uint16_t bits = 0;
    if (tensor.storage == Storage::f32) {
      std::memcpy(&floats[i], bytes.data() + 4 * i, 4);
      continue;
    }
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    floats[i] =
        tensor.storage == Storage::f16 ? to_float(static_cast<Half>(bits)) : to_float(static_cast<Bfloat16>(bits));
  }
  return floats;
}

// ---- O-01: names ----

TEST_F(Peft, ReadsAPlainAdapter) {
  const std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
  const auto adapter = open(config(), tensors);
  const AdapterSpec& spec = adapter->spec();
  ASSERT_EQ(spec.modules.size(), 6U);
  EXPECT_EQ(spec.tensors.size(), 12U);
  EXPECT_EQ(spec.largest_rank, 4);
  EXPECT_FALSE(spec.has_dora());
  const AdapterModule& down = *module_at(spec, Part::down, 1);
  EXPECT_EQ(down.rank, 4);
  EXPECT_EQ(down.scale, 2.0F);
  EXPECT_EQ(spec.tensors[static_cast<std::size_t>(down.lora_a)].columns, 12);
  EXPECT_EQ(spec.tensors[static_cast<std::size_t>(down.lora_b)].rows, 8);
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, down.lora_a), tensors[10].values));
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, down.lora_b), tensors[11].values));
  EXPECT_TRUE(reports(*adapter, "6 of 6 modules adapted in 'laya', 12 of 12 tensors used"));
  for (const AdapterTensor& tensor : spec.tensors) EXPECT_EQ(tensor.offset % kPartAlignment, 0U);
  EXPECT_EQ(spec.bytes, spec.tensors.back().offset + spec.tensors.back().bytes);
}

TEST_F(Peft, OtherSpellingsOfTheSameNamesAreTheSameAdapter) {
  const std::vector<WrittenTensor> plain = lora_pairs({kQuery, kValue, kDown});
  const std::string want = open(config(), plain)->spec().content_hash;
  EXPECT_EQ(want.size(), 64U);
  const auto with = [&](std::string_view from, std::string_view to) {
    std::vector<WrittenTensor> changed = plain;
    for (WrittenTensor& tensor : changed) tensor.name = replaced(tensor.name, from, to);
    return open(config(), changed)->spec().content_hash;
  };
  EXPECT_EQ(with("base_model.model.", ""), want);
  EXPECT_EQ(with("base_model.model.", "base_model.model.base_model.model."), want);
  EXPECT_EQ(with("model.layers", "model.language_model.layers"), want);
  EXPECT_EQ(with("base_model.model.", "base_model.model.language_model."), want);
  EXPECT_EQ(with(".weight", ".default.weight"), want);
}

/// Adapters around a model without its head: modules are "layers.0...", in the file and in what the config says.
TEST_F(Peft, AdaptersOfTheHeadlessModelAreThoseOfTheWhole) {
  const std::vector<WrittenTensor> plain = lora_pairs({kQuery, kValue, kDown});
  const auto with = [&](std::string_view from, std::string_view to) {
    std::vector<WrittenTensor> changed = plain;
    for (WrittenTensor& tensor : changed) tensor.name = replaced(tensor.name, from, to);
    return changed;
  };
  const std::vector<WrittenTensor> headless = with("model.model.", "model.");
  const std::string want = open(config(), plain)->spec().content_hash;
  const auto adapter = open(config(), headless);
  EXPECT_EQ(adapter->spec().content_hash, want);
  EXPECT_TRUE(std::any_of(adapter->report().begin(), adapter->report().end(),
                          [](const std::string& line) { return line.find("without its head") != std::string::npos; }));
  EXPECT_EQ(open(config(), with("base_model.model.model.", ""))->spec().content_hash, want);
  EXPECT_EQ(open(config(), with("base_model.model.model.", "base_model.model.language_model."))->spec().content_hash,
            want);

  // What PEFT matched it matched against these names.
  const auto expression = R"({"target_modules":"layers\\.\\d\\.(self_attn\\.[qv]|mlp\\.down)_proj"})";
  EXPECT_EQ(open(config(expression), headless)->spec().content_hash, want);
  EXPECT_TRUE(refuses(config(expression), plain, Code::bad_file, {"matches none"}));
  const Json patterns = config(R"({"rank_pattern":{"layers.1.mlp.down_proj":4},"r":4})");
  EXPECT_EQ(open(patterns, headless)->spec().content_hash, want);
  EXPECT_TRUE(refuses(config(R"({"target_modules":["q_proj","v_proj","down_proj","lm_head"]})"),
                      lora_pairs({kQuery, kValue, kDown}), Code::bad_file, {"lm_head"}));

  // Strict both ways, the names shown are the file's own.
  std::vector<WrittenTensor> broken = headless;
  broken[0].name = "base_model.model.layers.99.self_attn.q_proj.lora_A.weight";
  EXPECT_TRUE(
      refuses(config(), broken, Code::bad_file,
              {"1 of its 12 tensors fit nothing", "'base_model.model.layers.0.self_attn.q_proj.lora_A.weight'"}));
  broken = headless;
  broken.pop_back();
  EXPECT_TRUE(refuses(config(), broken, Code::bad_file, {"missing", "'base_model.model.layers.1.mlp.down_proj"}));
  broken = headless;
  broken[1].name = plain[1].name;
  EXPECT_TRUE(refuses(config(), broken, Code::bad_file, {"1 of its 12 tensors", plain[1].name}));
}

TEST_F(Peft, NamesThatLandNowhereAreRefusedWithTheNearest) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
  tensors[0].name = "base_model.model.model.layers.99.self_attn.q_proj.lora_A.weight";
  EXPECT_TRUE(refuses(config(), tensors, Code::bad_file,
                      {"1 of its 12 tensors fit nothing in 'laya'", "layers.99.self_attn.q_proj.lora_A.weight'",
                       "nearest real name is 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'",
                       "1 that", "asks for are missing"}));
  tensors = lora_pairs({kQuery, kValue, kDown});
  tensors.push_back(tensor("base_model.model.model.layers.0.self_attn.w_proj.lora_A.weight", {4, 8}));
  EXPECT_TRUE(refuses(config(), tensors, Code::bad_file, {"1 of its 13 tensors", "w_proj", "nearest real name"}));
  tensors = lora_pairs({kQuery, kValue, kDown});
  for (WrittenTensor& t : tensors) t.name = replaced(t.name, "base_model.model.model.", "base_model.model.decoder.");
  EXPECT_TRUE(refuses(config(), tensors, Code::bad_file, {"12 of its 12 tensors", "and 8 more", "12 that"}));
}

TEST_F(Peft, OnePrefixHoldsForTheWholeFile) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
  tensors[3].name = replaced(tensors[3].name, "base_model.model.", "");
  EXPECT_TRUE(refuses(config(), tensors, Code::bad_file,
                      {"1 of its 12 tensors", "'model.layers.0.self_attn.v_proj.lora_B.weight'"}));
}

TEST_F(Peft, TheSameTensorTwiceIsRefused) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
  tensors.push_back(tensors[0]);
  tensors.back().name = replaced(tensors.back().name, ".weight", ".default.weight");
  EXPECT_TRUE(refuses(config(), tensors, Code::bad_file, {"lora_A.default.weight'", "again"}));
}

TEST_F(Peft, ConfigAndFileMustAgreeBothWays) {
  EXPECT_TRUE(refuses(config(), lora_pairs({kQuery, kValue}), Code::bad_file,
                      {"4 that", "missing", "layers.0.mlp.down_proj.lora_A.weight"}));
  EXPECT_TRUE(refuses(config(R"({"target_modules":["q_proj","v_proj"]})"), lora_pairs({kQuery, kValue, kDown}),
                      Code::bad_file, {"4 of its 12", "down_proj", "target_modules does not reach it"}));
  EXPECT_TRUE(refuses(config(R"({"layers_to_transform":[0]})"), lora_pairs({kQuery, kValue, kDown}), Code::bad_file,
                      {"6 of its 12", "layers.1", "target_modules does not reach it"}));
}

TEST_F(Peft, ShapesBelongToTheBaseItIsOpenedFor) {
  write(config(), lora_pairs({kQuery, kValue, kDown}));
  EXPECT_NO_THROW(open());
  base_.mlp = 16;  // The other model of the pair: same architecture, other width.
  EXPECT_TRUE(fails_with(Code::bad_file, {"down_proj.lora_A.weight", "[4, 12]", "[4, 16]"}, [&] { open(); }));
  base_ = tiny();
  base_.layers = 1;
  EXPECT_TRUE(fails_with(Code::bad_file, {"fit nothing in 'laya'", "layers.1"}, [&] { open(); }));
  base_.layers = 3;
  EXPECT_TRUE(fails_with(Code::bad_file, {"missing", "layers.2"}, [&] { open(); }));
}

// ---- O-02: whole matrices, embedding, head ----

TEST_F(Peft, WholeTablesReplaceTheBases) {
  const WrittenTensor head = tensor("base_model.model.lm_head.weight", {20, 8}, "F32", 5);
  const WrittenTensor embedding = tensor("base_model.model.model.embed_tokens.weight", {20, 8}, "F32", 6);
  const auto adapter =
      open(config(R"({"target_modules":[],"modules_to_save":["lm_head","embed_tokens"]})"), {head, embedding});
  const AdapterSpec& spec = adapter->spec();
  EXPECT_TRUE(spec.modules.empty());
  ASSERT_EQ(spec.tensors.size(), 2U);
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, replacement_at(spec, Part::head, -1)), head.values));
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, replacement_at(spec, Part::embedding, -1)), embedding.values));
  EXPECT_GE(spec.bytes, 2U * 20 * 8 * 2);  // What the plan counts.
  EXPECT_TRUE(refuses(config(R"({"target_modules":[],"modules_to_save":["lm_head"]})"), {embedding}, Code::bad_file,
                      {"missing", "base_model.model.lm_head.weight"}));
}

TEST_F(Peft, ATableWithoutModulesToSaveIsTakenAndReported) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
  tensors.push_back(tensor("base_model.model.lm_head.weight", {20, 8}, "F32", 5));
  const auto adapter = open(config(), tensors);
  EXPECT_GE(replacement_at(adapter->spec(), Part::head, -1), 0);
  EXPECT_EQ(replacement_at(adapter->spec(), Part::embedding, -1), -1);
  EXPECT_TRUE(reports(*adapter, "whole table"));
  tensors.back().shape = {21, 8};
  tensors.back().values = values(21 * 8, 3);
  EXPECT_TRUE(refuses(config(), tensors, Code::bad_file, {"lm_head.weight", "[21, 8]", "[20, 8]"}));
}

TEST_F(Peft, ATiedTableLoadedBareChangesBothEnds) {
  base_.tied_head = true;
  const WrittenTensor table = tensor("base_model.model.model.embed_tokens.weight", {20, 8}, "F32", 6);
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
  tensors.push_back(table);
  const auto bare = open(config(), tensors);
  EXPECT_TRUE(test::same_bits(floats_of(*bare, replacement_at(bare->spec(), Part::head, -1)), table.values));
  EXPECT_TRUE(test::same_bits(floats_of(*bare, replacement_at(bare->spec(), Part::embedding, -1)), table.values));
  // A wrapper of its own keeps the head on the base's table.
  const auto wrapped = open(config(R"({"modules_to_save":["embed_tokens"]})"), tensors);
  EXPECT_GE(replacement_at(wrapped->spec(), Part::embedding, -1), 0);
  EXPECT_EQ(replacement_at(wrapped->spec(), Part::head, -1), -1);
}

TEST_F(Peft, LoraOnEmbeddingAndHead) {
  std::vector<WrittenTensor> tensors = {
      tensor("base_model.model.model.embed_tokens.lora_embedding_A", {4, 20}, "F32", 3),
      tensor("base_model.model.model.embed_tokens.lora_embedding_B", {8, 4}, "F32", 4),
      tensor("base_model.model.lm_head.lora_A.weight", {4, 8}, "F32", 5),
      tensor("base_model.model.lm_head.lora_B.weight", {20, 4}, "F32", 6)};
  for (const bool tied : {false, true}) {
    base_.tied_head = tied;
    const auto adapter = open(config(R"({"target_modules":["embed_tokens","lm_head"]})"), tensors);
    const AdapterSpec& spec = adapter->spec();
    const AdapterModule& embedding = *module_at(spec, Part::embedding, -1);
    EXPECT_EQ(spec.tensors[static_cast<std::size_t>(embedding.lora_a)].columns, 20);
    EXPECT_EQ(spec.tensors[static_cast<std::size_t>(embedding.lora_b)].rows, 8);
    EXPECT_TRUE(test::same_bits(floats_of(*adapter, embedding.lora_a), tensors[0].values));
    EXPECT_NE(module_at(spec, Part::head, -1), nullptr);
    EXPECT_EQ(spec.tensors.size(), 4U);
  }
  // PEFT saves the frozen table beside LoRA on an embedding.
  tensors.push_back(tensor("base_model.model.model.embed_tokens.base_layer.weight", {20, 8}, "F32", 7));
  const auto adapter = open(config(R"({"target_modules":["embed_tokens","lm_head"]})"), tensors);
  EXPECT_GE(replacement_at(adapter->spec(), Part::embedding, -1), 0);
  EXPECT_GE(replacement_at(adapter->spec(), Part::head, -1), 0);  // Still tied from the loop above.
  tensors[0].name = "base_model.model.model.embed_tokens.lora_A.weight";
  EXPECT_TRUE(refuses(config(R"({"target_modules":["embed_tokens","lm_head"]})"), tensors, Code::bad_file,
                      {"embed_tokens.lora_A.weight", "is an embedding", "lora_embedding_A"}));
}

TEST_F(Peft, SavedNormsAndContainers) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery});
  tensors.push_back(tensor("base_model.model.model.norm.weight", {8}, "BF16"));
  for (const std::string layer : {"0", "1"}) {
    tensors.push_back(tensor("base_model.model.model.layers." + layer + ".input_layernorm.weight", {8}));
    tensors.push_back(tensor("base_model.model.model.layers." + layer + ".post_attention_layernorm.weight", {8}));
  }
  const auto adapter = open(config(R"({"target_modules":["q_proj"],"modules_to_save":["norm"]})"), tensors);
  const int index = replacement_at(adapter->spec(), Part::final_norm, -1);
  ASSERT_GE(index, 0);
  EXPECT_EQ(adapter->spec().tensors[static_cast<std::size_t>(index)].storage, Storage::f32);
  EXPECT_GE(replacement_at(adapter->spec(), Part::post_attention_norm, 1), 0);

  tensors = lora_pairs({kQuery});
  for (const std::string layer : {"0", "1"}) {
    const std::string at = "base_model.model.model.layers." + layer + ".mlp.";
    tensors.push_back(tensor(at + "gate_proj.weight", {12, 8}));
    tensors.push_back(tensor(at + "up_proj.weight", {12, 8}));
    tensors.push_back(tensor(at + "down_proj.weight", {8, 12}));
  }
  const auto whole = open(config(R"({"target_modules":["q_proj"],"modules_to_save":["mlp"]})"), tensors);
  EXPECT_GE(replacement_at(whole->spec(), Part::down, 1), 0);
  EXPECT_TRUE(refuses(config(R"({"target_modules":["q_proj"]})"), tensors, Code::bad_file,
                      {"6 of its 10", "modules_to_save does not name it"}));
}

// ---- O-03: scales ----

TEST_F(Peft, ScalesFollowAlphaRankAndPatterns) {
  Projection query16 = kQuery;
  query16.rank = 16;
  const auto stabilised =
      open(config(R"({"r":16,"lora_alpha":16,"use_rslora":true,"target_modules":["q_proj"]})"), lora_pairs({query16}));
  EXPECT_EQ(module_at(stabilised->spec(), Part::query, 0)->scale, 4.0F);

  Projection down8 = kDown;
  down8.rank = 8;
  const auto patterned = open(
      config(
          R"({"target_modules":["q_proj","down_proj"],"rank_pattern":{"down_proj":8},"alpha_pattern":{"down_proj":8}})"),
      lora_pairs({kQuery, down8}));
  EXPECT_EQ(module_at(patterned->spec(), Part::query, 1)->scale, 2.0F);
  EXPECT_EQ(module_at(patterned->spec(), Part::down, 1)->scale, 1.0F);
  EXPECT_EQ(module_at(patterned->spec(), Part::down, 1)->rank, 8);
  EXPECT_EQ(patterned->spec().largest_rank, 8);

  const auto half = open(config(R"({"lora_alpha":2,"target_modules":["q_proj"]})"), lora_pairs({kQuery}));
  EXPECT_EQ(module_at(half->spec(), Part::query, 1)->scale, 0.5F);
  EXPECT_NE(half->spec().content_hash,
            open(config(R"({"target_modules":["q_proj"]})"), lora_pairs({kQuery}))->spec().content_hash);
}

TEST_F(Peft, ARankOtherThanTheConfigsIsRefused) {
  EXPECT_TRUE(refuses(config(R"({"r":8})"), lora_pairs({kQuery, kValue, kDown}), Code::bad_file,
                      {"lora_A.weight", "rank 4", "rank 8"}));
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery});
  tensors[1] = tensor(tensors[1].name, {8, 2});
  EXPECT_TRUE(refuses(config(R"({"target_modules":["q_proj"]})"), tensors, Code::bad_file,
                      {"lora_B.weight", "[8, 2]", "[8, 4]"}));
}

// ---- O-04: DoRA, biases, settings ----

TEST_F(Peft, DoraNeedsFlagAndMagnitude) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery});
  EXPECT_TRUE(refuses(config(R"({"use_dora":true,"target_modules":["q_proj"]})"), tensors, Code::bad_file,
                      {"2 that", "q_proj.lora_magnitude_vector", "missing"}));
  for (const std::string layer : {"0", "1"}) {
    tensors.push_back(
        tensor("base_model.model.model.layers." + layer + ".self_attn.q_proj.lora_magnitude_vector", {8}));
  }
  EXPECT_TRUE(refuses(config(R"({"target_modules":["q_proj"]})"), tensors, Code::bad_file,
                      {"lora_magnitude_vector", "use_dora is false"}));
  const auto adapter = open(config(R"({"use_dora":true,"target_modules":["q_proj"]})"), tensors);
  EXPECT_TRUE(adapter->spec().has_dora());
  const AdapterModule& module = *module_at(adapter->spec(), Part::query, 1);
  EXPECT_TRUE(module.dora);
  EXPECT_EQ(adapter->spec().tensors[static_cast<std::size_t>(module.magnitude)].storage, Storage::f32);
  EXPECT_EQ(floats_of(*adapter, module.magnitude).size(), 8U);
  tensors.back() = tensor(tensors.back().name, {4});  // As long as the rank, not as an output row.
  EXPECT_TRUE(
      refuses(config(R"({"use_dora":true,"target_modules":["q_proj"]})"), tensors, Code::bad_file, {"[4]", "[8]"}));
}

TEST_F(Peft, TrainedBiases) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery});
  for (const std::string layer : {"0", "1"}) {
    tensors.push_back(tensor("base_model.model.model.layers." + layer + ".self_attn.q_proj.base_layer.bias", {8}));
  }
  const auto only = open(config(R"({"bias":"lora_only","target_modules":["q_proj"]})"), tensors);
  EXPECT_GE(replacement_at(only->spec(), Part::query_bias, 1), 0);
  EXPECT_EQ(replacement_at(only->spec(), Part::key_bias, 1), -1);
  EXPECT_TRUE(refuses(config(R"({"bias":"none","target_modules":["q_proj"]})"), tensors, Code::bad_file,
                      {"q_proj.base_layer.bias", "bias is none"}));
  EXPECT_TRUE(refuses(config(R"({"bias":"all","target_modules":["q_proj"]})"), tensors, Code::bad_file,
                      {"4 that", "k_proj.bias", "missing"}));
  for (const std::string layer : {"0", "1"}) {
    tensors.push_back(tensor("base_model.model.model.layers." + layer + ".self_attn.k_proj.bias", {4}));
    tensors.push_back(tensor("base_model.model.model.layers." + layer + ".self_attn.v_proj.bias", {4}));
  }
  EXPECT_GE(replacement_at(open(config(R"({"bias":"all","target_modules":["q_proj"]})"), tensors)->spec(),
                           Part::value_bias, 1),
            0);
  base_.query_key_value_bias = false;
  EXPECT_TRUE(refuses(config(R"({"bias":"all","target_modules":["q_proj"]})"), tensors, Code::bad_file,
                      {"the base has no such bias"}));
  EXPECT_TRUE(refuses(config(R"({"bias":"both"})"), tensors, Code::bad_file, {"'bias'", "'both'"}));
}

TEST_F(Peft, LoraBias) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery});
  EXPECT_TRUE(refuses(config(R"({"lora_bias":true,"target_modules":["q_proj"]})"), tensors, Code::bad_file,
                      {"q_proj.lora_B.bias", "missing"}));
  for (const std::string layer : {"0", "1"}) {
    tensors.push_back(
        tensor("base_model.model.model.layers." + layer + ".self_attn.q_proj.lora_B.bias", {8}, "F16", 9));
  }
  EXPECT_TRUE(refuses(config(R"({"target_modules":["q_proj"]})"), tensors, Code::bad_file,
                      {"lora_B.bias", "lora_bias is false"}));
  const auto adapter = open(config(R"({"lora_bias":true,"target_modules":["q_proj"]})"), tensors);
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, module_at(adapter->spec(), Part::query, 1)->lora_bias),
                              tensors.back().values));
  EXPECT_TRUE(
      refuses(config(R"({"lora_bias":true,"use_dora":true})"), tensors, Code::bad_file, {"'lora_bias'", "use_dora"}));
}

TEST_F(Peft, SettingsThatChangeTheFormulaAreRefusedByName) {
  const std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {R"({"peft_type":"IA3"})", "'peft_type' is 'IA3'"},
      {R"({"peft_type":"LOHA"})", "'LOHA'"},
      {R"({"peft_type":"PREFIX_TUNING"})", "'PREFIX_TUNING'"},
      {R"({"peft_type":"ADALORA"})", "'ADALORA'"},
      {R"({"fan_in_fan_out":true})", "'fan_in_fan_out' is true"},
      {R"({"init_lora_weights":"pissa"})", "'pissa'"},
      {R"({"init_lora_weights":"pissa_niter_16"})", "'pissa_niter_16'"},
      {R"({"init_lora_weights":"olora"})", "'olora'"},
      {R"({"init_lora_weights":"corda"})", "'corda'"},
      {R"({"init_lora_weights":"loftq"})", "'loftq'"},
      {R"({"init_lora_weights":"lora_ga"})", "'lora_ga'"},
      {R"({"target_parameters":["mlp.experts"]})", "bare parameters"},
      {R"({"trainable_token_indices":[1,2]})", "trained rows"},
      {R"({"layer_replication":[[0,2],[1,2]]})", "replicated layers"},
      {R"({"alora_invocation_tokens":[5]})", "activated LoRA"},
      {R"({"use_qalora":true})", "QALoRA"},
      {R"({"use_bdlora":{"nblocks":2}})", "block-diagonal"},
      {R"({"arrow_config":{"top_k":3}})", "routing"},
      {R"({"kasa_config":{"beta":1}})", "KaSA"},
      {R"({"monteclora_config":{"num_samples":8}})", "sampled"},
      {R"({"megatron_config":{"a":1}})", "Megatron"},
      {R"({"use_new_method":true})", "'use_new_method' is true"},
      {R"({"new_config":{"a":1}})", "'new_config'"}};
  for (const auto& [changes, part] : cases)
    EXPECT_TRUE(refuses(config(changes), tensors, Code::unsupported, {"adapter_config.json", part}));
  const auto neutral =
      open(config(R"({"target_parameters":null,"trainable_token_indices":null,"use_qalora":false,"qalora_group_size":16,
    "loftq_config":{},"eva_config":null,"rank_pattern":{},"alpha_pattern":{},"modules_to_save":null,"init_lora_weights":"eva","layers_pattern":null,
    "peft_version":"0.21.2","megatron_core":"megatron.core","new_switch":false,"new_list":[],"ensure_weight_tying":false,"exclude_modules":null})"),
           tensors);
  EXPECT_EQ(neutral->spec().content_hash, open(config(), tensors)->spec().content_hash);
  base_.tied_head = true;
  EXPECT_TRUE(refuses(config(R"({"ensure_weight_tying":true,"modules_to_save":["embed_tokens"]})"), tensors,
                      Code::unsupported, {"ensure_weight_tying"}));
}

TEST_F(Peft, SettingsThatMakeNoSenseAreRefused) {
  const std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {R"({"r":0})", "'r' is 0"},
      {R"({"r":"4"})", "'r' is '4'"},
      {R"({"lora_alpha":"x"})", "'lora_alpha'"},
      {R"({"lora_alpha":1e300})", "beyond float32"},
      {R"({"rank_pattern":{"q_proj":0}})", "'rank_pattern.q_proj' is 0"},
      {R"({"layers_to_transform":[-1]})", "'layers_to_transform'"},
      {R"({"layers_to_transform":0,"target_modules":".*q_proj"})", "'layers_to_transform'"},
      {R"({"layers_pattern":"layers"})", "'layers_pattern'"},
      {R"({"target_modules":[1]})", "'target_modules'"},
      {R"({"modules_to_save":"lm_head"})", "'modules_to_save'"}};
  for (const auto& [changes, part] : cases)
    EXPECT_TRUE(refuses(config(changes), tensors, Code::bad_file, {"adapter_config.json", part}));
}

// ---- O-06: kinds of files, number formats ----

TEST_F(Peft, SafetensorsWinsAndPicklesAreNeverOpened) {
  write(config(), lora_pairs({kQuery, kValue, kDown}));
  const std::string want = open()->spec().content_hash;
  // Protocol-0 pickle that would run `touch`; and an old one that is no zip file.
  test::write_file(path() / "adapter_model.bin", "cos\nsystem\n(S'touch " + (path() / "marker").string() + "'\ntR.");
  EXPECT_EQ(open()->spec().content_hash, want);
  fs::remove(path() / "adapter_model.safetensors");
  EXPECT_TRUE(fails_with(Code::unsupported, {"adapter_model.bin", "pickle", "not opened", "weights_only=True"},
                         [&] { open(); }));
  test::write_file(path() / "adapter_model.bin", "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.");
  EXPECT_TRUE(fails_with(Code::unsupported, {"adapter_model.bin"}, [&] { open(); }));
  EXPECT_FALSE(fs::exists(path() / "marker"));
  fs::remove(path() / "adapter_model.bin");
  EXPECT_TRUE(
      fails_with(Code::not_found, {"neither adapter_model.safetensors nor adapter_model.bin"}, [&] { open(); }));
  fs::remove(path() / "adapter_config.json");
  EXPECT_TRUE(fails_with(Code::not_found, {"no adapter_config.json"}, [&] { open(); }));
  EXPECT_TRUE(
      fails_with(Code::not_found, {"no adapter folder"}, [&] { open_adapter(path() / "none", base_, "laya"); }));
}

TEST_F(Peft, EveryFloatFormatGivesTheSameValues) {
  // The values are exact in all of them.
  const auto f32 = open(config(), lora_pairs({kQuery, kValue, kDown}, "F32"));
  const auto f16 = open(config(), lora_pairs({kQuery, kValue, kDown}, "F16"));
  const auto bf16 = open(config(), lora_pairs({kQuery, kValue, kDown}, "BF16"));
  const auto f64 = open(config(), lora_pairs({kQuery, kValue, kDown}, "F64"));
  for (int i = 0; i < 12; ++i) {
    const std::vector<float> want = floats_of(*f32, i);
    EXPECT_TRUE(test::same_bits(floats_of(*f16, i), want));
    EXPECT_TRUE(test::same_bits(floats_of(*bf16, i), want));
    EXPECT_TRUE(test::same_bits(floats_of(*f64, i), want));
  }
  EXPECT_EQ(f16->spec().tensors[0].storage, Storage::f16);
  EXPECT_EQ(bf16->spec().tensors[0].storage, Storage::bf16);
  EXPECT_EQ(f32->spec().tensors[0].storage, Storage::f16);
  std::vector<WrittenTensor> mixed = lora_pairs({kQuery, kValue, kDown}, "F32");
  mixed[1].dtype = "BF16";
  mixed[2].dtype = "F16";
  const auto of_all = open(config(), mixed);
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(test::same_bits(floats_of(*of_all, i), floats_of(*f32, i)));
}

TEST_F(Peft, AnExactFloat32CopyOfBfloat16StaysBfloat16) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown}, "F32");
  tensors[0].values[0] = 0x1.04p100F;  // A bfloat16 number far beyond float16.
  const auto adapter = open(config(), tensors);
  EXPECT_EQ(adapter->spec().tensors[0].storage, Storage::bf16);
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, 0), tensors[0].values));
}

TEST_F(Peft, ValuesThatNo16BitTypeHoldsStayWide) {
  std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown}, "F32");
  tensors[0].values[3] = 1e5F;
  for (float& value : tensors[1].values) value *= 1e-9F;
  tensors[2].values[0] = 0.1F;  // Not exact in 16 bits.
  const auto adapter = open(config(), tensors);
  EXPECT_EQ(adapter->spec().tensors[0].storage, Storage::f32);
  EXPECT_EQ(adapter->spec().tensors[1].storage, Storage::f32);
  EXPECT_EQ(adapter->spec().tensors[2].storage, Storage::f32);
  EXPECT_EQ(adapter->spec().tensors[3].storage, Storage::f16);
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, 0), tensors[0].values));
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, 1), tensors[1].values));
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, 2), tensors[2].values));
  EXPECT_TRUE(reports(*adapter, "layers.0.self_attn.q_proj.lora_A.weight' stays float32"));
}

TEST_F(Peft, NonFiniteAndIntegerTensorsAreRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::string dtype : {"F32", "F16", "BF16"}) {
      std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown}, dtype);
      tensors[4].values[5] = bad;
      EXPECT_TRUE(refuses(config(), tensors, Code::non_finite, {"down_proj.lora_A.weight", "element 5"}));
    }
  }
  write(config(R"({"target_modules":[],"modules_to_save":["model.norm"]})"), {});
  test::write_file(
      path() / "adapter_model.safetensors",
      test::safetensors_bytes(
          R"({"base_model.model.model.norm.weight":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}})", "12345678"));
  EXPECT_TRUE(fails_with(Code::bad_file, {"model.norm.weight", "I8"}, [&] { open(); }));
}

TEST_F(Peft, AnOverwrittenFileChangesNothingUntilItIsOpenedAgain) {
  const std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
  const auto adapter = open(config(), tensors);
  std::vector<WrittenTensor> other = tensors;
  for (WrittenTensor& t : other) {
    for (float& value : t.values) value = -value;
  }
  const std::string before = adapter->spec().content_hash;
  test::write_file(path() / "adapter_model.safetensors", test::safetensors_file(other));  // In place: the same inode.
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, 0), tensors[0].values));
  fs::resize_file(path() / "adapter_model.safetensors", 10);
  EXPECT_TRUE(test::same_bits(floats_of(*adapter, 11), tensors[11].values));
  EXPECT_NE(open(config(), other)->spec().content_hash, before);
}

TEST_F(Peft, AnAdapterThatChangesNothingIsRefused) {
  EXPECT_TRUE(refuses(config(R"({"target_modules":[]})"), {}, Code::bad_file, {"changes nothing"}));
}

// ---- O-24, once more through this door ----

TEST_F(Peft, HostileHeadersAreRefused) {
  write(config(), {});
  test::expect_hostile_headers_refused("adapter_model.safetensors", [&](std::string_view bytes) {
    test::write_file(path() / "adapter_model.safetensors", bytes);
    open();
  });
}

TEST_F(Peft, EmptyTensorsAndScalarsAreNoMatrices) {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{0, 8}, {}}) {
    std::vector<WrittenTensor> tensors = lora_pairs({kQuery, kValue, kDown});
    tensors[0] = tensor(tensors[0].name, shape);
    EXPECT_TRUE(refuses(config(), tensors, Code::bad_file, {"adapter_model.safetensors", tensors[0].name}));
  }
}

// ---- golden adapters: what PEFT itself resolved ----

std::string name_in_base(Part part, int layer) {
  ModelSpec base = tiny();
  base.layers = std::max(layer + 1, 1);
  for (const BaseModule& module : modules_of(base)) {
    if (module.kind != ModuleKind::container && module.weight == part && module.layer == layer) return module.name;
  }
  return {};
}

TEST(GoldenAdapters, ResolveAsInPeft) {
  int adapters = 0;
  for (const auto& base : fs::directory_iterator(test::golden_directory() / "adapters")) {
    std::vector<std::string> notes;
    const ModelSpec spec = read_hf_config(test::golden_directory() / "models" / base.path().filename(), notes);
    for (const auto& folder : fs::directory_iterator(base)) {
      SCOPED_TRACE(folder.path().string());
      ++adapters;
      const Json expected = Json::parse(test::read_file(folder.path() / "expected.json"));
      const auto adapter = open_adapter(folder.path(), spec, base.path().filename().string());
      std::map<std::string, std::pair<int, float>> got;
      for (const AdapterModule& module : adapter->spec().modules) {
        got[name_in_base(module.part, module.layer)] = {module.rank, module.scale};
      }
      std::map<std::string, std::pair<int, float>> want;
      for (const auto& [name, module] : expected["modules"].items()) {
        want[name] = {module["r"].get<int>(), module["scale"].get<float>()};
      }
      EXPECT_EQ(got, want);
      EXPECT_TRUE(reports(*adapter, "tensors used"));
    }
  }
  EXPECT_GE(adapters, 25);
}

/// What a slot holds, but for the types of its numbers.
std::multiset<std::tuple<int, int, int, std::int64_t, std::int64_t>> shapes_of(const AdapterSpec& spec) {
  std::multiset<std::tuple<int, int, int, std::int64_t, std::int64_t>> shapes;
  for (const AdapterTensor& tensor : spec.tensors)
    shapes.emplace(static_cast<int>(tensor.kind), static_cast<int>(tensor.part), tensor.layer, tensor.rows,
                   tensor.columns);
  return shapes;
}

TEST(GoldenAdapters, HoldWhatTheirConfigsSay) {
  int adapters = 0;
  for (const auto& base : fs::directory_iterator(test::golden_directory() / "adapters")) {
    std::vector<std::string> notes;
    const ModelSpec spec = read_hf_config(test::golden_directory() / "models" / base.path().filename(), notes);
    for (const auto& folder : fs::directory_iterator(base)) {
      SCOPED_TRACE(folder.path().string());
      ++adapters;
      const auto adapter = open_adapter(folder.path(), spec, base.path().filename().string());
      const AdapterSpec planned = read_adapter_config_only(folder.path(), spec);
      EXPECT_EQ(shapes_of(planned), shapes_of(adapter->spec()));
      EXPECT_GE(planned.bytes, adapter->spec().bytes);
      EXPECT_EQ(planned.largest_rank, adapter->spec().largest_rank);
    }
  }
  EXPECT_GE(adapters, 25);
}

// ---- slots ----

TEST(AdapterSlot, HoldsTheSevenProjectionsIn16Bit) {
  ModelSpec base = tiny();
  base.layers = 1;
  // A then B, each from a multiple of 64 bytes: [rank, in] and [out, rank] of 2 bytes at rank 32.
  const std::vector<std::pair<int, int>> shapes = {{8, 8}, {4, 8}, {4, 8}, {8, 8}, {12, 8}, {12, 8}, {8, 12}};
  std::size_t want = 0;
  for (const auto& [out, in] : shapes) want += static_cast<std::size_t>(32 * in * 2 + 32 * out * 2);
  EXPECT_EQ(slot_bytes_for_rank(base, 32), want);  // All of them multiples of 64 already.
  EXPECT_GT(slot_bytes_for_rank(base, 33), want);
  EXPECT_TRUE(fails_with(Code::invalid_argument, {"rank 0"}, [&] { slot_bytes_for_rank(base, 0); }));
}

TEST(Sha256, HasItsPublishedValues) {
  const auto hash = [](std::string_view text) {
    Sha256 made;
    made.add(std::as_bytes(std::span(text)));
    return made.hex();
  };
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  Sha256 parts;
  const std::string piece(1000, 'a');
  for (int i = 0; i < 1000; ++i) parts.add(std::as_bytes(std::span(piece)));
  EXPECT_EQ(parts.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace duet::loaders
