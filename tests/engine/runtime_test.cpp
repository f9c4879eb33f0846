#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>

#include "duet/error.h"
#include "tests/engine/runtime_fixture.h"

namespace duet::test {
namespace {

// ---- answers ----

TEST_F(RuntimeTest, AnswersEqualTheDeviceComputedFromTokensAlone) {
  Runtime& runtime = open();
  for (const int prompt : {1, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 96, 150}) {
    const auto ids = fake_prompt(prompt, static_cast<std::uint64_t>(prompt));
    const Answer laya = run(runtime, request_of(kLaya, ids, 40));
    ASSERT_EQ(laya.code, Code::ok) << laya.message;
    EXPECT_EQ(ids_of(laya), fake_answer(0, "", 1.0F, ids, 40)) << prompt;
    const Answer kev = run(runtime, request_of(kKev, ids, 40));
    EXPECT_EQ(ids_of(kev), fake_answer(1, "", 1.0F, ids, 40)) << prompt;
    EXPECT_EQ(laya.finish, Finish::length);
    EXPECT_EQ(laya.prompt_ids, ids);
    EXPECT_EQ(laya.model, "laya");
    EXPECT_EQ(laya.adapter, "none");
  }
}

TEST_F(RuntimeTest, ManyAtOnceEqualEachAlone) {
  Runtime& runtime = open({.kv_tokens = 2048, .max_sequences = 5});
  std::vector<Ticket> tickets;
  for (int i = 0; i < 30; ++i)
    tickets.push_back(
        runtime.submit(request_of(i % 2, fake_prompt(10 + 7 * i, static_cast<std::uint64_t>(i)), 20 + i)));
  for (int i = 0; i < 30; ++i) {
    const Answer answer = runtime.wait(tickets[static_cast<std::size_t>(i)]);
    ASSERT_EQ(answer.code, Code::ok) << answer.message;
    EXPECT_EQ(ids_of(answer),
              fake_answer(i % 2, "", 1.0F, fake_prompt(10 + 7 * i, static_cast<std::uint64_t>(i)), 20 + i));
  }
  const Counters counters = runtime.counters();
  EXPECT_EQ(counters.finished, 30U);
  EXPECT_EQ(counters.active_sequences, 0);
  EXPECT_EQ(counters.waiting, 0);
  EXPECT_EQ(counters.free_pages, counters.total_pages);
}

TEST_F(RuntimeTest, SamplingIsTheSameWhateverRunsBeside) {
  Runtime& runtime = open();
  TokenRequest request = request_of(kLaya, fake_prompt(20, 1), 60);
  request.sampling.temperature = 0.8;
  request.sampling.top_p = 0.95;
  request.sampling.seed = 77;
  request.logprobs = 3;
  const Answer alone = run(runtime, request);
  std::vector<Ticket> others;
  for (int i = 0; i < 6; ++i)
    others.push_back(runtime.submit(request_of(i % 2, fake_prompt(90, 50 + static_cast<std::uint64_t>(i)), 30)));
  const Answer beside = run(runtime, request);
  for (const Ticket ticket : others) EXPECT_EQ(runtime.wait(ticket).code, Code::ok);
  EXPECT_EQ(ids_of(alone), ids_of(beside));
  ASSERT_EQ(alone.tokens.size(), 60U);
  ASSERT_EQ(alone.tokens[5].best.size(), 3U);
  EXPECT_GE(alone.tokens[5].best[0].logprob, alone.tokens[5].best[1].logprob);
  request.sampling.seed = 78;
  EXPECT_NE(ids_of(run(runtime, request)), ids_of(alone));
}

// ---- O-16: when to stop, ids beyond the tokenizer ----

TEST_F(RuntimeTest, StopsOnAnyEndIdAndSaysWhich) {
  configure_ = [](FakeBackend& backend) {
    backend.script = [](int, const StepSequence& sequence) -> std::optional<std::int32_t> {
      return sequence.rules.draw == 3 ? sequence.rules.history[0] : 5;
    };
  };
  Runtime& runtime = open({}, {}, fake_models(fake_tokenizer(), {60, 61}));
  for (const std::int32_t end : {60, 61}) {
    const Answer answer = run(runtime, request_of(kLaya, {end, 1, 2}, 50));
    EXPECT_EQ(answer.finish, Finish::stop_token);
    EXPECT_EQ(answer.stop_id, end);
    EXPECT_EQ(ids_of(answer), (std::vector<std::int32_t>{5, 5, 5, end})) << "the end token is counted";
    EXPECT_EQ(answer.text, "fff") << "and is no text";
    TokenRequest ignoring = request_of(kLaya, {end, 1, 2}, 8);
    ignoring.ignore_end_tokens = true;
    const Answer whole = run(runtime, ignoring);
    EXPECT_EQ(whole.finish, Finish::length);
    EXPECT_EQ(whole.stop_id, -1);
    EXPECT_EQ(whole.tokens.size(), 8U);
  }
}

TEST_F(RuntimeTest, IdsBeyondTheVocabularyNeverAppear) {
  // The device's logits there are larger than all others.
  Runtime& runtime = open({.kv_tokens = 12000, .positions = 12000});
  TokenRequest request = request_of(kLaya, fake_prompt(4, 2), 10000);
  request.sampling.temperature = 5;
  const Answer answer = run(runtime, request);
  ASSERT_EQ(answer.tokens.size(), 10000U);
  for (const std::int32_t id : ids_of(answer)) ASSERT_LT(id, kFakeUsable);
}

TEST_F(RuntimeTest, ADeviceThatChoosesNonsenseFailsThatRequest) {
  configure_ = [](FakeBackend& backend) {
    backend.script = [](int model, const StepSequence&) -> std::optional<std::int32_t> {
      if (model == kKev) return kFakeUsable;
      return std::nullopt;
    };
  };
  Runtime& runtime = open();
  EXPECT_EQ(run(runtime, request_of(kKev, {1}, 5)).code, Code::internal);
  EXPECT_EQ(run(runtime, request_of(kLaya, {1}, 5)).code, Code::ok);
}

// ---- O-28: too long ----

TEST_F(RuntimeTest, WhatNeverFitsIsRefusedAtOnceWithBothNumbers) {
  Runtime& runtime = open({.kv_tokens = 64, .positions = 4096});  // kev: 4 pages of 16, laya: 4 pages of 32.
  ASSERT_EQ(plan_.models[kKev].max_context_tokens, 64);
  for (const auto& [prompt, answer_tokens, fits] :
       {std::tuple(63, 1, true), std::tuple(64, 1, false), std::tuple(48, 16, true), std::tuple(48, 17, false),
        std::tuple(1, 63, true), std::tuple(1, 64, false), std::tuple(65, 1, false), std::tuple(1000, 1, false)}) {
    const Ticket big = runtime.submit(request_of(kKev, fake_prompt(prompt, 1), answer_tokens));
    const Ticket behind = runtime.submit(request_of(kLaya, fake_prompt(5, 1), 3));
    const Answer answer = runtime.wait(big);
    if (fits) {
      EXPECT_EQ(answer.code, Code::ok) << answer.message;
      EXPECT_EQ(ids_of(answer), fake_answer(1, "", 1.0F, fake_prompt(prompt, 1), answer_tokens));
    } else {
      EXPECT_EQ(answer.code, Code::no_room);
      EXPECT_NE(answer.message.find("prompt has " + std::to_string(prompt) + " tokens"), std::string::npos);
      EXPECT_NE(answer.message.find("is 64 tokens"), std::string::npos) << answer.message;
      EXPECT_EQ(answer.finish, Finish::error);
    }
    EXPECT_EQ(runtime.wait(behind).code, Code::ok) << "requests behind it run";
  }
}

TEST_F(RuntimeTest, ThePositionsOfAModelAreALimitToo) {
  Runtime& runtime = open({.kv_tokens = 4096, .positions = 50});
  EXPECT_EQ(run(runtime, request_of(kLaya, fake_prompt(40, 1), 10)).code, Code::ok);
  const Answer answer = run(runtime, request_of(kLaya, fake_prompt(40, 1), 11));
  EXPECT_EQ(answer.code, Code::no_room);
  EXPECT_NE(answer.message.find("together 51"), std::string::npos) << answer.message;
  EXPECT_NE(answer.message.find("is 50 tokens"), std::string::npos) << answer.message;
}

TEST_F(RuntimeTest, RejectNamesTheLimitOfTheRequest) {
  Runtime& runtime = open();
  TokenRequest request = request_of(kLaya, fake_prompt(101, 1), 5);
  request.max_length_tokens = 100;
  const Answer answer = run(runtime, request);
  EXPECT_EQ(answer.code, Code::no_room);
  EXPECT_NE(answer.message.find("The prompt has 101 tokens and max_length_tokens is 100"), std::string::npos);
  request.max_length_tokens = 101;
  EXPECT_EQ(run(runtime, request).code, Code::ok);
}

TEST_F(RuntimeTest, TruncateKeepsBeginningAndEndAndSaysWhatWent) {
  Runtime& runtime = open();
  const auto prompt = fake_prompt(150, 9);
  TokenRequest request = request_of(kLaya, prompt, 12);
  request.max_length_tokens = 100;
  request.length_policy = LengthPolicy::truncate;
  const Answer answer = run(runtime, request);
  ASSERT_EQ(answer.code, Code::ok) << answer.message;
  EXPECT_EQ(answer.cut.removed_tokens, 50);
  EXPECT_EQ(answer.cut.first_removed, 25);
  std::vector<std::int32_t> kept(prompt.begin(), prompt.begin() + 25);
  kept.insert(kept.end(), prompt.begin() + 75, prompt.end());
  EXPECT_EQ(answer.prompt_ids, kept);
  EXPECT_EQ(ids_of(answer), fake_answer(0, "", 1.0F, kept, 12));

  request.prompt_ids.resize(100);
  const Answer whole = run(runtime, request);
  EXPECT_EQ(whole.cut.removed_tokens, 0);
  EXPECT_EQ(whole.prompt_ids.size(), 100U);
}

TEST_F(RuntimeTest, TruncateMakesRoomInTheContextToo) {
  Runtime& runtime = open({.kv_tokens = 64});
  TokenRequest request = request_of(kKev, fake_prompt(90, 1), 24);
  request.length_policy = LengthPolicy::truncate;
  const Answer answer = run(runtime, request);
  ASSERT_EQ(answer.code, Code::ok) << answer.message;
  EXPECT_EQ(answer.prompt_ids.size(), 40U);
  EXPECT_EQ(answer.cut.removed_tokens, 50);
  request.max_tokens = 64;
  EXPECT_EQ(run(runtime, request).code, Code::no_room) << "no prompt at all would be left";
}

TEST_F(RuntimeTest, SegmentAnswersPieceByPiece) {
  Runtime& runtime = open({}, {}, fake_models(fake_tokenizer()));
  const auto prompt = fake_prompt(130, 4);
  TokenRequest request = request_of(kKev, prompt, 6);
  request.max_length_tokens = 50;
  request.length_policy = LengthPolicy::segment;
  request.sampling = {.temperature = 0.9, .logit_bias = {}, .seed = 5};
  CollectingSink sink;
  const Answer answer = run(runtime, request, &sink);
  ASSERT_EQ(answer.code, Code::ok) << answer.message;
  EXPECT_EQ(answer.cut.segments, 3);
  EXPECT_EQ(answer.cut.removed_tokens, 0);
  EXPECT_EQ(answer.prompt_ids, prompt);

  std::string text;
  std::vector<std::int32_t> ids;
  for (const auto& [begin, end] : {std::pair(0, 50), std::pair(50, 100), std::pair(100, 130)}) {
    TokenRequest alone = request;
    alone.prompt_ids.assign(prompt.begin() + begin, prompt.begin() + end);
    const Answer piece = run(runtime, alone);
    EXPECT_EQ(piece.cut.segments, 1);
    text += (begin > 0 ? "\n" : "") + piece.text;
    const auto piece_ids = ids_of(piece);
    ids.insert(ids.end(), piece_ids.begin(), piece_ids.end());
  }
  EXPECT_EQ(answer.text, text);
  EXPECT_EQ(ids_of(answer), ids);
  EXPECT_EQ(sink.text(), text);
}

TEST_F(RuntimeTest, TwoThatFitSinglyButNotTogetherBothFinish) {
  Runtime& runtime = open({.kv_tokens = 128});  // kev: 8 pages.
  const auto first = fake_prompt(70, 1);
  const auto second = fake_prompt(75, 2);
  const Ticket a = runtime.submit(request_of(kKev, first, 50));
  const Ticket b = runtime.submit(request_of(kKev, second, 45));
  EXPECT_EQ(ids_of(runtime.wait(a)), fake_answer(1, "", 1.0F, first, 50));
  EXPECT_EQ(ids_of(runtime.wait(b)), fake_answer(1, "", 1.0F, second, 45));
}

// ---- running dry ----

TEST_F(RuntimeTest, PreemptedAnswersEqualUninterruptedOnes) {
  Runtime& runtime =
      open({.kv_tokens = 160, .max_sequences = 4});  // kev: 10 pages for 4 sequences that grow to 5 each.
  std::vector<Ticket> tickets;
  for (std::uint64_t i = 0; i < 12; ++i) {
    TokenRequest request = request_of(i % 3 == 0 ? kLaya : kKev, fake_prompt(20, i), 60);
    request.sampling = {.temperature = 0.7, .repetition_penalty = 1.1, .logit_bias = {}, .seed = i};
    tickets.push_back(runtime.submit(std::move(request)));
  }
  std::vector<Answer> crowded;
  for (const Ticket ticket : tickets) crowded.push_back(runtime.wait(ticket));
  EXPECT_GT(runtime.counters().recomputed_tokens, 0U) << "the test must preempt";
  for (std::uint64_t i = 0; i < 12; ++i) {
    ASSERT_EQ(crowded[i].code, Code::ok) << crowded[i].message;
    TokenRequest request = request_of(i % 3 == 0 ? kLaya : kKev, fake_prompt(20, i), 60);
    request.sampling = {.temperature = 0.7, .repetition_penalty = 1.1, .logit_bias = {}, .seed = i};
    EXPECT_EQ(ids_of(crowded[i]), ids_of(run(runtime, std::move(request)))) << i;
  }
  const Counters counters = runtime.counters();
  EXPECT_EQ(counters.free_pages, counters.total_pages);
}

TEST_F(RuntimeTest, TheLeastImportantIsPreempted) {
  // Ten pages; the important request needs eight in the end, each of the others four.
  Gate gate;
  configure_ = [&](FakeBackend& backend) { backend.before_step = [&](int, const StepSequence&) { gate.pass(); }; };
  Runtime& runtime = open({.kv_tokens = 160, .max_sequences = 3});
  TokenRequest low = request_of(kKev, fake_prompt(30, 1), 34);
  TokenRequest high = request_of(kKev, fake_prompt(30, 2), 98);
  high.priority = 1;
  const Ticket first = runtime.submit(low);
  gate.wait_for_arrivals(1);
  const Ticket second = runtime.submit(low);
  const Ticket important = runtime.submit(high);
  gate.open();
  const Answer answer = runtime.wait(important);
  EXPECT_EQ(ids_of(answer), fake_answer(1, "", 1.0F, high.prompt_ids, 98));
  EXPECT_EQ(ids_of(runtime.wait(first)), fake_answer(1, "", 1.0F, low.prompt_ids, 34));
  EXPECT_EQ(ids_of(runtime.wait(second)), fake_answer(1, "", 1.0F, low.prompt_ids, 34));
}

TEST_F(RuntimeTest, PolicyClearKeepsNothingOverASwitch) {
  Runtime& runtime = open({}, {.kv_policy = KvPolicy::clear});
  const auto prompt = fake_prompt(100, 3);
  const auto want_laya = fake_answer(0, "", 1.0F, prompt, 10);
  EXPECT_EQ(ids_of(run(runtime, request_of(kLaya, prompt, 10))), want_laya);
  const Answer again = run(runtime, request_of(kLaya, prompt, 10));
  EXPECT_EQ(again.cached_tokens, 96) << "no switch, no clearing";
  EXPECT_EQ(ids_of(run(runtime, request_of(kKev, prompt, 10))), fake_answer(1, "", 1.0F, prompt, 10));
  const Answer after = run(runtime, request_of(kLaya, prompt, 10));
  EXPECT_EQ(after.cached_tokens, 0);
  EXPECT_EQ(ids_of(after), want_laya);
  EXPECT_EQ(runtime.counters().switches, 2U);

  std::vector<Ticket> tickets;
  for (int i = 0; i < 20; ++i) tickets.push_back(runtime.submit(request_of(i % 2, fake_prompt(40, 1), 30)));
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(ids_of(runtime.wait(tickets[static_cast<std::size_t>(i)])),
              fake_answer(i % 2, "", 1.0F, fake_prompt(40, 1), 30));
}

}  // namespace
}  // namespace duet::test
