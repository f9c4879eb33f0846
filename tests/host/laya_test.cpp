#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "duet/error.h"
#include "engine/backend.h"
#include "engine/decision_answer.h"
#include "engine/laya_rows.h"
#include "loaders/decision_json.h"
#include "loaders/laya_config.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer_json.h"
#include "tests/support/compare.h"
#include "tests/support/test_data.h"
#include "tests/tokenizers/tokenizer_support.h"

// Tiny Laya checkpoints in the published layout against transformers' ModernBERT and torch (tests/golden/laya.py):
// rows, logits and answers.
namespace duet::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A checkpoint opened on the host, as the engine opens it.
class Laya {
 public:
  explicit Laya(const std::string& name, const WeightOptions& weights = {})
      : folder_(golden_directory() / "laya" / name), source_(loaders::open_checkpoint(folder_, weights)) {
    tokenizer_ = loaders::load_tokenizer(folder_);
    tokens_ = loaders::laya_tokens(*tokenizer_, *loaders::read_checkpoint_text(folder_, "tokenizer_config.json"), "t");
    settings_ = loaders::parse_laya_settings(*loaders::read_checkpoint_text(folder_, "rl_agent_config.json"), "a");
    PlanRequest request;
    request.models = {{.name = "laya",
                       .base_identity = source_->identity(),
                       .base_path = name,
                       .spec = source_->spec(),
                       .tensors = source_->tensors()}};
    request.backend = host_facts();
    request.budget = std::uint64_t{1} << 30;
    plan_ = make_plan(request);
    backend_ = make_host_backend(plan_, {.threads = 2});
    backend_->load_weights(0, *source_, {});
  }

  Json golden() const { return Json::parse(read_file(folder_ / "golden.json")); }
  const ModelSpec& spec() const { return source_->spec(); }
  const WeightSource& source() const { return *source_; }
  const loaders::LayaSettings& settings() const { return settings_; }

  LayaRow row_of(const Question& question, const JsonValue& state) const {
    const std::vector<std::int32_t> ids = laya_state_ids(*tokenizer_, tokens_, state);
    return laya_row(*tokenizer_, tokens_, settings_.budget, question, ids, state.kind == JsonValue::Kind::array);
  }

  struct Result {
    std::vector<float> options, act, encoded;
  };
  std::vector<Result> encode(const std::vector<LayaRow>& rows, const std::vector<Question>& questions) {
    std::vector<Result> results(rows.size());
    std::vector<EncoderRow> steps;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto quiet = std::numeric_limits<float>::quiet_NaN();
      results[i].options.assign(rows[i].markers.size(), quiet);
      results[i].act.assign(static_cast<std::size_t>(spec().act_outputs), quiet);
      results[i].encoded.assign(rows[i].ids.size() * static_cast<std::size_t>(spec().hidden), quiet);
      steps.push_back({.tokens = rows[i].ids,
                       .markers = rows[i].markers,
                       .question_kind = static_cast<int>(questions[i].kind),
                       .option_logits = results[i].options.data(),
                       .act_logits = results[i].act.data(),
                       .encoded = results[i].encoded.data()});
    }
    std::vector<StepOutcome> outcomes(rows.size());
    backend_->encode(0, steps, outcomes);
    for (const StepOutcome& outcome : outcomes) EXPECT_TRUE(outcome.finite);
    return results;
  }

 private:
  fs::path folder_;
  std::shared_ptr<const WeightSource> source_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  LayaTokens tokens_;
  loaders::LayaSettings settings_;
  Plan plan_;
  std::unique_ptr<Backend> backend_;
};

DecisionProblem problem_of(const Json& golden_case) {
  Json questions = golden_case["questions"];
  for (auto& [name, question] : questions.items()) {  // The reference takes a doubled label once; Duet refuses it.
    if (question["type"] != "choice" || !question["criteria"].is_array()) continue;
    Json labels = Json::array();
    for (const Json& label : question["criteria"])
      if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
    question["criteria"] = labels;
  }
  return loaders::parse_decision_problem(Json{{"state", golden_case["state"]}, {"questions", questions}}.dump(),
                                         "golden");
}

