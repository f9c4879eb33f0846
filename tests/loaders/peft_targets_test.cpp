#include "loaders/peft_targets.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "loaders/peft_names.h"
#include "loaders/peft_regex.h"
#include "tests/loaders/expect_error.h"
#include "tests/support/test_data.h"

namespace duet::loaders {
namespace {

using test::fails_with;

/// The base of tests/golden/peft_targets.py.
ModelSpec twelve_layers() {
  ModelSpec spec;
  spec.architecture = "LlamaForCausalLM";
  spec.layers = 12;
  spec.hidden = 32;
  spec.query_heads = 2;
  spec.kv_heads = 1;
  spec.head_size = 16;
  spec.mlp = 48;
  spec.vocabulary = 64;
  spec.max_position_tokens = 2048;
  return spec;
}

std::vector<TargetedModule> resolve(const Json& config, std::vector<std::string>& report) {
  Json whole = config;
  whole["peft_type"] = "LORA";
  return resolve_targets(parse_peft_config(whole, "adapter_config.json", false, report), twelve_layers(), report);
}

bool is_at_or_below(const std::string& name, const std::string& module) {
  return name == module || name.starts_with(module + ".");
}

/// tests/golden/peft_targets.py wrote these by asking PEFT.
TEST(PeftTargets, AreThoseOfPeft) {
  const Json golden = Json::parse(test::read_file(test::golden_directory() / "peft_targets.json"));
  ASSERT_EQ(golden["cases"].size(), 34U);
  for (const Json& row : golden["cases"]) {
    SCOPED_TRACE(row["config"].dump());
    std::vector<std::string> report;
    if (row.contains("refused")) {
      EXPECT_THROW(resolve(row["config"], report), Error) << row["refused"];
      continue;
    }
    std::map<std::string, std::pair<int, double>> want;
    for (const auto& [name, value] : row["modules"].items()) want[name] = {value[0].get<int>(), value[1].get<double>()};
    std::map<std::string, std::pair<int, double>> got;
    for (const TargetedModule& module : resolve(row["config"], report)) {
      if (module.lora) got[module.base.name] = {module.rank, module.scale};
      bool saved = false;
      for (const std::string name : row["saved"]) saved = saved || is_at_or_below(module.base.name, name);
      EXPECT_EQ(module.saved, saved) << module.base.name;
    }
    EXPECT_EQ(got, want);
  }
}

TEST(PeftTargets, PatternsThatMatchNothingAreReported) {
  std::vector<std::string> report;
  resolve(Json::parse(
              R"({"target_modules":["q_proj"],"rank_pattern":{"nothing":3,"q_proj":4},"alpha_pattern":{"w_proj":1}})"),
          report);
  ASSERT_EQ(report.size(), 2U);
  EXPECT_NE(report[0].find("rank_pattern: 'nothing' matches no adapted module"), std::string::npos);
  EXPECT_NE(report[1].find("alpha_pattern: 'w_proj' matches no adapted module"), std::string::npos);
}

TEST(PeftTargets, TwoKeysForOneModuleTheFirstInTheFileCounts) {
  std::vector<std::string> report;
  const Json config = Json::parse(R"({"target_modules":["down_proj"],"lora_alpha":8,"r":4,
    "alpha_pattern":{"mlp.down_proj":12,"down_proj":40}})");
  for (const TargetedModule& module : resolve(config, report)) {
    if (module.lora) {
      EXPECT_EQ(module.scale, 3.0);
    }
  }
  EXPECT_TRUE(report.empty());
}

TEST(PeftTargets, MessagesNameTheNearestModule) {
  std::vector<std::string> report;
  EXPECT_TRUE(fails_with(Code::bad_file, {"adapter_config.json", "matches none", "did it mean 'q_proj'"},
                         [&] { resolve(Json::parse(R"({"target_modules":["q_poj"]})"), report); }));
  EXPECT_TRUE(fails_with(Code::unsupported, {"'model.layers.0.mlp'", "neither a linear layer"},
                         [&] { resolve(Json::parse(R"({"target_modules":["mlp"]})"), report); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"'model.layers.0.self_attn.q_proj' is both"}, [&] {
    resolve(Json::parse(R"({"target_modules":["q_proj"],"modules_to_save":["proj"]})"), report);
  }));
}

TEST(PeftTargets, HostileExpressionsEndQuickly) {
  std::vector<std::string> report;
  EXPECT_TRUE(fails_with(Code::bad_file, {"target_modules", "does not compile"},
                         [&] { resolve(Json::parse(R"({"target_modules":"(unclosed"})"), report); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"rank_pattern", "does not compile"}, [&] {
    resolve(Json::parse(R"({"target_modules":["q_proj"],"rank_pattern":{"[":4}})"), report);
  }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"target_modules", "matching", "failed"},
                         [&] { resolve(Json::parse(R"({"target_modules":"((\\w|\\.|\\w\\w)+)+[!?]"})"), report); }));
  Json deep;
  deep["target_modules"] = std::string(5000, '(') + std::string(5000, ')');
  EXPECT_TRUE(fails_with(Code::bad_file, {"does not compile"}, [&] { resolve(deep, report); }));
  deep["target_modules"] = std::string(100'000, 'a');
  EXPECT_TRUE(fails_with(Code::bad_file, {"100000 bytes"}, [&] { resolve(deep, report); }));
}

TEST(PeftRegex, MeansWhatPythonMeans) {
  const Pattern pattern("(?P<idx>\\d+)\\.a|b", "x");
  EXPECT_TRUE(pattern.matches_start("12.abc"));
  EXPECT_FALSE(pattern.matches_whole("12.abc"));
  EXPECT_TRUE(pattern.matches_whole("b"));
  EXPECT_FALSE(pattern.matches_start(" b"));
  EXPECT_EQ(pattern.group_idx("12.abc"), "12");
  EXPECT_EQ(pattern.group_idx("c"), std::nullopt);
}

TEST(PeftNames, TakeKeysApart) {
  const auto parse = [](std::string_view key) -> std::pair<std::string, int> {
    const auto parsed = parse_adapter_key(key);
    return parsed ? std::pair(parsed->module, static_cast<int>(parsed->leaf)) : std::pair(std::string(), -1);
  };
  const auto is = [](std::string module, AdapterLeaf leaf) {
    return std::pair(std::move(module), static_cast<int>(leaf));
  };
  const auto nothing = std::pair(std::string(), -1);
  EXPECT_EQ(parse("a.b.lora_A.weight"), is("a.b", AdapterLeaf::lora_a));
  EXPECT_EQ(parse("a.b.lora_A.default.weight"), is("a.b", AdapterLeaf::lora_a));
  EXPECT_EQ(parse("a.lora_B.weight"), is("a", AdapterLeaf::lora_b));
  EXPECT_EQ(parse("a.lora_B.bias"), is("a", AdapterLeaf::lora_bias));
  EXPECT_EQ(parse("a.lora_B.x.bias"), is("a", AdapterLeaf::lora_bias));
  EXPECT_EQ(parse("a.lora_embedding_A"), is("a", AdapterLeaf::embedding_a));
  EXPECT_EQ(parse("a.lora_embedding_B.default"), is("a", AdapterLeaf::embedding_b));
  EXPECT_EQ(parse("a.lora_magnitude_vector"), is("a", AdapterLeaf::magnitude));
  EXPECT_EQ(parse("a.lora_magnitude_vector.weight"), is("a", AdapterLeaf::magnitude));
  EXPECT_EQ(parse("a.lora_magnitude_vector.default.weight"), is("a", AdapterLeaf::magnitude));
  EXPECT_EQ(parse("lm_head.weight"), is("lm_head", AdapterLeaf::saved_weight));
  EXPECT_EQ(parse("a.modules_to_save.default.weight"), is("a", AdapterLeaf::saved_weight));
  EXPECT_EQ(parse("a.base_layer.bias"), is("a", AdapterLeaf::saved_bias));
  EXPECT_EQ(parse("a.base_layer.weight"), is("a", AdapterLeaf::base_layer_weight));
  for (const std::string_view key :
       {"", ".", "weight", "lora_A.weight", "a.lora_A", "a.lora_A.bias", "a.lora_A.x.y.weight", "a.b",
        "a.lora_embedding_A.weight", "a.lora_magnitude_vector.bias", "a.base_layer.x.weight"}) {
    EXPECT_EQ(parse(key), nothing) << key;
  }
}

TEST(PeftNames, StripPrefixes) {
  const std::string q = "model.layers.0.self_attn.q_proj";
  EXPECT_EQ(strip_prefix("base_model.model." + q, 0), q);
  EXPECT_EQ(strip_prefix(q, 0), std::nullopt);
  EXPECT_EQ(strip_prefix(q, 1), q);
  EXPECT_EQ(strip_prefix("base_model.model.base_model.model." + q, 2), q);
  EXPECT_EQ(strip_prefix("base_model.model.model.language_model.layers.0.self_attn.q_proj", 3), q);
  EXPECT_EQ(strip_prefix("base_model.model.language_model." + q, 3), q);
  EXPECT_EQ(strip_prefix("base_model.model.lm_head", 3), "lm_head");
  EXPECT_EQ(strip_prefix("base_model.model.language_model.lm_head", 3), "lm_head");
  EXPECT_EQ(strip_prefix("base_model.model." + q, 3), std::nullopt);
}

}  // namespace
}  // namespace duet::loaders
