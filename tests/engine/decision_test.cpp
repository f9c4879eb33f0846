#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "duet/error.h"
#include "engine/decision_answer.h"
#include "engine/decision_text.h"
#include "loaders/decision_json.h"
#include "loaders/json_value.h"
#include "tests/support/test_data.h"

// Typed questions: what is read of a request, how values become text, and what is made of logits.
namespace duet::test {
namespace {

using Json = nlohmann::ordered_json;

Code code_of(const std::function<void()>& work, std::string* message = nullptr) {
  try {
    work();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return Code::ok;
}

// ---- texts ----

TEST(DecisionText, JsonIsWhatPythonDumps) {  // O-23
  for (const Json& pair : Json::parse(read_file(golden_directory() / "laya" / "json_texts.json"))) {
    const auto json = pair["json"].get<std::string>();
    JsonValue value;
    std::string message;
    if (code_of([&] { value = loaders::parse_json_value(json, "request"); }, &message) == Code::ok) {
      EXPECT_EQ(python_json(value), pair["text"].get<std::string>()) << json;
    } else {  // Python takes the last of two equal keys; here both are refused.
      EXPECT_NE(message.find("twice"), std::string::npos) << json << ": " << message;
    }
  }
}

TEST(DecisionText, FloatsAreWhatPythonPrints) {
  const std::vector<std::pair<double, const char*>> all = {
      {0.0, "0.0"},      {-0.0, "-0.0"},      {1.0, "1.0"},     {100.0, "100.0"},   {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},   {1.5e16, "1.5e+16"}, {1e-4, "0.0001"}, {1e-5, "1e-05"},    {2.5e-7, "2.5e-07"},
      {1e100, "1e+100"}, {5e-324, "5e-324"},  {0.1, "0.1"},     {-12.25, "-12.25"}, {123456789.125, "123456789.125"},
  };
  for (const auto& [value, text] : all) EXPECT_EQ(python_float(value), text);
}

TEST(DecisionText, ADoubledKeyAnEndlessNumberAndInfinityAreRefused) {
  EXPECT_EQ(code_of([] { (void)loaders::parse_json_value(R"({"a": 1, "a": 2})", "r"); }), Code::bad_file);
  EXPECT_EQ(code_of([] { (void)loaders::parse_json_value(std::string(310, '9'), "r"); }), Code::bad_file);
  EXPECT_EQ(loaders::parse_json_value(std::string(308, '9'), "r").text, std::string(308, '9'));
  EXPECT_EQ(code_of([] { (void)loaders::parse_json_value("1e999", "r"); }), Code::bad_file);
}

// ---- requests ----

std::string message_of(const std::string& questions) {
  std::string message;
  const std::string json = R"({"state": "x", "questions": )" + questions + "}";
  EXPECT_EQ(code_of([&] { (void)loaders::parse_decision_problem(json, "request"); }, &message), Code::bad_file) << json;
  return message;
}

TEST(DecisionRequest, KeepsTheOrderOfQuestionsAndOptions) {  // O-23
  const DecisionProblem problem = loaders::parse_decision_problem(
      R"({"questions": {"z": {"type": "choice", "criteria": {"zebra": null, "apple": "red", "mango": 0}},
                        "a": {"type": "noul", "instructions": "?", "criteria": {"true": "T", "false": "F"}}},
          "state": {"b": 1, "a": 2}, "model": "any"})",
      "request");
  ASSERT_EQ(problem.questions.size(), 2U);
  EXPECT_EQ(problem.questions[0].name, "z");
  EXPECT_EQ(problem.questions[0].options[0].label, "zebra");
  EXPECT_EQ(problem.questions[0].options[2].label, "mango");
  EXPECT_EQ(problem.questions[1].options[0].description.text, "F");
  EXPECT_EQ(python_json(problem.state), R"({"b": 1, "a": 2})");
}

TEST(DecisionRequest, BadQuestionsAreRefusedByName) {
  const std::vector<std::pair<const char*, const char*>> all = {
      {R"({"q": 1})", "'q' is no object"},
      {R"({"q": {}})", "has no type"},
      {R"({"q": {"type": "Choice"}})", "has no type"},
      {R"({"q": {"type": "choice"}})", "has no criteria"},
      {R"({"q": {"type": "choice", "criteria": {}}})", "has 0 options"},
      {R"({"q": {"type": "choice", "criteria": ["a", "a"]}})", "'a' twice"},
      {R"({"q": {"type": "choice", "criteria": [["a"]]}})", "no text"},
      {R"({"q": {"type": "score", "criteria": {"0": "a"}}})", "has no criteria"},
      {R"({"q": {"type": "noul", "criteria": {"yes": "a"}}})", "'yes'"},
      {R"({"q": {"type": "noul", "labels": {"false": " ", "true": "b"}}})", "empty or equal"},
      {R"({"q": {"type": "score", "criteria": ["a"], "labels": {"false": "a", "true": "b"}}})", "has labels"},
      {R"({"q": {"type": "choice", "critera": ["a"]}})", "'critera'"},
      {R"([])", "has no questions"},
  };
  for (const auto& [questions, words] : all) {
    const std::string message = message_of(questions);
    EXPECT_NE(message.find(words), std::string::npos) << questions << ": " << message;
  }
}

TEST(DecisionRequest, OneOptionAndAsManyAsThereMayBe) {  // O-35
  for (const int count : {1, 2, 255, 256}) {
    Json criteria = Json::object();
    for (int i = 0; i < count; ++i) criteria["option " + std::to_string(i)] = nullptr;
    const std::string json =
        Json{{"state", ""}, {"questions", {{"q", {{"type", "choice"}, {"criteria", criteria}}}}}}.dump();
    EXPECT_EQ(code_of([&] { (void)loaders::parse_decision_problem(json, "r"); }),
              count <= 255 ? Code::ok : Code::bad_file)
        << count;
  }
}

