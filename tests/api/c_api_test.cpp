#include "duet/c_api.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/test_data.h"

namespace {

std::string model_path(const std::string& name) { return (duet::test::golden_directory() / "models" / name).string(); }

struct Handles {
  duet_options* options = duet_options_new();
  duet_engine* engine = nullptr;
  duet_request* request = duet_request_new();
  duet_answer* answer = nullptr;

  Handles() {
    EXPECT_EQ(duet_options_add_model(options, "laya", model_path("qwen2").c_str()), DUET_OK);
    EXPECT_EQ(duet_options_add_model(options, "kev", model_path("llama_gqa").c_str()), DUET_OK);
    EXPECT_EQ(duet_options_set_device(options, DUET_DEVICE_HOST), DUET_OK);
    EXPECT_EQ(duet_options_set_budget(options, std::uint64_t{1} << 30), DUET_OK);
    EXPECT_EQ(duet_options_set_kv_tokens(options, 1024), DUET_OK);
    EXPECT_EQ(duet_options_set_threads(options, 1), DUET_OK);
  }
  ~Handles() {
    duet_answer_free(answer);
    duet_request_free(request);
    duet_engine_close(engine);
    duet_options_free(options);
  }
  void open() { ASSERT_EQ(duet_engine_open(options, &engine), DUET_OK) << duet_last_message(); }
};

void collect(const char* text, size_t bytes, void* user) { static_cast<std::string*>(user)->append(text, bytes); }

TEST(CApi, AnswersAsTheReference) {
  Handles all;
  all.open();
  const duet::test::GoldenArrays golden("models/qwen2/expected.json");
  for (const duet::test::GoldenPrompt& prompt : duet::test::golden_prompts(golden.index())) {
    if (prompt.name != "forty") continue;
    ASSERT_EQ(duet_request_set_model(all.request, "laya"), DUET_OK);
    ASSERT_EQ(duet_request_set_prompt_ids(all.request, prompt.ids.data(), prompt.ids.size()), DUET_OK);
    ASSERT_EQ(duet_request_set_max_tokens(all.request, 4), DUET_OK);
    ASSERT_EQ(duet_request_set_logprobs(all.request, 3), DUET_OK);
    std::string streamed;
    ASSERT_EQ(duet_engine_run(all.engine, all.request, collect, &streamed, &all.answer), DUET_OK)
        << duet_last_message();
    ASSERT_EQ(duet_answer_token_count(all.answer), 4U);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(duet_answer_token(all.answer, i), prompt.greedy[i]);
      ASSERT_EQ(duet_answer_best_count(all.answer, i), 3U);
      int32_t id = -1;
      float logprob = 1;
      EXPECT_EQ(duet_answer_best(all.answer, i, 0, &id, &logprob), DUET_OK);
      EXPECT_EQ(id, prompt.greedy[i]);
      EXPECT_EQ(logprob, duet_answer_token_logprob(all.answer, i));
      EXPECT_EQ(duet_answer_best(all.answer, i, 3, &id, &logprob), DUET_INVALID_ARGUMENT);
    }
    EXPECT_EQ(duet_answer_token(all.answer, 4), -1);
    EXPECT_EQ(duet_answer_prompt_token_count(all.answer), prompt.ids.size());
    EXPECT_EQ(duet_answer_prompt_token(all.answer, 39), prompt.ids[39]);
    EXPECT_EQ(duet_answer_prompt_token(all.answer, 40), -1);
    EXPECT_EQ(streamed, std::string(duet_answer_text(all.answer), duet_answer_text_bytes(all.answer)));
    EXPECT_EQ(duet_answer_finish(all.answer), DUET_FINISH_LENGTH);
    EXPECT_STREQ(duet_answer_model(all.answer), "laya");
    EXPECT_STREQ(duet_answer_adapter(all.answer), "none");
    EXPECT_GT(duet_answer_timings(all.answer).total, 0);
    EXPECT_EQ(duet_answer_fast(all.answer), nullptr);
    return;
  }
  FAIL() << "the golden prompt 'forty' is missing";
}

