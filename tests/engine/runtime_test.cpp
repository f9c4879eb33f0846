#include "engine/runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "duet/error.h"
#include "tests/support/fake_backend.h"

namespace duet::test {
namespace {

std::vector<std::int32_t> ids_of(const Answer& answer) {
  std::vector<std::int32_t> ids;
  for (const GeneratedToken& token : answer.tokens) ids.push_back(token.id);
  return ids;
}

TokenRequest request_of(int model, std::vector<std::int32_t> prompt, int max_tokens) {
  TokenRequest request;
  request.model = model;
  request.prompt_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  request.max_length_tokens = 100000;
  return request;
}

Answer run(Runtime& runtime, TokenRequest request, TokenSink* sink = nullptr) {
  return runtime.wait(runtime.submit(std::move(request), sink));
}

class CollectingSink : public TokenSink {
 public:
  void on_text(std::string_view text) override {
    const std::lock_guard lock(mutex_);
    text_ += text;
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

/// Lets the worker through one step at a time, or freely.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || let_through_ > 0; });
    --let_through_;
  }
  void wait_for_arrivals(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  void let_through(int count) {
    const std::lock_guard lock(mutex_);
    let_through_ += count;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0, let_through_ = 0;
  bool open_ = false;
};

class RuntimeTest : public testing::Test {
 protected:
  Runtime& open(const FakeSetup& setup = {}, const RuntimeOptions& options = {},
                std::vector<RuntimeModel> models = fake_models()) {
    plan_ = fake_plan(setup);
    backend_ = std::make_unique<FakeBackend>(plan_);
    if (configure_) configure_(*backend_);
    runtime_ = std::make_unique<Runtime>(*backend_, plan_, std::move(models), options);
    return *runtime_;
  }

  std::function<void(FakeBackend&)> configure_;
  Plan plan_;
  std::unique_ptr<FakeBackend> backend_;
  std::unique_ptr<Runtime> runtime_;
};

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
  EXPECT_EQ(run(runtime, request_of(kLaya, fake_prompt(40, 1), 11)).code, Code::no_room);
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

// ---- O-31: non-finite numbers, senseless settings ----

TEST_F(RuntimeTest, NonFiniteNumbersFailThatRequestAlone) {
  configure_ = [](FakeBackend& backend) {
    backend.bad_layer = [](int model, const StepSequence& sequence) -> std::optional<int> {
      if (model != kKev) return std::nullopt;
      const std::int32_t kind = sequence.first_position == 0 && sequence.tokens[0] == 70 ? 70
                                : sequence.sample                                        ? sequence.rules.history[0]
                                                                                         : 0;
      if (kind == 70) return kLayerEmbedding;
      if (kind == 71 && sequence.rules.draw == 4) return 1;
      if (kind == 72) return 3;
      return std::nullopt;
    };
  };
  Runtime& runtime = open();
  runtime.load_adapter(kKev, "stern", FakeAdapter("content"), 1.0);
  const Ticket beside = runtime.submit(request_of(kLaya, fake_prompt(10, 1), 200));
  const Ticket same_model = runtime.submit(request_of(kKev, fake_prompt(10, 5), 100));

  const auto failed = [&](std::int32_t kind) {
    TokenRequest request = request_of(kKev, {kind, 1, 2, 3}, 20);
    request.adapter = "stern";
    Answer answer = run(runtime, std::move(request));
    EXPECT_EQ(answer.code, Code::non_finite);
    EXPECT_EQ(answer.finish, Finish::error);
    EXPECT_NE(answer.message.find("Model \"kev\" with adapter \"stern\""), std::string::npos) << answer.message;
    return answer;
  };
  EXPECT_NE(failed(70).message.find("first in the embedding, at step 1 "), std::string::npos);
  const Answer later = failed(71);
  EXPECT_NE(later.message.find("first in layer 1, at step 5 "), std::string::npos) << later.message;
  EXPECT_EQ(later.tokens.size(), 4U) << "what was there is kept";
  EXPECT_NE(failed(72).message.find("first in the final norm and head, at step 1 "), std::string::npos);

  EXPECT_EQ(ids_of(runtime.wait(beside)), fake_answer(0, "", 1.0F, fake_prompt(10, 1), 200));
  EXPECT_EQ(ids_of(runtime.wait(same_model)), fake_answer(1, "", 1.0F, fake_prompt(10, 5), 100));
  EXPECT_EQ(runtime.counters().failed, 3U);
  EXPECT_EQ(runtime.counters().free_pages, runtime.counters().total_pages);
}

TEST_F(RuntimeTest, NonFiniteLogitsFailWhereverTheyAre) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  configure_ = [](FakeBackend& backend) {
    backend.change_logits = [](int, const StepSequence& sequence, std::span<float> logits) {
      const std::int32_t kind = sequence.rules.history[0];
      if (kind == 1) logits[0] = kNan;
      if (kind == 2) logits[40] = kNan;
      if (kind == 3) logits[kFakeUsable - 1] = kInfinity;
      if (kind == 4) std::fill(logits.begin(), logits.end(), -kInfinity);
      if (kind == 5) logits[kFakeUsable] = kNan;
    };
  };
  Runtime& runtime = open();
  for (const std::int32_t kind : {1, 2, 3, 4}) {
    const Answer answer = run(runtime, request_of(kLaya, {kind}, 4));
    EXPECT_EQ(answer.code, Code::non_finite) << kind;
    EXPECT_TRUE(answer.tokens.empty());
  }
  EXPECT_EQ(run(runtime, request_of(kLaya, {5}, 4)).code, Code::ok) << "padding is nobody's business";
}

TEST_F(RuntimeTest, ANonFiniteStepLeavesNothingToReuse) {
  std::atomic<bool> bad = true;
  configure_ = [&](FakeBackend& backend) {
    backend.bad_layer = [&](int, const StepSequence& sequence) -> std::optional<int> {
      if (bad && sequence.first_position >= 48) return 2;
      return std::nullopt;
    };
  };
  Runtime& runtime = open();
  const auto prompt = fake_prompt(120, 8);
  EXPECT_EQ(run(runtime, request_of(kKev, prompt, 5)).code, Code::non_finite);
  bad = false;
  const Answer answer = run(runtime, request_of(kKev, prompt, 5));
  EXPECT_EQ(answer.cached_tokens, 48);
  EXPECT_EQ(ids_of(answer), fake_answer(1, "", 1.0F, prompt, 5));
}

TEST_F(RuntimeTest, SenselessRequestsAreAnsweredWithASentence) {
  Runtime& runtime = open({}, {}, fake_models(fake_tokenizer()));
  const auto refused = [&](const std::function<void(TokenRequest&)>& spoil, Code code = Code::invalid_argument) {
    TokenRequest request = request_of(kLaya, {1, 2, 3}, 5);
    spoil(request);
    const Answer answer = run(runtime, request);
    EXPECT_EQ(answer.code, code) << answer.message;
    EXPECT_FALSE(answer.message.empty());
    EXPECT_EQ(answer.finish, Finish::error);
  };
  refused([](TokenRequest& r) { r.prompt_ids.clear(); });
  refused([](TokenRequest& r) { r.prompt_ids[1] = -1; });
  refused([](TokenRequest& r) { r.prompt_ids[1] = kFakeVocabulary; });
  refused([](TokenRequest& r) { r.max_tokens = 0; });
  refused([](TokenRequest& r) { r.max_tokens = -1; });
  refused([](TokenRequest& r) { r.max_tokens = std::numeric_limits<int>::max(); }, Code::no_room);
  refused([](TokenRequest& r) { r.max_length_tokens = 0; });
  refused([](TokenRequest& r) { r.logprobs = 21; });
  refused([](TokenRequest& r) { r.logprobs = -1; });
  refused([](TokenRequest& r) { r.stop = {"a", ""}; });
  refused([](TokenRequest& r) { r.sampling.temperature = -1; });
  refused([](TokenRequest& r) { r.sampling.top_p = 1.5; });
  refused([](TokenRequest& r) { r.deadline = -1; });
  refused([](TokenRequest& r) { r.deadline = std::nan(""); });
  refused([](TokenRequest& r) { r.adapter_scale = std::nan(""); });
  refused([](TokenRequest& r) { r.model = 3; }, Code::not_found);
  refused([](TokenRequest& r) { r.model = -1; }, Code::not_found);
  refused([](TokenRequest& r) { r.adapter = "nobody"; }, Code::not_found);
  EXPECT_EQ(runtime.counters().failed, 18U);
  EXPECT_EQ(run(runtime, request_of(kLaya, {1, 2, 3}, 5)).code, Code::ok);
}

TEST_F(RuntimeTest, AFailureOfTheDeviceIsThatRequestsAlone) {
  configure_ = [](FakeBackend& backend) {
    backend.before_step = [](int, const StepSequence& sequence) {
      if (sequence.sample && sequence.rules.history[0] == 70 && sequence.rules.draw == 3)
        throw Error(Code::device, "The card fell off the bus", "Reseat it");
    };
  };
  Runtime& runtime = open();
  std::vector<Ticket> tickets;
  for (const std::int32_t first : {1, 70, 2}) tickets.push_back(runtime.submit(request_of(kLaya, {first, 9}, 30)));
  EXPECT_EQ(ids_of(runtime.wait(tickets[0])), fake_answer(0, "", 1.0F, {1, 9}, 30));
  const Answer failed = runtime.wait(tickets[1]);
  EXPECT_EQ(failed.code, Code::device);
  EXPECT_EQ(failed.message, "The card fell off the bus. Reseat it.");
  EXPECT_EQ(failed.tokens.size(), 3U);
  EXPECT_EQ(ids_of(runtime.wait(tickets[2])), fake_answer(0, "", 1.0F, {2, 9}, 30));
  EXPECT_EQ(runtime.counters().free_pages, runtime.counters().total_pages);
}

// ---- O-32: stop strings, text ----

TEST_F(RuntimeTest, StopStringsOverTokenBorders) {
  struct Case {
    std::vector<std::string> tokens, stops;
    std::string text;
    Finish finish;
    std::size_t token_count;
  };
  const std::vector<Case> cases = {
      {{"Hi", "\nUser", ":", "x"}, {"\nUser:"}, "Hi", Finish::stop_string, 3},
      {{"go sto", "p!", "x", "x"}, {"stop"}, "go ", Finish::stop_string, 2},
      {{"\nUse", "d car", "!", "."}, {"\nUser:"}, "\nUsed car!.", Finish::length, 4},
      {{"xa", "b", "c", "dy"}, {"abcd"}, "x", Finish::stop_string, 4},
      {{"Hi\nUser", ":", "x", "x"}, {"User:", "\nUser:"}, "Hi", Finish::stop_string, 2},
      {{"a", "<0xC3>", "<0xA9>", "b"}, {"\xC3\xA9"}, "a", Finish::stop_string, 3},
      {{"a", "<0xC3>", "<0xA8>", "b"},
       {"\xC3\xA9"},
       "a\xC3\xA8"
       "b",
       Finish::length,
       4},
      {{"a", "b", "c", "sto"}, {"stop"}, "abcsto", Finish::length, 4},
      {{"a", "b", "c", "<0xC3>"}, {"c\xEF\xBF\xBD"}, "ab", Finish::stop_string, 4},
  };
  for (const Case& each : cases) {
    std::vector<std::pair<std::int32_t, std::string>> texts;
    std::vector<std::int32_t> script;
    for (const std::string& token : each.tokens) {
      const auto known =
          std::find_if(texts.begin(), texts.end(), [&](const auto& entry) { return entry.second == token; });
      if (token.size() == 1 && std::isalpha(static_cast<unsigned char>(token[0])) != 0) {
        script.push_back(token[0] - 'a');
      } else if (known != texts.end()) {
        script.push_back(known->first);
      } else {
        texts.emplace_back(30 + static_cast<std::int32_t>(texts.size()), token);
        script.push_back(texts.back().first);
      }
    }
    configure_ = [&](FakeBackend& backend) {
      backend.script = [script](int, const StepSequence& sequence) -> std::optional<std::int32_t> {
        return script[sequence.rules.draw];
      };
    };
    Runtime& runtime = open({}, {}, fake_models(fake_tokenizer(texts)));
    TokenRequest request = request_of(kLaya, {1}, 4);
    request.stop = each.stops;
    CollectingSink sink;
    const Answer answer = run(runtime, request, &sink);
    ASSERT_EQ(answer.code, Code::ok) << answer.message;
    EXPECT_EQ(answer.text, each.text);
    EXPECT_EQ(sink.text(), each.text) << "streamed equals whole";
    EXPECT_EQ(answer.finish, each.finish) << each.text;
    EXPECT_EQ(answer.tokens.size(), each.token_count) << each.text;
    runtime_.reset();
  }
}

TEST_F(RuntimeTest, ASinkThatThrowsFailsItsRequestAlone) {
  class Thrower : public TokenSink {
   public:
    void on_text(std::string_view) override { throw std::runtime_error("the pipe is closed"); }
  };
  Runtime& runtime = open({}, {}, fake_models(fake_tokenizer()));
  Thrower sink;
  const Answer answer = run(runtime, request_of(kLaya, {1}, 10), &sink);
  EXPECT_EQ(answer.code, Code::internal);
  EXPECT_NE(answer.message.find("the pipe is closed"), std::string::npos);
  EXPECT_EQ(run(runtime, request_of(kLaya, {1}, 10)).tokens.size(), 10U);
}

// ---- O-29, deadlines: leaving early ----

TEST_F(RuntimeTest, CancelTakesEffectWithinAStepWhereverTheRequestIs) {
  Gate gate;
  std::atomic<int> steps = 0;
  configure_ = [&](FakeBackend& backend) {
    backend.before_step = [&](int, const StepSequence&) {
      ++steps;
      gate.pass();
    };
  };
  Runtime& runtime = open({.max_sequences = 1});
  const Ticket decoding = runtime.submit(request_of(kLaya, fake_prompt(10, 1), 500));
  const Ticket queued = runtime.submit(request_of(kKev, fake_prompt(200, 1), 500));
  const Ticket later = runtime.submit(request_of(kKev, fake_prompt(200, 2), 500));
  gate.let_through(4);
  gate.wait_for_arrivals(5);  // The fifth step, a decode, is in progress.
  EXPECT_TRUE(runtime.cancel(queued));
  EXPECT_TRUE(runtime.cancel(decoding));
  gate.let_through(1);
  const Answer in_decode = runtime.wait(decoding);
  EXPECT_EQ(in_decode.code, Code::cancelled);
  EXPECT_EQ(in_decode.finish, Finish::cancelled);
  EXPECT_LE(in_decode.tokens.size(), 5U);
  EXPECT_GE(in_decode.tokens.size(), 4U);
  const Answer in_queue = runtime.wait(queued);
  EXPECT_EQ(in_queue.code, Code::cancelled);
  EXPECT_TRUE(in_queue.tokens.empty());
  EXPECT_FALSE(runtime.cancel(decoding)) << "it has ended";

  gate.wait_for_arrivals(6);  // The other one's first chunk of nine.
  EXPECT_TRUE(runtime.cancel(later));
  gate.open();
  EXPECT_EQ(runtime.wait(later).code, Code::cancelled);
  EXPECT_LE(steps, 7);
  const Counters counters = runtime.counters();
  EXPECT_EQ(counters.cancelled, 3U);
  EXPECT_EQ(counters.active_sequences, 0);
  EXPECT_EQ(counters.waiting, 0);
  EXPECT_EQ(counters.free_pages, counters.total_pages);
}

TEST_F(RuntimeTest, DeadlinesEndRequestsInQueueAndInDecode) {
  Gate gate;
  configure_ = [&](FakeBackend& backend) { backend.before_step = [&](int, const StepSequence&) { gate.pass(); }; };
  Runtime& runtime = open({.max_sequences = 1}, {}, fake_models(fake_tokenizer()));
  TokenRequest request = request_of(kLaya, fake_prompt(10, 1), 900);
  request.deadline = 0.2;
  const Ticket running = runtime.submit(request);
  const Ticket waiting = runtime.submit(request);
  const Ticket free = runtime.submit(request_of(kKev, fake_prompt(10, 1), 5));
  gate.let_through(3);
  gate.wait_for_arrivals(4);
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  gate.open();
  const Answer late = runtime.wait(running);
  EXPECT_EQ(late.code, Code::deadline);
  EXPECT_EQ(late.finish, Finish::deadline);
  EXPECT_EQ(late.tokens.size(), 4U);
  EXPECT_FALSE(late.text.empty()) << "what was there is kept";
  EXPECT_GE(late.timings.total, 0.2);
  EXPECT_EQ(runtime.wait(waiting).code, Code::deadline);
  EXPECT_EQ(runtime.wait(free).code, Code::ok);
}

TEST_F(RuntimeTest, TicketsAreWaitedForOnceAndClosingEndsEverything) {
  Runtime& runtime = open();
  const Ticket ticket = runtime.submit(request_of(kLaya, {1}, 3));
  EXPECT_EQ(runtime.wait(ticket).code, Code::ok);
  EXPECT_EQ(runtime.wait(ticket).code, Code::invalid_argument);
  EXPECT_EQ(runtime.wait(987).code, Code::invalid_argument);
  EXPECT_FALSE(runtime.cancel(987));

  Answer failed;
  failed.code = Code::not_found;
  EXPECT_EQ(runtime.wait(runtime.submit_failed(failed)).code, Code::not_found);

  for (int i = 0; i < 10; ++i) runtime.submit(request_of(i % 2, fake_prompt(100, 1), 900));
  runtime_.reset();  // Nobody waits for these.
}

TEST_F(RuntimeTest, AWaiterLearnsThatTheRuntimeCloses) {
  Gate gate;
  configure_ = [&](FakeBackend& backend) { backend.before_step = [&](int, const StepSequence&) { gate.pass(); }; };
  Runtime& runtime = open();
  const Ticket ticket = runtime.submit(request_of(kLaya, fake_prompt(10, 1), 900));
  gate.wait_for_arrivals(1);
  Answer answer;
  std::atomic<bool> waits = false;
  std::thread waiter([&] {
    waits = true;
    answer = runtime.wait(ticket);
  });
  while (!waits) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
  });
  runtime_.reset();
  waiter.join();
  opener.join();
  EXPECT_EQ(answer.code, Code::cancelled);
}

// ---- turns ----

TEST_F(RuntimeTest, AShortRequestDoesNotWaitForALongAnswerOfTheOtherModel) {
  // With eight steps a turn, laya's four tokens are there long before kev's four hundred.
  Gate gate;
  configure_ = [&](FakeBackend& backend) { backend.before_step = [&](int, const StepSequence&) { gate.pass(); }; };
  Runtime& runtime = open();
  const Ticket slow = runtime.submit(request_of(kKev, fake_prompt(10, 1), 400));
  gate.wait_for_arrivals(1);
  const Ticket fast = runtime.submit(request_of(kLaya, fake_prompt(10, 1), 4));
  gate.let_through(20);
  EXPECT_EQ(runtime.wait(fast).code, Code::ok);
  EXPECT_TRUE(runtime.cancel(slow));
  gate.open();
  const Answer cut_off = runtime.wait(slow);
  EXPECT_LE(cut_off.tokens.size(), 20U);
  EXPECT_GE(runtime.counters().switches, 1U);
}

TEST_F(RuntimeTest, ALonelyRequestStartsWithinTheBound) {
  // O-30: four clients in a loop on laya, one request for kev; and the mirror image.
  for (const int busy : {kLaya, kKev}) {
    Runtime& runtime = open({.max_sequences = 1}, {.max_passed_over = 8});
    std::atomic<bool> stop = false;
    std::vector<std::thread> clients;
    for (std::uint64_t client = 0; client < 4; ++client)
      clients.emplace_back([&, client] {
        while (!stop) run(runtime, request_of(busy, fake_prompt(5, client), 3));
      });
    for (std::uint64_t i = 0; i < 10; ++i)
      EXPECT_EQ(run(runtime, request_of(1 - busy, fake_prompt(5, i), 3)).code, Code::ok);
    stop = true;
    for (std::thread& client : clients) client.join();
    EXPECT_LE(runtime.counters().most_passed_over, 8);
    runtime_.reset();
  }
}

}  // namespace
}  // namespace duet::test