/// The reference lets special tokens but the mask through where a caller spells them; Duet keeps them text.
bool spells_a_special_token(const Json& golden_case, const Question& question) {
  const std::string text = golden_case["state"].dump() + golden_case["questions"][question.name].dump();
  for (const char* special : {"[SEP]", "[CLS]", "[PAD]", "<eos>", "<bos>", "<|endoftext|>"})
    if (text.find(special) != std::string::npos) return true;
  return false;
}

class LayaGolden : public testing::TestWithParam<const char*> {};

TEST_P(LayaGolden, RowsLogitsAndAnswersAreTheReferences) {
  Laya laya(GetParam());
  const Json golden = laya.golden();
  for (const Json& golden_case : golden["cases"]) {
    SCOPED_TRACE(golden_case["name"].get<std::string>());
    const DecisionProblem problem = problem_of(golden_case);
    ASSERT_EQ(problem.questions.size(), golden_case["rows"].size());
    if (problem.questions.empty()) continue;
    std::vector<LayaRow> rows;
    for (const Question& question : problem.questions) rows.push_back(laya.row_of(question, problem.state));
    const std::vector<Laya::Result> results = laya.encode(rows, problem.questions);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Json& want = golden_case["rows"][i];
      SCOPED_TRACE(problem.questions[i].name);
      if (spells_a_special_token(golden_case, problem.questions[i])) {
        EXPECT_NE(rows[i].ids, want["ids"].get<std::vector<std::int32_t>>());
        continue;
      }
      EXPECT_EQ(rows[i].ids, want["ids"].get<std::vector<std::int32_t>>());
      EXPECT_EQ(rows[i].markers, want["markers"].get<std::vector<std::int32_t>>());
      EXPECT_EQ(rows[i].state_tokens_kept < rows[i].state_tokens, want["truncated"].get<bool>());
      // float32 noise of the reference itself is 1.3e-4 (tests/golden/README.md).
      const auto logits = want["logits"].get<std::vector<float>>();
      ASSERT_EQ(results[i].options.size(), logits.size());
      for (std::size_t k = 0; k < logits.size(); ++k) EXPECT_NEAR(results[i].options[k], logits[k], 4e-4);
      const auto act = want["act_logits"].get<std::vector<float>>();
      for (std::size_t k = 0; k < act.size(); ++k) EXPECT_NEAR(results[i].act[k], act[k], 4e-4);

      const double temperature = laya.settings().calibration.of(problem.questions[i].kind, logits.size());
      EXPECT_DOUBLE_EQ(temperature, want["temperature"].get<double>());
      const std::vector<double> p = option_probabilities(logits, temperature, "golden");
      const auto probabilities = want["probabilities"].get<std::vector<double>>();
      for (std::size_t k = 0; k < p.size(); ++k) EXPECT_NEAR(p[k], probabilities[k], 1e-6);
    }
    if (golden_case.contains("encoder")) {
      const auto encoder = golden_case["encoder"].get<std::vector<float>>();
      EXPECT_TRUE(all_within_relative(results[0].encoded, encoder, 2e-5));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, LayaGolden, testing::Values("tiny", "windowed", "multi", "two_heads"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(Laya, TogetherIsAlone) {
  Laya laya("windowed");
  const DecisionProblem problem = problem_of(laya.golden()["cases"][0]);
  std::vector<LayaRow> rows;
  for (const Question& question : problem.questions) rows.push_back(laya.row_of(question, problem.state));
  const std::vector<Laya::Result> together = laya.encode(rows, problem.questions);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(same_bits(laya.encode({rows[i]}, {problem.questions[i]})[0].options, together[i].options));
  }
}

/// Eight-bit encoders stay near (random weights forgive little), and the head is never quantised.
TEST(Laya, QuantisedEncodersKeepTheirDecisionHead) {
  Laya exact("windowed"), blocks("windowed", {.linear = WeightType::int8, .block_size = 32});
  for (const WeightTensor& tensor : blocks.source().tensors()) {
    EXPECT_EQ(tensor.storage.storage == Storage::int8, tensor.row.role == TensorRole::linear) << tensor.row.name;
  }
  const DecisionProblem problem = problem_of(exact.golden()["cases"][0]);
  for (const Question& question : problem.questions) {
    const LayaRow row = exact.row_of(question, problem.state);
    const std::vector<double> want = option_probabilities(exact.encode({row}, {question})[0].options, 1, "exact");
    const std::vector<double> got = option_probabilities(blocks.encode({row}, {question})[0].options, 1, "blocks");
    for (std::size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 0.2);
    EXPECT_NE(got, want);
  }
}

TEST(Laya, RowsOfTheRealTokenizerAreTheReferences) {
  DUET_SHARED_TOKENIZER_OR_SKIP(tokenizer, "modernbert");
  const LayaTokens tokens{.start = 50281, .separator = 50282, .padding = 50283, .mask = 50284, .mask_text = "[MASK]"};
  const Json golden = Json::parse(read_file(golden_directory() / "laya" / "english_rows.json"));
  const LayaBudget budget{golden["max_len"].get<int>(), golden["head_max_len"].get<int>()};
  for (const Json& request : golden["requests"]) {
    const DecisionProblem problem = problem_of(request);
    const std::vector<std::int32_t> state = laya_state_ids(*tokenizer, tokens, problem.state);
    for (std::size_t i = 0; i < problem.questions.size(); ++i) {
      if (spells_a_special_token(request, problem.questions[i])) continue;
      const LayaRow row = laya_row(*tokenizer, tokens, budget, problem.questions[i], state,
                                   problem.state.kind == JsonValue::Kind::array);
      EXPECT_EQ(row.ids, request["rows"][i]["ids"].get<std::vector<std::int32_t>>()) << request["name"];
      EXPECT_EQ(row.markers, request["rows"][i]["markers"].get<std::vector<std::int32_t>>()) << request["name"];
    }
  }
}

/// What a caller writes never becomes a marker (cases O-22): the number of markers is that of the options.
TEST(Laya, SpecialTokensInTextStayText) {
  const Laya laya("tiny");
  for (const std::string text : {"[MASK]", "[SEP]", "[CLS] [MASK][MASK]", "a [PAD] b"}) {
    const JsonValue state = json_string("before " + text + " after");
    const Question question{.name = "q",
                            .kind = QuestionKind::choice,
                            .instructions = json_string("Which " + text + "?"),
                            .options = {{"one " + text, json_string(text)}, {"two", {}}}};
    const LayaRow row = laya.row_of(question, state);
    EXPECT_EQ(row.markers.size(), 2U);
    const Json special = laya.golden()["cases"][0]["rows"][0];
    const std::int32_t mask = special["ids"][special["markers"][0].get<std::size_t>()].get<std::int32_t>();
    const std::int32_t separator = special["ids"].back().get<std::int32_t>();
    EXPECT_EQ(std::count(row.ids.begin(), row.ids.end(), mask), 2) << text;
    EXPECT_EQ(std::count(row.ids.begin(), row.ids.end(), separator), 3) << text;
    EXPECT_EQ(std::count(row.ids.begin(), row.ids.end(), row.ids[0]), 1) << text;
  }
}

TEST(Laya, OptionsThatDoNotFitAreRefusedByName) {
  const Laya laya("tiny");
  Question question{.name = "many", .kind = QuestionKind::choice, .instructions = json_string("Which?"), .options = {}};
  for (int i = 0; i < 40; ++i) question.options.push_back({"a long label " + std::to_string(i), {}});
  try {
    (void)laya.row_of(question, json_string("x"));
    FAIL() << "40 options in a row of 64 tokens";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::no_room);
    EXPECT_NE(std::string(error.what()).find("'many'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace duet::test
