#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "duet/engine.h"
#include "loaders/loaders.h"
#include "loaders/packed_file.h"
#include "loaders/storage_choice.h"
#include "tests/support/test_data.h"

// What decision models are held in: who gets int8 unasked, and how far 16, 8 and 4 bits move probabilities.
namespace duet::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string golden_path(const std::string& name) { return (golden_directory() / name).string(); }

ModelOptions kev_on(const std::string& name, const std::string& base, const std::string& checkpoint = "qwen2") {
  return {
      .name = name, .path = base, .adapters = {{.name = "kev", .path = golden_path("kev/" + checkpoint + "/adapter")}}};
}

ModelOptions kev_model(const std::string& checkpoint) {
  if (checkpoint == "full") return {.name = "kev", .path = golden_path("kev/full/checkpoint")};
  return kev_on("kev", golden_path("kev/" + checkpoint + "/base"), checkpoint);
}

ModelOptions with(ModelOptions model, WeightType linear) {
  model.weights.linear = linear;
  return model;
}

Options options_of(std::vector<ModelOptions> models) {
  Options options;
  options.models = std::move(models);
  options.device = Device::host;
  options.threads = 1;
  options.kv_tokens = 1024;
  return options;
}

WeightType held_in(const ModelOptions& model) { return Engine::open(options_of({model})).weight_type(model.name); }

// ---- who gets int8 ----

TEST(KevWeights, AreInt8UnlessSomeoneChose) {
  for (const char* checkpoint : {"qwen2", "qwen3", "hybrid", "full"}) {
    SCOPED_TRACE(checkpoint);
    EXPECT_EQ(held_in(kev_model(checkpoint)), WeightType::int8);
    const WeightType stored = std::string(checkpoint) == "full" ? WeightType::f32 : WeightType::bf16;
    EXPECT_EQ(held_in(with(kev_model(checkpoint), WeightType::as_stored)), stored);
    for (const WeightType type : {WeightType::f16, WeightType::nf4, WeightType::fp4})
      EXPECT_EQ(held_in(with(kev_model(checkpoint), type)), type);
  }
}

TEST(KevWeights, OtherModelsStayAsTheyAreStored) {
  EXPECT_EQ(held_in({.name = "m", .path = golden_path("models/qwen2")}), WeightType::bf16);
  EXPECT_EQ(held_in({.name = "m", .path = golden_path("kev/qwen2/base")}), WeightType::bf16) << "no head, no Kev";
  EXPECT_EQ(held_in({.name = "m", .path = golden_path("laya/windowed")}), WeightType::f16);
  EXPECT_THROW(Engine::open(options_of({{.name = "m", .path = golden_path("models/qwen2")}})).weight_type("n"), Error);
}

TEST(KevWeights, WhatIsQuantisedIsNotQuantisedAgain) {
  const TemporaryDirectory folder;
  const std::string base = golden_path("kev/qwen2/base"), packed = (folder.path() / "base.duet").string();
  loaders::TextFiles texts;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    texts.emplace_back(name, *loaders::read_checkpoint_text(base, name));
  for (const auto& [type, held] : std::map<WeightType, WeightType>{{WeightType::nf4, WeightType::nf4},
                                                                   {WeightType::int8, WeightType::int8},
                                                                   {WeightType::f16, WeightType::int8}}) {
    loaders::write_packed_file(packed, *loaders::open_checkpoint(base, {.linear = type}), texts);
    EXPECT_EQ(held_in(kev_on("kev", packed)), held) << loaders::name_of(type);
  }
}

TEST(KevWeights, ABaseIsNotHeldTwiceForIt) {
  const std::string base = golden_path("kev/qwen2/base");
  const Options with_writer = options_of({kev_on("kev", base), {.name = "writer", .path = base}});
  const Engine shared = Engine::open(with_writer);
  EXPECT_EQ(shared.weight_type("kev"), WeightType::bf16);
  EXPECT_NE(shared.load_report().find("as stored, not in a Kev's int8, since 'writer' has the same base"),
            std::string::npos)
      << shared.load_report();
  EXPECT_NE(shared.plan_table().find("weights shared by 2 models"), std::string::npos) << shared.plan_table();

  const Engine two_kevs = Engine::open(options_of({kev_on("one", base), kev_on("two", base)}));
  EXPECT_EQ(two_kevs.weight_type("one"), WeightType::int8);
  EXPECT_EQ(two_kevs.weight_type("two"), WeightType::int8);
  EXPECT_NE(two_kevs.plan_table().find("weights shared by 2 models"), std::string::npos) << two_kevs.plan_table();
  EXPECT_NE(two_kevs.load_report().find("matrices in int8, a Kev's default"), std::string::npos);
}

TEST(KevWeights, ThePlanCountsThemBeforeWeightsAreThere) {
  const TemporaryDirectory folder;
  fs::copy_file(fs::path(golden_path("kev/qwen2/base")) / "config.json", folder.path() / "config.json");
  const std::string without = folder.path().string();
  EXPECT_NE(Engine::plan(options_of({kev_on("kev", without)})).find("int8/64"), std::string::npos);
  EXPECT_EQ(Engine::plan(options_of({{.name = "m", .path = without}})).find("int8/64"), std::string::npos);
  EXPECT_EQ(Engine::plan(options_of({with(kev_on("kev", without), WeightType::as_stored)})).find("int8/64"),
            std::string::npos);
}

