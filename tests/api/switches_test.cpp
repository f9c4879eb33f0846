#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <fstream>
#include <map>

#include "duet/engine.h"
#include "tests/support/test_data.h"

// O-27 on the host's own backend: a thousand switches between two models, with cancelled requests and adapters that
// come and go, leave answers, counters and memory as they were.
namespace duet::test {
namespace {

constexpr int kSwitches = 1000;
constexpr int kWarmUp = 300;

std::string golden(const std::string& name) { return (golden_directory() / name).string(); }

Engine open_pair(KvPolicy policy) {
  Options options;
  options.models = {{.name = "laya", .path = golden("models/qwen2"), .adapter_slots = 1, .adapter_rank = 16},
                    {.name = "kev", .path = golden("models/llama_gqa")}};
  options.device = Device::host;
  options.kv_policy = policy;
  options.kv_tokens = 256;
  options.threads = 1;
  return Engine::open(options);
}

Request request_of(int turn) {
  Request request;
  request.model = turn % 2 == 0 ? "laya" : "kev";
  request.prompt = "My card was charged twice";
  request.max_tokens = 8;
  request.ignore_end_tokens = true;
  request.logprobs = 3;
  return request;
}

/// Everything of an answer that must not depend on what ran before, to the last bit.
std::vector<std::uint32_t> bits_of(const Answer& answer) {
  std::vector<std::uint32_t> bits;
  for (const GeneratedToken& token : answer.tokens)
    for (const TokenLogprob& best : token.best) {
      bits.push_back(static_cast<std::uint32_t>(best.id));
      bits.push_back(std::bit_cast<std::uint32_t>(best.logprob));
    }
  for (const char byte : answer.text) bits.push_back(static_cast<unsigned char>(byte));
  return bits;
}

std::int64_t resident_bytes() {
  std::int64_t all_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> all_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

void leave_nothing_behind(KvPolicy policy) {
  Engine engine = open_pair(policy);
  const std::int64_t free_pages = engine.counters().free_pages;
  std::map<std::string, std::vector<std::uint32_t>> first;
  const auto expect_the_first_answer = [&](const Request& request) {
    const Answer answer = engine.run(request);
    ASSERT_EQ(answer.code, Code::ok) << answer.message;
    const std::vector<std::uint32_t> bits = bits_of(answer);
    ASSERT_EQ(bits, first.try_emplace(answer.model + "/" + answer.adapter, bits).first->second);
  };
  std::int64_t warm_bytes = 0;
  for (int turn = 0; turn <= kSwitches; ++turn) {
    SCOPED_TRACE(turn);
    Request request = request_of(turn);
    ASSERT_NO_FATAL_FAILURE(expect_the_first_answer(request));
    if (turn % 7 == 0) {
      const Ticket ticket = engine.submit(request);
      engine.cancel(ticket);
      engine.wait(ticket);
    }
    if (turn % 5 == 0) {
      engine.load_adapter("laya", {.name = "guest", .path = golden("adapters/qwen2/all_r16")});
      request.model = "laya";
      request.adapter = "guest";
      ASSERT_NO_FATAL_FAILURE(expect_the_first_answer(request));
      engine.drop_adapter("laya", "guest");
    }
    if (turn == kWarmUp) warm_bytes = resident_bytes();
  }
  [[maybe_unused]] const std::int64_t grown = resident_bytes() - warm_bytes;
  const Counters counters = engine.counters();
  EXPECT_EQ(first.size(), 3U);
  EXPECT_GE(counters.switches, std::uint64_t{kSwitches});
  EXPECT_EQ(counters.free_pages, free_pages);
  EXPECT_EQ(counters.active_sequences, 0);
  EXPECT_EQ(counters.waiting, 0);
#if !defined(__SANITIZE_ADDRESS__)  // It keeps for a while what is freed.
  EXPECT_LE(grown, 256 * 1024) << "over " << kSwitches - kWarmUp << " turns";
#endif
}

TEST(ThousandSwitches, LeaveAnswersAndHostMemoryAsTheyWereWithPolicyKeep) { leave_nothing_behind(KvPolicy::keep); }
TEST(ThousandSwitches, LeaveAnswersAndHostMemoryAsTheyWereWithPolicyClear) { leave_nothing_behind(KvPolicy::clear); }

}  // namespace
}  // namespace duet::test