TEST(CApi, NullHandlesAreRefusedNotFollowed) {
  duet_engine* engine = nullptr;
  duet_answer* answer = nullptr;
  EXPECT_EQ(duet_engine_open(nullptr, &engine), DUET_INVALID_ARGUMENT);
  EXPECT_STRNE(duet_last_message(), "");
  EXPECT_EQ(duet_options_add_model(nullptr, "a", "b"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_request_set_prompt(nullptr, "x"), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(duet_engine_run(nullptr, nullptr, nullptr, nullptr, &answer), DUET_INVALID_ARGUMENT);
  EXPECT_EQ(answer, nullptr);
  duet_request* request = duet_request_new();
  EXPECT_EQ(duet_request_set_model(request, nullptr), DUET_INVALID_ARGUMENT);
  duet_request_free(request);
  EXPECT_EQ(duet_answer_code(nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_STREQ(duet_answer_text(nullptr), "");
  EXPECT_EQ(duet_answer_token_count(nullptr), 0U);
  EXPECT_EQ(duet_answer_best_count(nullptr, 0), 0U);
  EXPECT_EQ(duet_answer_timings(nullptr).total, 0);
  duet_options_free(nullptr);
  duet_request_free(nullptr);
  duet_answer_free(nullptr);
  duet_engine_close(nullptr);
  duet_rules_free(nullptr);
  duet_string_free(nullptr);
}

TEST(CApi, FailuresGiveACodeAndASentence) {
  Handles all;
  EXPECT_EQ(duet_options_set_chat_template(all.options, "lay", "chatml"), DUET_NOT_FOUND);
  EXPECT_NE(std::string(duet_last_message()).find("'laya'"), std::string::npos) << duet_last_message();
  EXPECT_EQ(duet_options_set_device(all.options, static_cast<duet_device>(3)), DUET_INVALID_ARGUMENT);
  all.open();
  duet_request_set_model(all.request, "laya");
  duet_request_set_prompt(all.request, "refund");
  duet_request_set_top_p(all.request, 2);
  EXPECT_EQ(duet_engine_run(all.engine, all.request, nullptr, nullptr, &all.answer), DUET_INVALID_ARGUMENT);
  ASSERT_NE(all.answer, nullptr);
  EXPECT_EQ(duet_answer_code(all.answer), DUET_INVALID_ARGUMENT);
  EXPECT_STREQ(duet_answer_message(all.answer), duet_last_message());
  EXPECT_EQ(duet_answer_finish(all.answer), DUET_FINISH_ERROR);
  EXPECT_STREQ(duet_code_name(DUET_NO_ROOM), "no_room");
  EXPECT_STREQ(duet_code_name(static_cast<duet_code>(15)), "unknown");

  duet_engine* other = nullptr;
  duet_options_add_model(all.options, "ghost", "/nothing/here");
  EXPECT_EQ(duet_engine_open(all.options, &other), DUET_NOT_FOUND);
  EXPECT_EQ(other, nullptr);
}

TEST(CApi, MessagesBelongToTheirThread) {
  EXPECT_EQ(duet_options_add_model(nullptr, "a", "b"), DUET_INVALID_ARGUMENT);
  const std::string here = duet_last_message();
  std::thread([] { EXPECT_STREQ(duet_last_message(), ""); }).join();
  EXPECT_EQ(here, duet_last_message());
}

TEST(CApi, SubmittedRequestsStreamAndCanBeCancelled) {
  Handles all;
  all.open();
  duet_request_set_model(all.request, "kev");
  duet_request_set_prompt(all.request, "refund");
  duet_request_set_max_tokens(all.request, 12);
  std::string streamed;
  duet_ticket ticket = 0;
  ASSERT_EQ(duet_engine_submit(all.engine, all.request, collect, &streamed, &ticket), DUET_OK);
  ASSERT_EQ(duet_engine_wait(all.engine, ticket, &all.answer), DUET_OK) << duet_last_message();
  EXPECT_EQ(streamed, std::string(duet_answer_text(all.answer), duet_answer_text_bytes(all.answer)));
  duet_answer_free(all.answer);

  duet_request_set_max_tokens(all.request, 1000);
  int cancelled = 0;
  ASSERT_EQ(duet_engine_submit(all.engine, all.request, nullptr, nullptr, &ticket), DUET_OK);
  EXPECT_EQ(duet_engine_cancel(all.engine, ticket, &cancelled), DUET_OK);
  const duet_code code = duet_engine_wait(all.engine, ticket, &all.answer);
  EXPECT_EQ(code, cancelled != 0 ? DUET_CANCELLED : DUET_OK);
  EXPECT_EQ(duet_engine_cancel(all.engine, ticket, &cancelled), DUET_OK);
  EXPECT_EQ(cancelled, 0);
}

TEST(CApi, RoutesWithRules) {
  Handles all;
  all.open();
  duet_request_set_prompt(all.request, "refund");
  duet_rules* rules = duet_rules_new();
  ASSERT_EQ(duet_rules_set_threshold(rules, 1), DUET_OK);
  ASSERT_EQ(duet_rules_set_max_tokens(rules, 3, 5), DUET_OK);
  ASSERT_EQ(duet_engine_route(all.engine, all.request, rules, nullptr, nullptr, &all.answer), DUET_OK)
      << duet_last_message();
  EXPECT_EQ(duet_answer_escalated(all.answer), 1);
  EXPECT_LE(duet_answer_token_count(all.answer), 5U);
  EXPECT_STREQ(duet_answer_model(all.answer), "kev");
  EXPECT_STREQ(duet_answer_model(duet_answer_fast(all.answer)), "laya");
  EXPECT_STRNE(duet_answer_reason(all.answer), "");
  EXPECT_LT(duet_answer_confidence(all.answer), 1);
  EXPECT_EQ(duet_rules_set_models(rules, "laya", "laya"), DUET_OK);
  duet_answer* bad = nullptr;
  EXPECT_EQ(duet_engine_route(all.engine, all.request, rules, nullptr, nullptr, &bad), DUET_INVALID_ARGUMENT);
  duet_answer_free(bad);
  duet_rules_free(rules);
  EXPECT_EQ(duet_rules_read("/nothing/rules.json", &rules), DUET_NOT_FOUND);
  EXPECT_EQ(rules, nullptr);
}

TEST(CApi, TokenizesPlansAndCounts) {
  Handles all;
  std::uint64_t last = 0;
  ASSERT_EQ(
      duet_options_set_load_callback(
          all.options,
          [](const char*, std::uint64_t done, std::uint64_t, void* user) { *static_cast<std::uint64_t*>(user) = done; },
          &last),
      DUET_OK);
  all.open();
  EXPECT_GT(last, 0U);
  const std::string text = "refund the charge";
  std::vector<int32_t> ids(64, -7);
  size_t count = 0;
  ASSERT_EQ(duet_engine_tokenize(all.engine, "laya", text.c_str(), 0, nullptr, 0, &count), DUET_OK);
  ASSERT_GT(count, 2U);
  size_t again = 0;
  ASSERT_EQ(duet_engine_tokenize(all.engine, "laya", text.c_str(), 0, ids.data(), 2, &again), DUET_OK);
  EXPECT_EQ(again, count);
  EXPECT_EQ(ids[2], -7);
  ASSERT_EQ(duet_engine_tokenize(all.engine, "laya", text.c_str(), 0, ids.data(), ids.size(), &again), DUET_OK);
  char* back = nullptr;
  ASSERT_EQ(duet_engine_detokenize(all.engine, "laya", ids.data(), count, &back), DUET_OK);
  EXPECT_EQ(back, text);
  duet_string_free(back);

  duet_counters counters;
  std::memset(&counters, 0xA5, sizeof(counters));
  ASSERT_EQ(duet_engine_counters(all.engine, &counters, sizeof(counters.requests)), DUET_OK);
  EXPECT_EQ(counters.requests, 0U);
  EXPECT_EQ(counters.finished, 0xA5A5A5A5A5A5A5A5U);
  ASSERT_EQ(duet_engine_counters(all.engine, &counters, sizeof(counters)), DUET_OK);
  EXPECT_GT(counters.total_pages, 0);
  EXPECT_EQ(counters.free_pages, counters.total_pages);

  char* table = nullptr;
  ASSERT_EQ(duet_plan(all.options, &table), DUET_OK) << duet_last_message();
  EXPECT_NE(std::strstr(table, "laya"), nullptr);
  duet_string_free(table);
  for (const auto function : {duet_engine_plan_table, duet_engine_load_report, duet_engine_device_name}) {
    char* own = nullptr;
    ASSERT_EQ(function(all.engine, &own), DUET_OK);
    EXPECT_GT(std::strlen(own), 3U);
    duet_string_free(own);
  }
  duet_weight_type type = DUET_WEIGHT_AUTOMATIC;
  ASSERT_EQ(duet_engine_weight_type(all.engine, "laya", &type), DUET_OK);
  EXPECT_EQ(type, DUET_WEIGHT_BF16);
  EXPECT_EQ(duet_engine_weight_type(all.engine, "lay", &type), DUET_NOT_FOUND);
  EXPECT_EQ(duet_engine_weight_type(all.engine, "laya", nullptr), DUET_INVALID_ARGUMENT);
  EXPECT_STREQ(duet_version(), "0.1.0");
}

}  // namespace
