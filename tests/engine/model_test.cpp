#include "engine/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/loaders/expect_error.h"
#include "tests/support/compare.h"
#include "tests/support/test_data.h"

namespace duet {
namespace {

using test::fails_with;

/// The fixture "tiny" of the open cases.
ModelSpec tiny() {
  ModelSpec spec;
  spec.architecture = "LlamaForCausalLM";
  spec.layers = 2;
  spec.hidden = 64;
  spec.query_heads = 4;
  spec.kv_heads = 2;
  spec.head_size = 16;
  spec.mlp = 128;
  spec.vocabulary = 320;
  spec.max_position_tokens = 512;
  return spec;
}

template <typename Change>
testing::AssertionResult refuses(std::string_view part, Change change) {
  ModelSpec spec = tiny();
  change(spec);
  return fails_with(Code::bad_file, {"config.json: ", part}, [&] { check(spec, "config.json"); });
}

TEST(ModelSpec, TinyIsFine) { EXPECT_NO_THROW(check(tiny(), "config.json")); }

TEST(ModelSpec, AbsurdNumbersAreRefusedByName) {
  EXPECT_TRUE(refuses("layers is 0", [](ModelSpec& s) { s.layers = 0; }));
  EXPECT_TRUE(refuses("hidden size is -64", [](ModelSpec& s) { s.hidden = -64; }));
  EXPECT_TRUE(refuses("vocabulary size is 2147483647", [](ModelSpec& s) { s.vocabulary = INT32_MAX; }));
  EXPECT_TRUE(refuses("query heads is 2147483647", [](ModelSpec& s) { s.query_heads = INT32_MAX; }));
  EXPECT_TRUE(refuses("query heads times head size",
                      [](ModelSpec& s) { s.query_heads = 65536, s.kv_heads = 1, s.head_size = 4096; }));
  EXPECT_TRUE(refuses("head size 15 is odd", [](ModelSpec& s) { s.head_size = 15; }));
  EXPECT_TRUE(refuses("4 query heads cannot be shared by 3", [](ModelSpec& s) { s.kv_heads = 3; }));
  EXPECT_TRUE(refuses("rms_norm_eps", [](ModelSpec& s) { s.norm_epsilon = 0; }));
  EXPECT_TRUE(refuses("rope theta", [](ModelSpec& s) { s.rope.theta = std::nan(""); }));
  EXPECT_TRUE(refuses("rope factor", [](ModelSpec& s) { s.rope = {.kind = RopeKind::linear, .factor = 0}; }));
  EXPECT_TRUE(refuses("low_freq_factor 4", [](ModelSpec& s) {
    s.rope = {.kind = RopeKind::llama3,
              .factor = 2,
              .low_frequency_factor = 4,
              .high_frequency_factor = 4,
              .original_max_position_tokens = 8};
  }));
  EXPECT_TRUE(refuses("original_max_position", [](ModelSpec& s) { s.rope = {.kind = RopeKind::yarn, .factor = 2}; }));
  EXPECT_TRUE(refuses("0 layers are marked", [](ModelSpec& s) { s.sliding_window_tokens = 8; }));
  EXPECT_TRUE(refuses("end id is 320", [](ModelSpec& s) { s.end_ids = {320}; }));
  EXPECT_TRUE(refuses("begin id is -2", [](ModelSpec& s) { s.begin_id = -2; }));
}

TEST(ModelSpec, KvBytesUseTheHeadSize) {
  ModelSpec spec = tiny();
  EXPECT_EQ(kv_bytes_per_token(spec, KvStorage::f16), 2 * 2 * 2 * 16 * 2);
  spec.head_size = 32;  // Not hidden / heads.
  EXPECT_EQ(kv_bytes_per_token(spec, KvStorage::bf16), 2 * 2 * 2 * 32 * 2);
  EXPECT_EQ(kv_bytes_per_token(spec, KvStorage::f32), 2 * 2 * 2 * 32 * 4);
  EXPECT_EQ(kv_bytes_per_token(spec, KvStorage::int8), 2 * 2 * 2 * (32 + 4));
}

TEST(ModelSpec, ListsTensorsOnceInTheDocumentedOrder) {
  ModelSpec spec = tiny();
  spec.head_size = 32;
  spec.query_key_value_bias = spec.output_bias = spec.mlp_bias = spec.query_key_norm = true;
  const std::vector<TensorRow> rows = tensors_of(spec);
  ASSERT_EQ(rows.size(), 1U + 2 * (9 + 7 + 2) + 2U);
  EXPECT_EQ(rows.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(rows[rows.size() - 2].name, "model.norm.weight");
  EXPECT_EQ(rows.back().name, "lm_head.weight");
  for (std::size_t i = 2; i + 2 < rows.size(); ++i) {
    EXPECT_TRUE(rows[i - 1].layer < rows[i].layer ||
                (rows[i - 1].layer == rows[i].layer && rows[i - 1].part < rows[i].part));
  }
  const auto row = [&](std::string_view name) {
    for (const TensorRow& candidate : rows) {
      if (candidate.name == name) return std::pair(candidate.rows, candidate.columns);
    }
    return std::pair(std::int64_t{-1}, std::int64_t{-1});
  };
  using Shape = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(row("model.layers.1.self_attn.q_proj.weight"), Shape(128, 64));
  EXPECT_EQ(row("model.layers.1.self_attn.k_proj.weight"), Shape(64, 64));
  EXPECT_EQ(row("model.layers.1.self_attn.o_proj.weight"), Shape(64, 128));
  EXPECT_EQ(row("model.layers.0.mlp.down_proj.weight"), Shape(64, 128));
  EXPECT_EQ(row("model.layers.0.self_attn.v_proj.bias"), Shape(1, 64));
  EXPECT_EQ(row("model.layers.0.self_attn.q_norm.weight"), Shape(1, 32));
  EXPECT_EQ(row("model.layers.0.mlp.gate_proj.bias"), Shape(1, 128));
  spec.tied_head = true;
  EXPECT_EQ(tensors_of(spec).size(), rows.size() - 1);
}

// ---- rotary frequencies ----

TEST(InverseFrequencies, HaveTheirClosedForm) {
  EXPECT_FLOAT_EQ(inverse_frequencies({.theta = 1e6}, 128)[16], 0.0316227766F);
  EXPECT_FLOAT_EQ(inverse_frequencies({.theta = 1e4}, 128)[16], 0.1F);
  EXPECT_FLOAT_EQ(inverse_frequencies({.kind = RopeKind::linear, .theta = 1e4, .factor = 8}, 128)[0], 0.125F);
}

/// tests/golden/rope_frequencies.py wrote these with transformers.
TEST(InverseFrequencies, AreThoseOfTheReference) {
  const auto golden = nlohmann::json::parse(test::read_file(test::golden_directory() / "rope_frequencies.json"));
  ASSERT_EQ(golden["cases"].size(), 7U);
  for (const auto& [name, row] : golden["cases"].items()) {
    const auto& parameters = row["rope_parameters"];
    RopeSpec rope{.theta = parameters["rope_theta"],
                  .factor = parameters.value("factor", 1.0),
                  .low_frequency_factor = parameters.value("low_freq_factor", 1.0),
                  .high_frequency_factor = parameters.value("high_freq_factor", 4.0),
                  .original_max_position_tokens = parameters.value("original_max_position_embeddings", 0.0),
                  .beta_fast = parameters.value("beta_fast", 32.0),
                  .beta_slow = parameters.value("beta_slow", 1.0),
                  .truncate = parameters.value("truncate", true)};
    const std::string type = parameters["rope_type"];
    if (type == "linear") rope.kind = RopeKind::linear;
    if (type == "llama3") rope.kind = RopeKind::llama3;
    if (type == "yarn") rope.kind = RopeKind::yarn;
    const std::vector<float> want = row["inverse_frequencies"];
    std::vector<double> bounds;  // Two units in the last place: torch's float32 power is not correctly rounded.
    for (const float value : want) bounds.push_back(std::abs(static_cast<double>(value)) * 2.4e-7);
    EXPECT_TRUE(test::all_within(inverse_frequencies(rope, row["head_size"]), want, bounds)) << name;
  }
}

}  // namespace
}  // namespace duet