// ---- how far probabilities move ----

struct Moved {
  double largest = 0, sum = 0;
  int probabilities = 0, questions = 0, other_answers = 0;
  double mean() const { return sum / std::max(probabilities, 1); }
};

using Probabilities = std::vector<std::vector<double>>;  // By question.

/// What `model` answers to the cases of a golden file; empty for a case that is refused.
std::vector<Probabilities> answers_of(const ModelOptions& model, const Json& golden) {
  Engine engine = Engine::open(options_of({model}));
  std::vector<Probabilities> all;
  for (const Json& one : golden["cases"]) {
    DecisionRequest request;
    request.model = model.name;
    request.json = Json{{"state", one["state"]}, {"questions", one["questions"]}}.dump();
    all.emplace_back();
    for (const DecisionAnswer& answer : engine.decide(request).answers) all.back().push_back(answer.probabilities);
  }
  return all;
}

std::size_t largest_of(const std::vector<double>& p) {
  return static_cast<std::size_t>(std::max_element(p.begin(), p.end()) - p.begin());
}

/// Adds how far `answers` are from the reference's, for questions that Duet reads as the reference does: whose answers
/// from the weights as stored are the reference's.
void add(const Json& golden, const std::vector<Probabilities>& stored, const std::vector<Probabilities>& answers,
         Moved& moved) {
  for (std::size_t c = 0; c < answers.size(); ++c) {
    for (std::size_t q = 0; q < answers[c].size(); ++q) {
      const auto want = golden["cases"][c]["rows"][q]["probabilities"].get<std::vector<double>>();
      const auto distance = [&](const std::vector<double>& p) {
        double most = 0;
        for (std::size_t i = 0; i < want.size(); ++i) most = std::max(most, std::abs(p.at(i) - want[i]));
        return most;
      };
      if (distance(stored[c][q]) > 2e-4) continue;
      const std::vector<double>& got = answers[c][q];
      moved.largest = std::max(moved.largest, distance(got));
      for (std::size_t i = 0; i < want.size(); ++i) moved.sum += std::abs(got[i] - want[i]);
      moved.probabilities += static_cast<int>(want.size());
      moved.questions += 1;
      moved.other_answers += largest_of(got) == largest_of(want) ? 0 : 1;
    }
  }
}

/// By type, over all checkpoints of a family; prints the table of docs/typed-decisions.md.
std::map<WeightType, Moved> measure(const std::string& family, const std::vector<std::string>& checkpoints) {
  const std::vector<WeightType> types = {WeightType::f16, WeightType::bf16, WeightType::int8, WeightType::nf4,
                                         WeightType::fp4};
  std::map<WeightType, Moved> all;
  for (const std::string& checkpoint : checkpoints) {
    const std::string path = golden_path(fmt::format("{}/{}", family, checkpoint));
    const ModelOptions model = family == "kev" ? kev_model(checkpoint) : ModelOptions{.name = "laya", .path = path};
    const Json golden = Json::parse(read_file(fs::path(path) / "golden.json"));
    const auto stored = answers_of(with(model, WeightType::as_stored), golden);
    for (const WeightType type : types) add(golden, stored, answers_of(with(model, type), golden), all[type]);
  }
  for (const WeightType type : types) {
    const Moved& moved = all[type];
    fmt::print("| {} | {} | {:.1e} | {:.1e} | {} of {} |\n", family, loaders::name_of(type), moved.largest,
               moved.mean(), moved.other_answers, moved.questions);
  }
  return all;
}

/// That 16 bits move no probability by 5e-3, and fewer bits more: how far is the checkpoints' own, tiny random ones.
void expect_fewer_bits_to_move_more(const std::map<WeightType, Moved>& moved, int questions) {
  for (const auto& [type, one] : moved) EXPECT_GE(one.questions, questions) << loaders::name_of(type);
  EXPECT_LT(moved.at(WeightType::f16).largest, 5e-3);
  const Moved &f16 = moved.at(WeightType::f16), &int8 = moved.at(WeightType::int8);
  for (const WeightType type : {WeightType::nf4, WeightType::fp4}) {
    const Moved& four_bit = moved.at(type);
    EXPECT_GT(four_bit.mean(), 4 * int8.mean()) << loaders::name_of(type);
    EXPECT_GT(four_bit.largest, int8.largest) << loaders::name_of(type);
  }
  EXPECT_GT(int8.mean(), f16.mean());
}

TEST(DecisionWeights, FewerBitsMoveAKevMore) {
  expect_fewer_bits_to_move_more(measure("kev", {"qwen2", "qwen3", "hybrid", "full"}), 180);
}

TEST(DecisionWeights, FewerBitsMoveALayaMore) {
  expect_fewer_bits_to_move_more(measure("laya", {"tiny", "windowed", "multi", "two_heads"}), 150);
}

}  // namespace
}  // namespace duet::test
