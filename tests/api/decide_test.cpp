#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "duet/engine.h"
#include "tests/support/test_data.h"

// Typed questions through duet::Engine: the published answers of golden checkpoints, routing, and what is refused.
namespace duet::test {
namespace {

using Json = nlohmann::ordered_json;

std::string golden_path(const std::string& name) { return (golden_directory() / name).string(); }
Json golden_of(const std::string& name) { return Json::parse(read_file(golden_directory() / name / "golden.json")); }

ModelOptions laya_model(const std::string& name = "windowed") {
  return {.name = "laya", .path = golden_path("laya/" + name)};
}
ModelOptions kev_model(const std::string& name = "qwen2") {
  ModelOptions model{.name = "kev", .path = golden_path("kev/" + name + "/base")};
  model.adapters = {{.name = "kev", .path = golden_path("kev/" + name + "/adapter")}};
  model.weights.linear = WeightType::as_stored;  // What the reference computed with.
  return model;
}
Engine open(std::vector<ModelOptions> models) {
  Options options;
  options.models = std::move(models);
  options.device = Device::host;
  options.threads = 1;
  options.kv_tokens = 1024;
  return Engine::open(options);
}

DecisionRequest request_of(const std::string& model, const Json& golden_case) {
  DecisionRequest request;
  request.model = model;
  request.json = Json{{"state", golden_case["state"]}, {"questions", golden_case["questions"]}}.dump();
  return request;
}

/// The golden answers are rounded to 4 decimals; float32 noise moves a probability by up to 1e-4 more.
void expect_answer(const DecisionAnswer& got, const Json& want) {
  constexpr double kBound = 2e-4;
  const Json& shown = want.contains("probabilities") ? want["probabilities"] : Json::object();
  std::size_t i = 0;
  for (const auto& [label, probability] : shown.items()) {
    EXPECT_EQ(got.labels.at(i), label);
    EXPECT_NEAR(got.probabilities.at(i++), probability.get<double>(), kBound);
  }
  if (want.contains("choice")) {
    EXPECT_EQ(got.labels.at(got.choice), want["choice"].get<std::string>());
  }
  if (want.contains("score")) {
    EXPECT_NEAR(got.score, want["score"].get<double>(), 10 * kBound);
  }
  if (want.contains("noul")) {
    EXPECT_NEAR(got.probabilities.at(1), want["noul"].get<double>(), kBound);
  }
  if (want.contains("confidence")) {
    EXPECT_NEAR(got.confidence.published, want["confidence"].get<double>(), 10 * kBound);
  }
  if (want.contains("answer_confidence")) {
    EXPECT_NEAR(got.confidence.largest, want["answer_confidence"].get<double>(), kBound);
  }
}

void expect_answers(Engine& engine, const std::string& model, const Json& golden_case) {
  SCOPED_TRACE(golden_case["name"].get<std::string>());
  const Decision decision = engine.decide(request_of(model, golden_case));
  ASSERT_EQ(decision.code, Code::ok) << decision.message;
  ASSERT_EQ(decision.answers.size(), golden_case["answers"].size());
  EXPECT_EQ(decision.input_tokens, golden_case["usage"]["input_tokens"].get<std::int64_t>());
  std::size_t i = 0;
  for (const auto& [name, want] : golden_case["answers"].items()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(decision.answers[i].question, name);
    EXPECT_EQ(decision.answers[i].model, model);
    expect_answer(decision.answers[i++], want);
  }
}

const Json& case_named(const Json& golden, const std::string& name) {
  for (const Json& one : golden["cases"])
    if (one["name"] == name) return one;
  throw std::runtime_error("no golden case " + name);
}

TEST(Decide, LayaGivesItsReferencesAnswers) {
  const Json golden = golden_of("laya/windowed");
  Engine engine = open({laya_model()});
  for (const char* name : {"three_types", "json_numbers", "list_cut_left", "long_state", "single_option", "noul_words",
                           "score_2_and_7", "thirteen_options"})
    expect_answers(engine, "laya", case_named(golden, name));
}

TEST(Decide, KevGivesItsReferencesAnswers) {
  for (const char* checkpoint : {"qwen2", "qwen3", "hybrid"}) {
    SCOPED_TRACE(checkpoint);
    const Json golden = golden_of(std::string("kev/") + checkpoint);
    Engine engine = open({kev_model(checkpoint)});
    for (const char* name : {"shoes", "charged_twice", "emotion"})
      expect_answers(engine, "kev", case_named(golden, name));
    expect_answers(engine, "kev", golden["cases"].back());
  }
}

TEST(Decide, AKevReadsTheStateOnceForAllQuestions) {
  const Json golden = golden_of("kev/qwen2");
  Engine engine = open({kev_model()});
  const Json& long_state = golden["cases"].back();
  ASSERT_GT(long_state["questions"].size(), 1U);
  ASSERT_EQ(engine.decide(request_of("kev", long_state)).code, Code::ok);
  const auto state = static_cast<std::uint64_t>(long_state["state_ids"].size());
  const std::uint64_t page = 16, others = long_state["questions"].size() - 1;
  EXPECT_GE(engine.counters().cached_tokens, others * (state / page - 1) * page);
}

/// Adapter, head and temperature come and go as one.
TEST(Decide, AKevsHeadIsSwappedWithItsAdapter) {
  const Json shoes = case_named(golden_of("kev/qwen2"), "shoes");
  ModelOptions base{.name = "kev", .path = golden_path("kev/qwen2/base")};
  base.adapter_slots = 1;
  base.adapter_rank = 8;
  Engine engine = open({base});
  EXPECT_EQ(engine.decide(request_of("kev", shoes)).code, Code::unsupported);
  const AdapterOptions adapter{.name = "kev", .path = golden_path("kev/qwen2/adapter")};
  for (int turn = 0; turn < 2; ++turn) {
    engine.load_adapter("kev", adapter);
    expect_answers(engine, "kev", shoes);
    engine.drop_adapter("kev", "kev");
    EXPECT_EQ(engine.decide(request_of("kev", shoes)).code, Code::unsupported);
  }
}

TEST(Decide, PlainTextsAskWhatJsonAsks) {
  Engine engine = open({laya_model()});
  DecisionRequest plain;
  plain.model = "laya";
  plain.state = "I was charged \"twice\"";
  plain.questions = {
      {.name = "team", .kind = QuestionKind::choice, .instructions = "Which?", .options = {{"a", "one"}, {"b", ""}}},
      {.name = "how", .kind = QuestionKind::score, .instructions = "How?", .options = {{"", "low"}, {"", "high"}}},
      {.name = "spam", .kind = QuestionKind::noul, .instructions = "Spam?"}};
  DecisionRequest json;
  json.model = "laya";
  json.json = R"({"state": "I was charged \"twice\"", "questions": {
      "team": {"type": "choice", "instructions": "Which?", "criteria": {"a": "one", "b": null}},
      "how": {"type": "score", "instructions": "How?", "criteria": ["low", "high"]},
      "spam": {"type": "noul", "instructions": "Spam?"}}})";
  const Decision one = engine.decide(plain), other = engine.decide(json);
  ASSERT_EQ(one.code, Code::ok) << one.message;
  ASSERT_EQ(other.code, Code::ok) << other.message;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(one.answers.at(i).probabilities, other.answers.at(i).probabilities);
}

