#include "engine/router.h"

#include <gtest/gtest.h>

#include <cmath>

#include "loaders/router_rules.h"
#include "tests/support/test_data.h"

namespace duet {
namespace {

Answer answer_of(const std::vector<double>& probabilities, std::string text = "billing, high") {
  Answer answer;
  answer.text = std::move(text);
  answer.model = "laya";
  for (const double p : probabilities) answer.tokens.push_back({.id = 1, .logprob = static_cast<float>(std::log(p))});
  return answer;
}

TEST(Router, ConfidenceIsTheNamedMeasure) {
  const Answer answer = answer_of({0.5, 0.25, 1.0});
  EXPECT_NEAR(confidence_of(answer, Confidence::mean), std::cbrt(0.125), 1e-6);
  EXPECT_NEAR(confidence_of(answer, Confidence::min), 0.25, 1e-6);
  EXPECT_NEAR(confidence_of(answer, Confidence::first), 0.5, 1e-6);
  EXPECT_EQ(confidence_of(answer_of({}), Confidence::mean), 0);
  EXPECT_EQ(confidence_named("mean"), Confidence::mean);
  EXPECT_EQ(confidence_named("min"), Confidence::min);
  EXPECT_EQ(confidence_named("first"), Confidence::first);
  EXPECT_FALSE(confidence_named("Mean"));
}

TEST(Router, HedgeWordsMatchWholeEnglishWordsInAnyCase) {
  const std::vector<std::string> words = {"maybe", "not sure", "don't know"};
  EXPECT_EQ(find_hedge_word("Well, MAYBE.", words), "maybe");
  EXPECT_EQ(find_hedge_word("I am Not\n  sure", words), "not sure");
  EXPECT_EQ(find_hedge_word("I don\u2019t know", words), "don't know");
  EXPECT_EQ(find_hedge_word("我觉得maybe吧", words), "maybe");
  EXPECT_EQ(find_hedge_word("maybes and amaybe and may be", words), "");
  EXPECT_EQ(find_hedge_word("maybe_1", words), "");
  EXPECT_EQ(find_hedge_word("not surely, maybes; maybe", words), "maybe");
  EXPECT_EQ(find_hedge_word("", words), "");
  EXPECT_EQ(find_hedge_word("anything", {}), "");
}

TEST(Router, ChineseHedgeWordsMatchAnywhere) {
  const std::vector<std::string> words = RouteRules::default_hedge_words();
  EXPECT_EQ(find_hedge_word("这个结果不确定。", words), "不确定");
  EXPECT_EQ(find_hedge_word("他可能是对的", words), "可能");
  EXPECT_EQ(find_hedge_word("我们需要更多信息才能判断", words), "需要更多信息");
  EXPECT_EQ(find_hedge_word("结果是确定的", words), "");
}

TEST(Router, DefaultWordsCoverTheUsualWaysToHedge) {
  const std::vector<std::string> words = RouteRules::default_hedge_words();
  for (const char* text : {"I'm not sure.", "Unsure", "It is uncertain", "perhaps", "It might be billing", "possibly",
                           "We need more information", "She needs more information", "Hard to say"})
    EXPECT_NE(find_hedge_word(text, words), "") << text;
  for (const char* text : {"billing, high", "The almighty team", "Certain", "Certainly; sure"})
    EXPECT_EQ(find_hedge_word(text, words), "") << text;
}

TEST(Router, ASureAnswerStands) {
  const RouteDecision decision = decide(answer_of({0.93, 0.93}), {});
  EXPECT_FALSE(decision.escalate);
  EXPECT_EQ(decision.reason, "confidence 0.93");
  EXPECT_NEAR(decision.confidence, 0.93, 1e-6);
}

TEST(Router, LowConfidenceEscalates) {
  EXPECT_EQ(decide(answer_of({0.41}), {}).reason, "confidence 0.41 is below 0.70");
  EXPECT_TRUE(decide(answer_of({0.41}), {}).escalate);
  EXPECT_EQ(decide(answer_of({0.6996}), {}).reason, "confidence 0.6996 is below 0.7000");
  EXPECT_FALSE(decide(answer_of({0.5}), {.threshold = 0}).escalate);
  EXPECT_TRUE(decide(answer_of({0.9, 0.5}), {.confidence = "min"}).escalate);
  EXPECT_FALSE(decide(answer_of({0.9, 0.5}), {.confidence = "first"}).escalate);
}

TEST(Router, AHedgeWordEscalatesASureAnswer) {
  const RouteDecision decision = decide(answer_of({0.99}, "Maybe billing"), {});
  EXPECT_TRUE(decision.escalate);
  EXPECT_EQ(decision.reason, "answer holds the hedge word \"maybe\"");
  RouteRules none;
  none.hedge_words.clear();
  EXPECT_FALSE(decide(answer_of({0.99}, "Maybe billing"), none).escalate);
}

TEST(Router, ALongAnswerEscalatesOnlyWhenALimitIsSet) {
  const Answer answer = answer_of({0.99, 0.99, 0.99});
  EXPECT_FALSE(decide(answer, {}).escalate);
  EXPECT_FALSE(decide(answer, {.longest_fast_answer_tokens = 3}).escalate);
  EXPECT_EQ(decide(answer, {.longest_fast_answer_tokens = 2}).reason, "answer of 3 tokens is longer than 2");
}

TEST(Router, AFailedFastModelEscalatesUnlessTheRequestWasAtFault) {
  Answer failed;
  failed.code = Code::non_finite;
  failed.message = "Model 'laya' gave NaN";
  EXPECT_TRUE(decide(failed, {}).escalate);
  EXPECT_EQ(decide(failed, {}).reason, "laya failed: Model 'laya' gave NaN");
  for (const Code code : {Code::invalid_argument, Code::not_found, Code::cancelled, Code::deadline}) {
    failed.code = code;
    EXPECT_FALSE(decide(failed, {}).escalate);
  }
}

Code code_of(std::string_view text, std::string& message) {
  try {
    loaders::parse_route_rules(text, "rules.json");
  } catch (const Error& error) {
    message = error.what();
    return error.code();
  }
  return Code::ok;
}

TEST(RouterRules, EveryFieldIsRead) {
  const RouteRules rules = loaders::parse_route_rules(
      R"({"fast": "a", "deep": "b", "confidence": "min", "threshold": 0.5, "fast_max_tokens": 3,
          "deep_max_tokens": 9, "longest_fast_answer_tokens": 2, "hedge_words": ["hm", "嗯"]})",
      "rules.json");
  EXPECT_EQ(rules.fast, "a");
  EXPECT_EQ(rules.deep, "b");
  EXPECT_EQ(rules.confidence, "min");
  EXPECT_EQ(rules.threshold, 0.5);
  EXPECT_EQ(rules.fast_max_tokens, 3);
  EXPECT_EQ(rules.deep_max_tokens, 9);
  EXPECT_EQ(rules.longest_fast_answer_tokens, 2);
  EXPECT_EQ(rules.hedge_words, (std::vector<std::string>{"hm", "嗯"}));
}

