// The host backend against transformers' float32 logits on tiny checkpoints of every family (tests/golden).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "loaders/loaders.h"
#include "tests/host/host_runner.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/test_data.h"

namespace duet::test {
namespace {

class GoldenModels : public testing::TestWithParam<std::string> {};

TEST_P(GoldenModels, LogitsAndGreedyIdsEqualTransformers) {
  const std::string folder = "models/" + GetParam();
  const GoldenArrays golden(folder + "/expected.json");
  const auto source = loaders::open_checkpoint(golden_directory() / folder, {});
  HostRunner runner(*source, {.chunk_tokens = 48, .kv_tokens = 1024, .adapter_slots = 0});
  const auto width = static_cast<std::size_t>(source->spec().vocabulary);
  for (const GoldenPrompt& prompt : golden_prompts(golden.index())) {
    SCOPED_TRACE(prompt.name);
    const std::vector<float> all = runner.logits(prompt.ids, 48);
    std::vector<float> got;
    for (const std::int32_t position : prompt.positions) {
      const auto row = all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(position) * width);
      got.insert(got.end(), row, row + static_cast<std::ptrdiff_t>(width));
    }
    EXPECT_TRUE(all_within_relative(got, golden.floats("logits." + prompt.name), 2e-4));
    if (!prompt.greedy.empty()) {
      EXPECT_EQ(runner.greedy(prompt.ids, prompt.greedy.size()), prompt.greedy);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModels, testing::ValuesIn(golden_names("models")),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace duet::test
