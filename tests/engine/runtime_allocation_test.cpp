#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <new>
#include <vector>

#include "engine/runtime.h"
#include "tests/support/fake_backend.h"

/// Counts every allocation of each thread, in this program only.
namespace {
thread_local std::uint64_t allocations_of_this_thread = 0;
}

void* operator new(std::size_t size) {
  ++allocations_of_this_thread;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace duet::test {
namespace {

/// Allocations of the worker's thread so far, at the beginning of the step for each generated token.
struct StepAllocations {
  std::vector<std::uint64_t> at_token = std::vector<std::uint64_t>(2000, 0);

  void record(const StepSequence& sequence) {
    if (sequence.sample) at_token.at(sequence.rules.draw) = allocations_of_this_thread;
  }
};

TEST(Allocations, ADecodeStepMakesNone) {
  const Plan plan = fake_plan({.kv_tokens = 4096});
  FakeBackend backend(plan);
  StepAllocations seen;
  backend.before_step = [&](int, const StepSequence& sequence) { seen.record(sequence); };
  Runtime runtime(backend, plan, fake_models(), {});
  TokenRequest request;
  request.model = kKev;
  request.prompt_ids = fake_prompt(100, 1);
  request.max_tokens = 1000;
  request.sampling.temperature = 0.8;
  request.sampling.top_p = 0.9;
  request.sampling.repetition_penalty = 1.1;
  request.logprobs = 5;
  const Answer answer = runtime.wait(runtime.submit(request));
  ASSERT_EQ(answer.tokens.size(), 1000U);
  // From the first decode step to the last, over 56 page borders and what is remembered of them.
  EXPECT_EQ(seen.at_token[999] - seen.at_token[1], 0U);
}

TEST(Allocations, ABatchOfSeveralModelsInTurnsMakesNone) {
  const Plan plan = fake_plan({.kv_tokens = 8192});
  FakeBackend backend(plan);
  StepAllocations seen;
  std::promise<void> all_submitted;  // Submitting allocates, and is not what is counted.
  backend.before_step = [&, submitted = all_submitted.get_future().share()](int model, const StepSequence& sequence) {
    submitted.wait();
    if (model == kLaya && sequence.rules.history.size() > 0 && sequence.rules.history[0] == 7) seen.record(sequence);
  };
  Runtime runtime(backend, plan, fake_models(), {});
  std::vector<Ticket> tickets;
  for (int i = 0; i < 4; ++i) {
    TokenRequest request;
    request.model = i % 2;
    request.prompt_ids = fake_prompt(50, static_cast<std::uint64_t>(i));
    request.prompt_ids[0] = i == 0 ? 7 : 8;
    request.max_tokens = 1000;
    tickets.push_back(runtime.submit(request));
  }
  all_submitted.set_value();
  for (const Ticket ticket : tickets) ASSERT_EQ(runtime.wait(ticket).tokens.size(), 1000U);
  EXPECT_GT(runtime.counters().switches, 100U);
  EXPECT_EQ(seen.at_token[900] - seen.at_token[100], 0U);
}

TEST(Allocations, TextCostsAtMostTheGrowthOfTheAnswer) {
  const Plan plan = fake_plan({.kv_tokens = 4096});
  FakeBackend backend(plan);
  StepAllocations seen;
  backend.before_step = [&](int, const StepSequence& sequence) { seen.record(sequence); };
  Runtime runtime(backend, plan, fake_models(fake_tokenizer()), {});
  TokenRequest request;
  request.model = kKev;
  request.prompt_ids = fake_prompt(10, 1);
  request.max_tokens = 1000;
  request.stop.emplace_back("never said");
  request.stop.emplace_back("<x>");
  const Answer answer = runtime.wait(runtime.submit(request));
  ASSERT_EQ(answer.tokens.size(), 1000U);
  ASSERT_GT(answer.text.size(), 1000U);
  RecordProperty("allocations_per_1000_tokens", static_cast<int>(seen.at_token[999] - seen.at_token[1]));
  // The answer's text doubles its room now and then: below 2 log2 of its length, and no allocation a token.
  EXPECT_LE(seen.at_token[999] - seen.at_token[1], 24U);
}

}  // namespace
}  // namespace duet::test