// ---- answers ----

TEST(DecisionAnswer, ProbabilitiesAddUpAndTheChoiceIsTheFirstLargest) {  // O-34
  std::vector<std::vector<float>> all = {{0.0F}, {3.0F, 3.0F}, std::vector<float>(255, 1.5F), {-1e30F, 0.0F, 1e30F}};
  std::vector<float> nearly_one(255, 0.0F);
  nearly_one[7] = 26.26F;
  all.push_back(nearly_one);
  for (const std::vector<float>& logits : all) {
    const std::vector<double> p = option_probabilities(logits, 1.0, "q");
    double sum = 0;
    for (const double value : p) {
      EXPECT_GE(value, 0.0);
      EXPECT_LE(value, 1.0);
      sum += value;
    }
    EXPECT_NEAR(sum, 1.0, 1e-12);
    for (std::size_t i = 0; i < p.size(); ++i) EXPECT_LE(p[i], p[most_probable(p)]);
    for (std::size_t i = 0; i < most_probable(p); ++i) EXPECT_LT(p[i], p[most_probable(p)]);
    const Confidences sure = confidences_of(p);
    for (const double value : {sure.largest, sure.entropy, sure.linear, sure.spread}) {
      EXPECT_GE(value, 0.0);
      EXPECT_LE(value, 1.0);
    }
  }
}

TEST(DecisionAnswer, OneOptionIsCertain) {  // O-35
  const std::vector<double> p = option_probabilities(std::vector<float>{-3.0F}, 0.5, "q");
  EXPECT_EQ(p, std::vector<double>{1.0});
  const Confidences sure = confidences_of(p);
  EXPECT_EQ(sure.largest, 1.0);
  EXPECT_EQ(sure.entropy, 1.0);
  EXPECT_EQ(sure.linear, 1.0);
  EXPECT_EQ(sure.spread, 1.0);
  EXPECT_EQ(mean_level(p), 0.0);
}

TEST(DecisionAnswer, NothingNonFiniteComesOut) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY})
    EXPECT_EQ(code_of([&] {
                (void)option_probabilities(std::vector<float>{0.0F, bad}, 1, "question 'q'");
              }),
              Code::non_finite);
}

/// Published answers of the English checkpoint (its logits, temperatures and rounded numbers: spec/laya.md, 11.1).
TEST(DecisionAnswer, PublishedLogitsOfLayaGiveItsPublishedNumbers) {
  LayaCalibration english;
  english.temperature = {1.6369030475616455, 1.2514300346374512, 1.983399510383606};
  english.by_options = {{"choice:2", 1.9063563346862793},    {"choice:3-5", 1.7601518630981445},
                        {"choice:6-10", 1.0000158548355103}, {"choice:11+", 0.10058280825614929},
                        {"score:3-5", 1.2514300346374512},   {"noul:2", 1.983399510383606}};
  EXPECT_EQ(english.of(QuestionKind::choice, 12), 0.5) << "clamped";
  EXPECT_EQ(english.of(QuestionKind::score, 7), 1.2514300346374512) << "no bucket of its own";
  const auto p = [&](QuestionKind kind, const std::vector<float>& logits) {
    return option_probabilities(logits, english.of(kind, logits.size()), "q");
  };
  const auto rounded = [](const std::vector<double>& values) {
    std::vector<double> all;
    for (const double value : values) all.push_back(four_decimals(value));
    return all;
  };
  const auto team = p(QuestionKind::choice, {4.183401F, -3.132068F, -2.234679F, -1.888359F});
  EXPECT_EQ(rounded(team), (std::vector<double>{.9315, .0146, .0243, .0296}));
  EXPECT_EQ(four_decimals(confidences_of(team).entropy), .7675);
  const auto urgency = p(QuestionKind::score, {-0.309124F, 2.590708F, 3.001457F});
  EXPECT_EQ(rounded(urgency), (std::vector<double>{.0396, .4021, .5583}));
  EXPECT_EQ(four_decimals(mean_level(urgency)), 1.5187);
  EXPECT_EQ(four_decimals(confidences_of(urgency).entropy), .2539);
  const auto spam = p(QuestionKind::noul, {4.526217F, -0.158604F});
  EXPECT_EQ(four_decimals(spam[1]), .0861);
  EXPECT_EQ(four_decimals(confidences_of(spam).largest), .9139);
}

/// Published answers of Kev from its published probabilities (spec/kev.md, 6.2).
TEST(DecisionAnswer, PublishedProbabilitiesOfKevGiveItsPublishedConfidences) {
  EXPECT_EQ(four_decimals(confidences_of(std::vector<double>{0.44154766, 0.42140001, 0.13705231}).linear), 0.1623);
  const std::vector<double> frustration = {0.00119425, 0.82501411, 0.17379166};
  EXPECT_EQ(four_decimals(mean_level(frustration)), 1.1726);
  EXPECT_EQ(four_decimals(confidences_of(frustration).spread), 0.7375);
  const std::vector<double> stars = {0.18595962, 0.73703033, 0.04124181, 0.01205528, 0.02371289};
  EXPECT_EQ(four_decimals(mean_level(stars)), 0.9505);
  EXPECT_EQ(four_decimals(confidences_of(stars).spread), 0.7313);
}

}  // namespace
}  // namespace duet::test