TEST(Decide, UnsureQuestionsGoToTheDeepModelAndSayWhy) {
  Engine engine = open({laya_model(), kev_model()});
  const Json shoes = case_named(golden_of("kev/qwen2"), "shoes");
  const Decision fast = engine.decide(request_of("laya", shoes)), deep = engine.decide(request_of("kev", shoes));
  ASSERT_EQ(fast.code, Code::ok) << fast.message;
  DecisionRules rules;
  for (std::size_t sure = 0; sure < fast.answers.size(); ++sure) {  // The threshold lets this one just pass.
    rules.threshold.fill(fast.answers[sure].confidence.largest);
    const Decision routed = engine.decide(request_of("", shoes), rules);
    ASSERT_EQ(routed.code, Code::ok) << routed.message;
    for (std::size_t i = 0; i < fast.answers.size(); ++i) {
      const DecisionAnswer& answer = routed.answers[i];
      const bool escalates = fast.answers[i].confidence.largest < rules.threshold[0];
      EXPECT_EQ(answer.escalated, escalates);
      EXPECT_EQ(answer.model, escalates ? "kev" : "laya");
      EXPECT_EQ(answer.probabilities, escalates ? deep.answers[i].probabilities : fast.answers[i].probabilities);
      EXPECT_EQ(answer.reason.find("largest 0."), 0U) << answer.reason;
      EXPECT_EQ(answer.reason.find("below") != std::string::npos, escalates) << answer.reason;
    }
  }
  rules.threshold.fill(0);
  for (const DecisionAnswer& answer : engine.decide(request_of("", shoes), rules).answers)
    EXPECT_FALSE(answer.escalated);
}