TEST(RouterRules, AbsentFieldsKeepTheirDefaults) {
  const RouteRules rules = loaders::parse_route_rules("{}", "rules.json");
  EXPECT_EQ(rules.fast, "laya");
  EXPECT_EQ(rules.deep, "kev");
  EXPECT_EQ(rules.threshold, 0.7);
  EXPECT_EQ(rules.fast_max_tokens, 64);
  EXPECT_EQ(rules.deep_max_tokens, 512);
  EXPECT_EQ(rules.hedge_words, RouteRules::default_hedge_words());
  EXPECT_TRUE(loaders::parse_route_rules(R"({"hedge_words": []})", "rules.json").hedge_words.empty());
}

TEST(RouterRules, UnknownKeysAreRefusedWithTheNearestName) {
  std::string message;
  EXPECT_EQ(code_of(R"({"treshold": 0.5})", message), Code::bad_file);
  EXPECT_NE(message.find("'treshold'"), std::string::npos) << message;
  EXPECT_NE(message.find("'threshold'"), std::string::npos) << message;
  EXPECT_EQ(code_of(R"({"zzzzzz": 0.5})", message), Code::bad_file);
  EXPECT_NE(message.find("'hedge_words'"), std::string::npos) << message;
}

TEST(RouterRules, WrongKindsAndRangesAreRefused) {
  for (const std::string text :
       {R"({"threshold": "0.5"})", R"({"threshold": 1.5})", R"({"threshold": -0.1})", R"({"fast_max_tokens": 0})",
        R"({"fast_max_tokens": 1.5})", R"({"deep_max_tokens": -1})", R"({"deep_max_tokens": 99999999999})",
        R"({"longest_fast_answer_tokens": -1})", R"({"confidence": "median"})", R"({"hedge_words": "maybe"})",
        R"({"hedge_words": [1]})", R"({"hedge_words": [""]})", R"({"fast": ""})", R"({"fast": "kev"})", R"([])", R"({)",
        R"({"fast": "a", "fast": "b"})", ""}) {
    std::string message;
    EXPECT_EQ(code_of(text, message), Code::bad_file) << text;
    EXPECT_NE(message.find("rules.json"), std::string::npos) << message;
  }
}

TEST(RouterRules, AFileIsReadAndAMissingOneIsNamed) {
  const test::TemporaryDirectory folder;
  test::write_file(folder.path() / "rules.json", R"({"threshold": 0.25})");
  EXPECT_EQ(read_route_rules((folder.path() / "rules.json").string()).threshold, 0.25);
  try {
    read_route_rules((folder.path() / "nothing.json").string());
    FAIL() << "a missing file was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::not_found);
    EXPECT_NE(std::string(error.what()).find("nothing.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace duet
