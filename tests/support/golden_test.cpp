#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace duet::test {
namespace {

TEST(Golden, EveryFamilyHasFiniteLogitsOfTheStatedShape) {
  const auto names = golden_names("models");
  ASSERT_GE(names.size(), 30U);
  for (const std::string& name : names) {
    const GoldenArrays arrays("models/" + name + "/expected.json");
    for (const GoldenPrompt& prompt : golden_prompts(arrays.index())) {
      const auto shape = arrays.shape("logits." + prompt.name);
      const auto logits = arrays.floats("logits." + prompt.name);
      ASSERT_EQ(shape.size(), 2U) << name;
      EXPECT_EQ(shape[0], static_cast<std::int64_t>(prompt.positions.size())) << name;
      EXPECT_EQ(logits.size(), static_cast<std::size_t>(shape[0] * shape[1])) << name;
      for (const float value : logits) ASSERT_TRUE(std::isfinite(value)) << name;
    }
  }
}

TEST(Golden, TheGreedyAnswerStartsWithTheLargestLogit) {
  for (const std::string& name : golden_names("models")) {
    const GoldenArrays arrays("models/" + name + "/expected.json");
    for (const GoldenPrompt& prompt : golden_prompts(arrays.index())) {
      if (prompt.greedy.empty()) continue;
      const auto columns = static_cast<std::ptrdiff_t>(arrays.shape("logits." + prompt.name)[1]);
      const auto logits = arrays.floats("logits." + prompt.name);
      const auto best = std::max_element(logits.end() - columns, logits.end()) - (logits.end() - columns);
      EXPECT_EQ(best, prompt.greedy.front()) << name << ' ' << prompt.name;
    }
  }
}

TEST(Golden, EveryAdapterHasLogitsOfItsBaseAndOthers) {
  int adapters = 0;
  for (const std::string& base : golden_names("adapters")) {
    for (const std::string& name : golden_names("adapters/" + base)) {
      const GoldenArrays arrays("adapters/" + base + "/" + name + "/expected.json");
      EXPECT_EQ(arrays.index().at("base"), "models/" + base);
      EXPECT_EQ(arrays.shape("logits"), arrays.shape("base_logits")) << name;
      EXPECT_NE(arrays.floats("logits"), arrays.floats("base_logits")) << name;
      EXPECT_EQ(arrays.shape("logits")[0], static_cast<std::int64_t>(arrays.index().at("positions").size())) << name;
      ++adapters;
    }
  }
  EXPECT_EQ(adapters, 25);
}

TEST(Golden, RefusesAnArrayThatIsAbsentOrOfAnotherType) {
  const GoldenArrays arrays("models/qwen2/expected.json");
  EXPECT_THROW(arrays.floats("nothing"), std::runtime_error);
  EXPECT_THROW(arrays.integers("logits.one"), std::runtime_error);
}

}  // namespace
}  // namespace duet::test
