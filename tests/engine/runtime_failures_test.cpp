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
