#include "engine/decision_rules.h"

#include <gtest/gtest.h>

#include <string>

#include "duet/error.h"
#include "engine/decision_answer.h"
#include "loaders/decision_rules_file.h"
#include "tests/support/test_data.h"

// Who is asked again, at which temperatures, and the file that says so.
namespace duet::test {
namespace {

DecisionRules rules_with(std::vector<DecisionTemperature> temperatures) {
  DecisionRules rules;
  rules.temperatures = std::move(temperatures);
  return rules;
}

TEST(DecisionRules, ATemperatureOfTheNumberOfOptionsWinsOverThatOfTheKind) {
  const DecisionRules rules = rules_with(
      {{"laya", "choice", 1.5}, {"laya", "choice:3-5", 2.5}, {"kev", "choice:11+", 3.5}, {"laya", "noul:2", 0.75}});
  const auto value = [&](const char* model, QuestionKind kind, std::size_t options) {
    const DecisionTemperature* found = fitted_temperature(rules, model, kind, options);
    return found == nullptr ? 0.0 : found->value;
  };
  EXPECT_EQ(value("laya", QuestionKind::choice, 2), 1.5);
  EXPECT_EQ(value("laya", QuestionKind::choice, 3), 2.5);
  EXPECT_EQ(value("laya", QuestionKind::choice, 5), 2.5);
  EXPECT_EQ(value("laya", QuestionKind::choice, 6), 1.5);
  EXPECT_EQ(value("kev", QuestionKind::choice, 10), 0.0) << "the checkpoint's own";
  EXPECT_EQ(value("kev", QuestionKind::choice, 255), 3.5);
  EXPECT_EQ(value("laya", QuestionKind::noul, 2), 0.75);
  EXPECT_EQ(value("laya", QuestionKind::score, 3), 0.0);
}

TEST(DecisionRules, AnAnswerBelowItsKindsThresholdEscalatesAndSaysWhy) {
  DecisionRules rules;
  rules.measure = "entropy";
  rules.threshold = {0.5, 0.25, 0};
  DecisionAnswer answer;
  answer.confidence = {.largest = 0.9, .entropy = 0.4999};
  EXPECT_TRUE(escalates(answer, rules));
  EXPECT_EQ(answer.reason, "entropy 0.4999 is below 0.5000") << "digits that tell them apart";
  answer.kind = QuestionKind::score;
  EXPECT_FALSE(escalates(answer, rules));
  EXPECT_EQ(answer.reason, "entropy 0.50");
  answer.kind = QuestionKind::noul;
  answer.confidence.entropy = 0;
  EXPECT_FALSE(escalates(answer, rules)) << "a threshold of 0 sends nothing on";
}

TEST(DecisionRules, PublishedIsWhatEachFamilysReferenceCallsConfidence) {
  const std::vector<double> p = {0.2, 0.7, 0.1};
  const Confidences all = confidences_of(p);
  const auto published = [&](const char* family, QuestionKind kind) {
    return decision_confidence(p, family, kind).published;
  };
  EXPECT_EQ(published("laya", QuestionKind::choice), all.entropy);
  EXPECT_EQ(published("laya", QuestionKind::noul), all.largest);
  EXPECT_EQ(published("kev", QuestionKind::choice), all.linear);
  EXPECT_EQ(published("kev", QuestionKind::score), all.spread);
}

TEST(DecisionRulesFile, WhatIsWrittenIsReadBackToTheLastBit) {
  DecisionRules rules = rules_with({{"quick", "choice", 1.0 / 3 + 1}, {"slow", "score:6-10", 0.1 + 0.6}});
  rules.fast = "quick";
  rules.deep = "slow";
  rules.measure = "spread";
  rules.threshold = {1.0 / 3, 1.01, 0};
  const DecisionRules read = loaders::parse_decision_rules(loaders::decision_rules_text(rules), "rules.json");
  EXPECT_EQ(read.fast, rules.fast);
  EXPECT_EQ(read.deep, rules.deep);
  EXPECT_EQ(read.measure, rules.measure);
  EXPECT_EQ(read.threshold, rules.threshold);
  ASSERT_EQ(read.temperatures.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read.temperatures[i].model, rules.temperatures[i].model);
    EXPECT_EQ(read.temperatures[i].questions, rules.temperatures[i].questions);
    EXPECT_EQ(read.temperatures[i].value, rules.temperatures[i].value);
  }
}

TEST(DecisionRulesFile, AbsentKeysKeepTheirDefaultsAndOneThresholdServesAll) {
  EXPECT_EQ(loaders::parse_decision_rules("{}", "r").threshold, DecisionRules().threshold);
  EXPECT_EQ(loaders::parse_decision_rules(R"({"threshold": 0.5})", "r").threshold,
            (std::array<double, 3>{0.5, 0.5, 0.5}));
  EXPECT_EQ(loaders::parse_decision_rules(R"({"threshold": {"score": 0.5}})", "r").threshold,
            (std::array<double, 3>{0.7, 0.5, 0.7}));
  const TemporaryDirectory folder;
  write_file(folder.path() / "rules.json", R"({"deep": ""})");
  EXPECT_EQ(read_decision_rules((folder.path() / "rules.json").string()).deep, "");
}

TEST(DecisionRulesFile, MistakesAreNamed) {
  struct Mistake {
    const char* text;
    const char* word;
  };
  for (const Mistake& mistake : std::initializer_list<Mistake>{
           {R"({"tresholds": 1})", "'threshold'"},
           {R"({"confidence": "min"})", "confidence"},
           {R"({"threshold": {"choise": 1}})", "threshold.choise"},
           {R"({"threshold": "0.5"})", "threshold"},
           {R"({"threshold": -1})", "-1"},
           {R"({"measure": "luck"})", "'luck'"},
           {R"({"fast": "kev"})", "both 'kev'"},
           {R"({"fast": ""})", "'fast'"},
           {R"({"temperatures": {"laya": 2}})", "temperatures.laya"},
           {R"({"temperatures": {"leya": {"choice": 2}}})", "temperatures.leya"},
           {R"({"temperatures": {"laya": {"choice:3": 2}}})", "choice:3"},
           {R"({"temperatures": {"laya": {"choice": 0.4}}})", "[0.5, 5]"},
           {R"({"temperatures": {"laya": {"choice": 5.1}}})", "[0.5, 5]"},
           {R"({"temperatures": {"laya": {"choice": 1, "choice": 2}}})", "choice"},
           {"[]", "rules.json"},
           {"", "rules.json"},
       }) {
    try {
      (void)loaders::parse_decision_rules(mistake.text, "rules.json");
      ADD_FAILURE() << mistake.text << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::bad_file) << mistake.text;
      EXPECT_NE(std::string(error.what()).find(mistake.word), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("rules.json"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace duet::test