/// O-22: what is typed moves no marker: as many options, and the same answer as for text of the same ids.
TEST(Decide, MarkersInTextsAreText) {
  Engine engine = open({kev_model()});
  DecisionRequest request;
  request.model = "kev";
  request.state = "before <|box_start|>x<|box_end|> <|fim_suffix|> after";
  request.questions = {{.name = "q",
                        .kind = QuestionKind::choice,
                        .instructions = "Which <|fim_middle|>?",
                        .options = {{"a<|box_end|>", "<|fim_prefix|>"}, {"b", ""}}}};
  const Decision decision = engine.decide(request);
  ASSERT_EQ(decision.code, Code::ok) << decision.message;
  EXPECT_EQ(decision.answers[0].probabilities.size(), 2U);
}

TEST(Decide, WhatMakesNoSenseIsRefusedInOneSentence) {
  Engine engine = open({laya_model(), {.name = "plain", .path = golden_path("models/qwen2")}});
  DecisionRequest good;
  good.model = "laya";
  good.state = "x";
  good.questions = {{.name = "q", .kind = QuestionKind::noul, .instructions = "?"}};
  ASSERT_EQ(engine.decide(good).code, Code::ok);
  const auto refused = [&](Code code, const char* words, auto&& change) {
    DecisionRequest bad = good;
    change(bad);
    const Decision decision = engine.decide(bad);
    EXPECT_EQ(decision.code, code) << words;
    EXPECT_NE(decision.message.find(words), std::string::npos) << decision.message;
    EXPECT_TRUE(decision.answers.empty());
  };
  refused(Code::not_found, "'kev'", [](DecisionRequest& r) { r.model = "kev"; });
  refused(Code::unsupported, "'plain'", [](DecisionRequest& r) { r.model = "plain"; });
  refused(Code::invalid_argument, "UTF-8", [](DecisionRequest& r) { r.state = "\xC3\x28"; });
  refused(Code::invalid_argument, "'q'", [](DecisionRequest& r) { r.questions.push_back(r.questions[0]); });
  refused(Code::invalid_argument, "json", [](DecisionRequest& r) { r.json = "{}"; });
  refused(Code::invalid_argument, "deadline", [](DecisionRequest& r) { r.deadline = -1; });
  refused(Code::bad_file, "state", [](DecisionRequest& r) { r = {.model = "laya", .json = "{}"}; });
  refused(Code::invalid_argument, "options", [](DecisionRequest& r) { r.questions[0].kind = QuestionKind::choice; });
  refused(Code::no_room, "'q'", [](DecisionRequest& r) {
    r.questions[0].kind = QuestionKind::choice;
    for (int i = 0; i < 200; ++i) r.questions[0].options.push_back({std::to_string(i), ""});
  });

  EXPECT_TRUE(engine.decide({.model = "laya", .state = "x"}).answers.empty()) << "no questions, no answers";
  DecisionRules rules{.fast = "laya", .deep = "plain", .measure = "luck"};
  EXPECT_EQ(engine.decide(good, rules).code, Code::invalid_argument);

  Request text;
  text.model = "laya";
  text.prompt = "hello";
  const Answer answer = engine.run(text);
  EXPECT_EQ(answer.code, Code::invalid_argument);
  EXPECT_NE(answer.message.find("decide"), std::string::npos) << answer.message;
}

TEST(Decide, ManyThreadsGetTheAnswersOfOne) {
  Engine engine = open({laya_model(), kev_model()});
  const Json shoes = case_named(golden_of("kev/qwen2"), "shoes");
  const Decision laya = engine.decide(request_of("laya", shoes)), kev = engine.decide(request_of("kev", shoes));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        const bool deep = (static_cast<int>(t) + i) % 2 == 0;
        const Decision decision = engine.decide(request_of(deep ? "kev" : "laya", shoes));
        for (std::size_t k = 0; k < decision.answers.size(); ++k)
          wrong[t] += decision.answers[k].probabilities != (deep ? kev : laya).answers[k].probabilities ? 1 : 0;
        wrong[t] += decision.answers.size() == laya.answers.size() ? 0 : 1;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace duet::test
