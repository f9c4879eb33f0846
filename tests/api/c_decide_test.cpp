#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "duet/c_api.h"
#include "duet/engine.h"
#include "tests/api/decision_in_c.h"
#include "tests/support/test_data.h"

// Decisions in C: the answers of the C++ interface, what is refused, and who owns what.
namespace duet::test {
namespace {

using Json = nlohmann::ordered_json;

std::string golden_path(const std::string& name) { return (golden_directory() / name).string(); }

/// A model's name is its folder's under laya/ or kev/.
constexpr const char* kLaya = "windowed";
constexpr const char* kKev = "qwen2";

struct Engines {
  duet_engine* c = nullptr;
  std::unique_ptr<Engine> cpp;

  Engines(const std::vector<std::string>& layas, const std::vector<std::string>& kevs) {
    duet_options* options = duet_options_new();
    Options same;
    for (const std::string& name : layas) {
      const std::string path = golden_path("laya/" + name);
      EXPECT_EQ(duet_options_add_model(options, name.c_str(), path.c_str()), DUET_OK);
      same.models.push_back({.name = name, .path = path});
    }
    for (const std::string& name : kevs) {
      const std::string base = golden_path("kev/" + name + "/base"), adapter = golden_path("kev/" + name + "/adapter");
      EXPECT_EQ(duet_options_add_model(options, name.c_str(), base.c_str()), DUET_OK);
      EXPECT_EQ(duet_options_add_adapter(options, name.c_str(), "kev", adapter.c_str(), 1), DUET_OK);
      same.models.push_back({.name = name, .path = base});
      same.models.back().adapters = {{.name = "kev", .path = adapter}};
    }
    duet_options_set_device(options, DUET_DEVICE_HOST);
    duet_options_set_threads(options, 1);
    duet_options_set_kv_tokens(options, 1024);
    same.device = Device::host;
    same.threads = 1;
    same.kv_tokens = 1024;
    EXPECT_EQ(duet_engine_open(options, &c), DUET_OK) << duet_last_message();
    cpp = std::make_unique<Engine>(Engine::open(same));
    duet_options_free(options);
  }
  Engines(const Engines&) = delete;
  Engines& operator=(const Engines&) = delete;
  ~Engines() { duet_engine_close(c); }
};

struct Request {
  duet_decision_request* c = nullptr;
  explicit Request(duet_decision_request* made) : c(made) { EXPECT_NE(c, nullptr) << duet_last_message(); }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() { duet_decision_request_free(c); }
};

struct Asked {
  duet_code code = DUET_INTERNAL;
  duet_decision* decision = nullptr;
  Asked(duet_engine* engine, const Request& request) { code = duet_engine_decide(engine, request.c, &decision); }
  Asked(duet_engine* engine, const Request& request, const duet_decision_rules* rules) {
    code = duet_engine_decide_routed(engine, request.c, rules, &decision);
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  ~Asked() { duet_decision_free(decision); }
};

std::string shown_in_c(const duet_decision* decision) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "decision.txt";
  std::FILE* file = std::fopen(path.c_str(), "w");
  print_decision_in_c(decision, file);
  std::fclose(file);
  return read_file(path);
}

/// What print_decision_in_c says of the same answers.
std::string shown(const Decision& decision) {
  std::string text =
      fmt::format("{} '{}' {} tokens\n", name_of(decision.code), decision.message, decision.input_tokens);
  for (const DecisionAnswer& answer : decision.answers) {
    text += fmt::format("{}: kind {} from {}, escalated {:d} '{}'\n", answer.question, static_cast<int>(answer.kind),
                        answer.model, answer.escalated, answer.reason);
    for (std::size_t k = 0; k < answer.labels.size(); ++k)
      text += fmt::format("  '{}' '{}' {:.17g}\n", answer.labels[k], answer.descriptions[k], answer.probabilities[k]);
    text += fmt::format("  choice {} score {:.17g} act {:.17g}\n", answer.choice, answer.score, answer.act_probability);
    const DecisionConfidence& sure = answer.confidence;
    text += fmt::format("  largest ok {:.17g}\n  entropy ok {:.17g}\n  linear ok {:.17g}\n", sure.largest, sure.entropy,
                        sure.linear);
    text += fmt::format("  spread ok {:.17g}\n  published ok {:.17g}\n", sure.spread, sure.published);
    text += fmt::format("  state {} of {} tokens, {} options\n", answer.state_tokens_kept, answer.state_tokens,
                        answer.distinct_options);
  }
  return text;
}

std::string request_json(const Json& golden_case) {
  return Json{{"state", golden_case["state"]}, {"questions", golden_case["questions"]}}.dump();
}

void expect_same_answers(const Engines& engines, const std::string& model, const std::string& golden) {
  int answered = 0, refused = 0;
  const Json golden_json = Json::parse(read_file(golden_path(golden)));
  for (const Json& one : golden_json["cases"]) {
    SCOPED_TRACE(model + " " + one["name"].get<std::string>());
    const std::string json = request_json(one);
    const Request request(duet_decision_request_new());
    ASSERT_EQ(duet_decision_request_set_model(request.c, model.c_str()), DUET_OK);
    ASSERT_EQ(duet_decision_request_set_json(request.c, json.c_str()), DUET_OK);
    const Asked asked(engines.c, request);
    const Decision decision = engines.cpp->decide({.model = model, .json = json});
    ASSERT_NE(asked.decision, nullptr);
    EXPECT_EQ(asked.code, static_cast<duet_code>(decision.code));
    EXPECT_EQ(shown_in_c(asked.decision), shown(decision));
    EXPECT_GT(duet_decision_seconds(asked.decision), 0);
    ++(decision.code == Code::ok ? answered : refused);
  }
  EXPECT_GE(answered, 20);
  EXPECT_LE(refused, 2);  // Kev's nouls with keys of their own, which Duet refuses and the reference leaves out.
}

TEST(CDecide, LayaAnswersAsInCpp) {
  const Engines engines({kLaya, "multi", "two_heads"}, {});
  for (const char* model : {kLaya, "multi", "two_heads"})
    expect_same_answers(engines, model, std::string("laya/") + model + "/golden.json");
}

TEST(CDecide, KevAnswersAsInCpp) {
  const Engines engines({}, {kKev, "qwen3", "hybrid"});
  for (const char* model : {kKev, "qwen3", "hybrid"})
    expect_same_answers(engines, model, std::string("kev/") + model + "/golden.json");
}

TEST(CDecide, CallsAskWhatJsonAsks) {
  const Engines engines({kLaya}, {kKev});
  for (const char* model : {kLaya, kKev}) {
    SCOPED_TRACE(model);
    const Request request(three_questions_in_c(model));
    const Asked asked(engines.c, request);
    ASSERT_EQ(asked.code, DUET_OK) << duet_last_message();
    EXPECT_EQ(shown_in_c(asked.decision),
              shown(engines.cpp->decide({.model = model, .json = R"({"state": "I was charged \"twice\"", "questions": {
                "team": {"type": "choice", "instructions": "Which?", "criteria": {"a": "one", "b": null}},
                "how": {"type": "score", "instructions": "How?", "criteria": ["low", "high"]},
                "spam": {"type": "noul", "instructions": "Spam?"}}})"})));
  }
}

TEST(CDecide, RulesSayWhoIsAskedAgain) {
  const Engines engines({kLaya}, {kKev});
  const Request request(three_questions_in_c(""));
  duet_decision_rules* rules = duet_decision_rules_new();
  DecisionRules same{.fast = kLaya, .deep = kKev, .measure = "entropy", .threshold = {0, 1.5, 0.25}};
  ASSERT_EQ(duet_decision_rules_set_models(rules, kLaya, kKev), DUET_OK);
  ASSERT_EQ(duet_decision_rules_set_measure(rules, "entropy"), DUET_OK);
  ASSERT_EQ(duet_decision_rules_set_threshold(rules, DUET_QUESTION_CHOICE, 0), DUET_OK);
  ASSERT_EQ(duet_decision_rules_set_threshold(rules, DUET_QUESTION_SCORE, 1.5), DUET_OK);
  ASSERT_EQ(duet_decision_rules_set_threshold(rules, DUET_QUESTION_NOUL, 0.25), DUET_OK);
  const Asked routed(engines.c, request, rules);
  ASSERT_EQ(routed.code, DUET_OK) << duet_last_message();
  EXPECT_EQ(duet_decision_escalated(routed.decision, 0), 0);
  EXPECT_STREQ(duet_decision_model(routed.decision, 0), kLaya);
  EXPECT_EQ(duet_decision_escalated(routed.decision, 1), 1);
  EXPECT_STREQ(duet_decision_model(routed.decision, 1), kKev);
  EXPECT_NE(std::string(duet_decision_reason(routed.decision, 1)).find("is below 1.50"), std::string::npos);
  DecisionRequest in_cpp{.state = "I was charged \"twice\""};
  in_cpp.questions = {{"team", QuestionKind::choice, "Which?", {{"a", "one"}, {"b", ""}}},
                      {"how", QuestionKind::score, "How?", {{"", "low"}, {"", "high"}}},
                      {"spam", QuestionKind::noul, "Spam?", {}}};
  EXPECT_EQ(shown_in_c(routed.decision), shown(engines.cpp->decide(in_cpp, same)));

  for (const double nonsense : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    ASSERT_EQ(duet_decision_rules_set_threshold(rules, DUET_QUESTION_NOUL, nonsense), DUET_OK);
    EXPECT_EQ(Asked(engines.c, request, rules).code, DUET_INVALID_ARGUMENT);
  }
  duet_decision_rules_free(rules);
  const Asked by_default(engines.c, request, nullptr);  // From laya to kev, which this engine calls otherwise.
  EXPECT_EQ(by_default.code, DUET_NOT_FOUND);
  EXPECT_NE(std::string(duet_last_message()).find("'laya'"), std::string::npos) << duet_last_message();
}

TEST(CDecide, NullIsRefusedNotFollowed) {
  EXPECT_EQ(duet_decision_request_set_model(nullptr, "m"), DUET_INVALID_ARGUMENT);
  EXPECT_STRNE(duet_last_message(), "");
  EXPECT_EQ(duet_decision_request_set_json(nullptr, "{}"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_set_state(nullptr, "s"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_add_question(nullptr, "q", DUET_QUESTION_NOUL, "?"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_add_option(nullptr, "q", "l", "d"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_add_level(nullptr, "q", "d"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_set_priority(nullptr, 1), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_set_deadline(nullptr, 1), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_rules_set_models(nullptr, "a", "b"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_rules_set_measure(nullptr, "largest"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_rules_set_threshold(nullptr, DUET_QUESTION_NOUL, 1), DUET_INVALID_ARGUMENT);

  const Request request(three_questions_in_c(kLaya));
  EXPECT_EQ(duet_decision_request_set_model(request.c, nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_set_json(request.c, nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_set_state(request.c, nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_add_question(request.c, nullptr, DUET_QUESTION_NOUL, "?"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_add_question(request.c, "q", DUET_QUESTION_NOUL, nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_add_option(request.c, nullptr, "l", nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_add_option(request.c, "team", nullptr, nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_request_add_level(request.c, "how", nullptr), DUET_INVALID_ARGUMENT);
  duet_decision_rules* rules = duet_decision_rules_new();
  EXPECT_EQ(duet_decision_rules_set_models(rules, nullptr, "b"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_rules_set_models(rules, "a", nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_rules_set_measure(rules, nullptr), DUET_INVALID_ARGUMENT);
  duet_decision_rules_free(rules);

  const Engines engines({kLaya}, {});
  duet_decision* decision = nullptr;
  EXPECT_EQ(duet_engine_decide(nullptr, request.c, &decision), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_engine_decide(engines.c, nullptr, &decision), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_engine_decide(engines.c, request.c, nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_engine_decide_routed(nullptr, request.c, nullptr, &decision), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_engine_decide_routed(engines.c, nullptr, nullptr, &decision), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_engine_decide_routed(engines.c, request.c, nullptr, nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(decision, nullptr);

  EXPECT_EQ(shown_in_c(nullptr), "invalid_argument '' 0 tokens\n");
  EXPECT_EQ(duet_decision_seconds(nullptr), 0);
  duet_decision_request_free(nullptr);
  duet_decision_rules_free(nullptr);
  duet_decision_free(nullptr);
}

TEST(CDecide, PastTheEndIsNothing) {
  const Engines engines({kLaya}, {});
  const Request request(three_questions_in_c(kLaya));
  const Asked asked(engines.c, request);
  ASSERT_EQ(asked.code, DUET_OK) << duet_last_message();
  const duet_decision* const decision = asked.decision;
  EXPECT_EQ(duet_decision_answer_count(decision), 3U);
  EXPECT_STREQ(duet_decision_label(decision, 0, 2), "");
  EXPECT_STREQ(duet_decision_description(decision, 0, 2), "");
  EXPECT_EQ(duet_decision_probability(decision, 0, 2), 0);
  for (const std::size_t end : {std::size_t{3}, std::numeric_limits<std::size_t>::max()}) {
    EXPECT_STREQ(duet_decision_question(decision, end), "");
    EXPECT_EQ(duet_decision_kind(decision, end), DUET_QUESTION_CHOICE);
    EXPECT_EQ(duet_decision_label_count(decision, end), 0U);
    EXPECT_STREQ(duet_decision_label(decision, end, 0), "");
    EXPECT_STREQ(duet_decision_description(decision, end, 0), "");
    EXPECT_EQ(duet_decision_probability(decision, end, 0), 0);
    EXPECT_EQ(duet_decision_choice(decision, end), 0U);
    EXPECT_EQ(duet_decision_score(decision, end), 0);
    EXPECT_EQ(duet_decision_act_probability(decision, end), 0);
    EXPECT_STREQ(duet_decision_model(decision, end), "");
    EXPECT_EQ(duet_decision_escalated(decision, end), 0);
    EXPECT_STREQ(duet_decision_reason(decision, end), "");
    EXPECT_EQ(duet_decision_state_tokens(decision, end), 0);
    EXPECT_EQ(duet_decision_state_tokens_kept(decision, end), 0);
    EXPECT_EQ(duet_decision_distinct_options(decision, end), 0U);
    double value = 7;
    EXPECT_EQ(duet_decision_confidence(decision, end, "largest", &value), DUET_INVALID_ARGUMENT);
    EXPECT_EQ(value, 7);
  }
  double value = 7;
  EXPECT_EQ(duet_decision_confidence(decision, 0, "luck", &value), DUET_INVALID_ARGUMENT);
  EXPECT_NE(std::string(duet_last_message()).find("'luck'"), std::string::npos) << duet_last_message();
  EXPECT_EQ(duet_decision_confidence(decision, 0, nullptr, &value), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_confidence(decision, 0, "largest", nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_decision_confidence(nullptr, 0, "largest", &value), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(value, 7);
}

TEST(CDecide, FailuresGiveACodeAndASentence) {
  const Engines engines({kLaya}, {});
  const auto refused = [&](duet_code code, const char* words, auto&& change) {
    const Request request(three_questions_in_c(kLaya));
    change(request.c);
    const Asked asked(engines.c, request);
    EXPECT_EQ(asked.code, code) << words;
    ASSERT_NE(asked.decision, nullptr);
    EXPECT_EQ(duet_decision_code(asked.decision), code);
    EXPECT_STREQ(duet_decision_message(asked.decision), duet_last_message());
    EXPECT_NE(std::string(duet_last_message()).find(words), std::string::npos) << duet_last_message();
    EXPECT_EQ(duet_decision_answer_count(asked.decision), 0U);
  };
  refused(DUET_NOT_FOUND, "'nobody'", [](auto* request) { duet_decision_request_set_model(request, "nobody"); });
  refused(DUET_INVALID_ARGUMENT, "json", [](auto* request) { duet_decision_request_set_json(request, "{}"); });
  refused(DUET_INVALID_ARGUMENT, "UTF-8", [](auto* request) { duet_decision_request_set_state(request, "\xC3\x28"); });
  refused(DUET_INVALID_ARGUMENT, "deadline", [](auto* request) { duet_decision_request_set_deadline(request, -1); });
  refused(DUET_INVALID_ARGUMENT, "'a' twice",
          [](auto* request) { duet_decision_request_add_option(request, "team", "a", nullptr); });
  refused(DUET_INVALID_ARGUMENT, "called 'team'",
          [](auto* request) { duet_decision_request_add_question(request, "team", DUET_QUESTION_NOUL, "?"); });
  refused(DUET_INVALID_ARGUMENT, "0 options",
          [](auto* request) { duet_decision_request_add_question(request, "empty", DUET_QUESTION_CHOICE, "?"); });
}

TEST(CDecide, OptionsGoToQuestionsThatTakeThem) {
  const Request request(three_questions_in_c(kLaya));
  EXPECT_EQ(duet_decision_request_add_option(request.c, "tem", "c", nullptr), DUET_NOT_FOUND);
  EXPECT_NE(std::string(duet_last_message()).find("'team'"), std::string::npos) << duet_last_message();
  EXPECT_EQ(duet_decision_request_add_level(request.c, "when", "c"), DUET_NOT_FOUND);
  for (const char* name : {"how", "spam"})
    EXPECT_EQ(duet_decision_request_add_option(request.c, name, "c", nullptr), DUET_INVALID_ARGUMENT) << name;
  for (const char* name : {"team", "spam"})
    EXPECT_EQ(duet_decision_request_add_level(request.c, name, "c"), DUET_INVALID_ARGUMENT) << name;
  EXPECT_NE(std::string(duet_last_message()).find("is a noul, not a score"), std::string::npos) << duet_last_message();
  for (const int kind : {-1, 3}) {
    const auto no_kind = static_cast<duet_question_kind>(kind);
    EXPECT_EQ(duet_decision_request_add_question(request.c, "q", no_kind, "?"), DUET_INVALID_ARGUMENT);
    duet_decision_rules* rules = duet_decision_rules_new();
    EXPECT_EQ(duet_decision_rules_set_threshold(rules, no_kind, 1), DUET_INVALID_ARGUMENT);
    duet_decision_rules_free(rules);
  }
  const Engines engines({kLaya}, {});  // Nothing of what was refused has stuck.
  const Asked asked(engines.c, request);
  ASSERT_EQ(asked.code, DUET_OK) << duet_last_message();
  EXPECT_EQ(duet_decision_answer_count(asked.decision), 3U);
  EXPECT_EQ(duet_decision_label_count(asked.decision, 0), 2U);
}

TEST(CDecide, ADecisionOutlivesRequestAndEngine) {
  duet_decision* decision = nullptr;
  std::string before;
  {
    const Engines engines({kLaya}, {});
    const Request request(three_questions_in_c(kLaya));
    ASSERT_EQ(duet_engine_decide(engines.c, request.c, &decision), DUET_OK) << duet_last_message();
    before = shown_in_c(decision);
    duet_decision* again = nullptr;  // A request may be asked as often as one likes.
    ASSERT_EQ(duet_engine_decide(engines.c, request.c, &again), DUET_OK) << duet_last_message();
    EXPECT_EQ(shown_in_c(again), before);
    duet_decision_free(again);
  }
  EXPECT_EQ(shown_in_c(decision), before);
  duet_decision_free(decision);
}

}  // namespace
}  // namespace duet::test
