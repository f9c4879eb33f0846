#include <gtest/gtest.h>

#include "duet/engine.h"
#include "tests/support/compare.h"
#include "tests/support/test_data.h"

// Pages computed for one adapter are never used for another (O-05), and a real trained model through the public
// interface.
namespace duet::test {
namespace {

constexpr int kPromptTokens = 100;  // At least three pages of the tiny model.

std::string golden(const std::string& name) { return (golden_directory() / name).string(); }

Options two_adapters(std::int64_t kv_tokens) {
  Options options;
  options.models = {{.name = "m",
                     .path = golden("models/qwen2"),
                     .adapters = {{.name = "a", .path = golden("adapters/qwen2/all_r16")},
                                  {.name = "b", .path = golden("adapters/qwen2/some_r4")}}}};
  options.device = Device::host;
  options.kv_tokens = kv_tokens;
  options.threads = 1;
  return options;
}

Request request_of(const std::string& adapter, double scale, int first_id = 3) {
  Request request;
  request.model = "m";
  request.adapter = adapter;
  request.adapter_scale = scale;
  for (int i = 0; i < kPromptTokens; ++i) request.prompt_ids.push_back(first_id + (i * 7) % 200);
  request.max_tokens = 4;
  request.ignore_end_tokens = true;
  request.logprobs = 5;
  return request;
}

std::vector<float> numbers_of(const Answer& answer) {
  std::vector<float> numbers;
  for (const GeneratedToken& token : answer.tokens)
    for (const TokenLogprob& best : token.best) {
      numbers.push_back(static_cast<float>(best.id));
      numbers.push_back(best.logprob);
    }
  return numbers;
}

struct Kind {
  std::string adapter;
  double scale;
};

TEST(PrefixReuse, PagesBelongToModelAdapterContentScaleAndTokens) {
  const std::vector<Kind> kinds = {{"a", 1}, {"b", 1}, {"none", 1}, {"a", 0.5}};
  std::vector<std::vector<float>> cold;
  for (const Kind& kind : kinds) {
    Engine engine = Engine::open(two_adapters(1024));
    const Answer answer = engine.run(request_of(kind.adapter, kind.scale));
    ASSERT_EQ(answer.code, Code::ok) << answer.message;
    cold.push_back(numbers_of(answer));
  }
  for (const std::int64_t kv_tokens :
       {1024, 160}) {  // The smaller pool holds one prompt: pages are evicted all the time.
    Engine engine = Engine::open(two_adapters(kv_tokens));
    for (int round = 0; round < 2; ++round)
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        const Answer answer = engine.run(request_of(kinds[i].adapter, kinds[i].scale));
        ASSERT_EQ(answer.code, Code::ok) << answer.message;
        EXPECT_TRUE(same_bits(numbers_of(answer), cold[i])) << kinds[i].adapter << " at " << kinds[i].scale;
        if (round == 0) {
          EXPECT_EQ(answer.cached_tokens, 0) << kinds[i].adapter << " at " << kinds[i].scale;
        }
        if (round == 1 && kv_tokens == 1024) {
          EXPECT_GE(answer.cached_tokens, 48);
        }
      }
  }
}

TEST(PrefixReuse, AReloadedNameWithOtherContentReusesNothing) {
  Options options = two_adapters(1024);
  options.models[0].adapters.pop_back();
  Engine engine = Engine::open(options);
  ASSERT_EQ(engine.run(request_of("a", 1)).code, Code::ok);
  engine.drop_adapter("m", "a");
  engine.load_adapter("m", {.name = "a", .path = golden("adapters/qwen2/some_r4")});
  const Answer other = engine.run(request_of("a", 1));
  EXPECT_EQ(other.cached_tokens, 0);
  Engine fresh = Engine::open(two_adapters(1024));
  EXPECT_TRUE(same_bits(numbers_of(other), numbers_of(fresh.run(request_of("b", 1)))));
}

TEST(Stories, TheTrainedModelTellsItsKnownStory) {
  const auto data = shared_data_directory();
  if (!data) GTEST_SKIP() << "the third-party test data is not here (DUET_SHARED_DATA)";
  Options options;
  options.models = {{.name = "stories", .path = (*data / "stories260k").string()}};
  options.device = Device::host;
  options.kv_tokens = 512;
  Engine engine = Engine::open(options);
  Request request;
  request.model = "stories";
  request.prompt = "Once upon a time";
  request.max_tokens = 100;
  const Answer answer = engine.run(request);
  ASSERT_EQ(answer.code, Code::ok) << answer.message;
  EXPECT_EQ(answer.prompt_ids, (std::vector<std::int32_t>{1, 403, 407, 261, 378}));
  EXPECT_TRUE(answer.text.starts_with(
      ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
      "big, red ball. She wanted to play with it, but it was too high."))
      << answer.text;
}

}  // namespace
}  // namespace duet::test
