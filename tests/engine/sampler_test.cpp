#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/test_data.h"

namespace duet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Row {
  std::vector<float> logits = {};
  Sampling sampling = {};
  std::vector<std::int32_t> history = {};
  std::int32_t usable = -1;  // -1: all.
  int logprobs = 0;

  SampleRules rules(std::uint64_t draw = 0) const {
    return {.usable_vocabulary = usable < 0 ? static_cast<std::int32_t>(logits.size()) : usable,
            .sampling = &sampling,
            .history = history,
            .draw = draw,
            .logprobs = logprobs};
  }
  SampleResult run(std::uint64_t draw = 0) const {
    std::vector<float> scratch(sample_scratch_floats(static_cast<std::int64_t>(logits.size())));
    return sample(logits, rules(draw), scratch);
  }
  std::vector<double> distribution() const {
    std::vector<float> scratch(sample_scratch_floats(static_cast<std::int64_t>(logits.size())));
    std::vector<double> probabilities(logits.size(), -1);
    EXPECT_TRUE(distribution_of(logits, rules(), scratch, probabilities));
    return probabilities;
  }
  std::set<int> support() const {
    std::set<int> ids;
    const std::vector<double> probabilities = distribution();
    for (std::size_t id = 0; id < probabilities.size(); ++id)
      if (probabilities[id] > 0) ids.insert(static_cast<int>(id));
    return ids;
  }
};

// Logits whose softmax is `probabilities`.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits = {};
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// The known-answer vectors published with Random123 (kat_vectors: "philox4x32 10").
TEST(Philox, GivesTheKnownAnswers) {
  using Four = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformNumbersAreInRangeAndEven) {
  constexpr int kDraws = 100000;
  std::array<int, 10> bins{};
  double sum = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    const double u = uniform_of(7, static_cast<std::uint64_t>(draw));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    ++bins[static_cast<std::size_t>(u * 10)];
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  for (const int bin : bins) EXPECT_NEAR(bin, kDraws / 10, 5 * std::sqrt(kDraws * 0.09));
  // First output of counter 0 under key 0, as above: 53 bits of 0x6627e8d5'e169c58d.
  EXPECT_EQ(uniform_of(0, 0),
            static_cast<double>((std::uint64_t{0x6627e8d5} >> 5 << 26) | (0xe169c58d >> 6)) * 0x1p-53);
  EXPECT_NE(uniform_of(1, 0), uniform_of(0, 1));
}

TEST(Sampler, GreedyTakesTheLargestAndTiesGoToTheLowestId) {
  EXPECT_EQ((Row{.logits = {1, 3, 2}}.run().id), 1);
  EXPECT_EQ((Row{.logits = {1, 3, 3, 3}}.run().id), 1);
  EXPECT_EQ((Row{.logits = {-5, -5}}.run().id), 0);
}

TEST(Sampler, ATemperatureNearZeroIsGreedy) {
  for (const double temperature : {1e-8, 1e-300, 0.0}) {
    const Row row{.logits = {1, 2}, .sampling = {.temperature = temperature}};
    for (std::uint64_t draw = 0; draw < 10000; ++draw) ASSERT_EQ(row.run(draw).id, 1) << temperature;
  }
}

TEST(Sampler, AHugeTemperatureIsUniform) {
  const Row row{.logits = {1, 2000, -3, 4}, .sampling = {.temperature = 1e30}};
  for (const double p : row.distribution()) EXPECT_NEAR(p, 0.25, 1e-6);
}

TEST(Sampler, NonFiniteRowsSaySo) {
  for (const std::size_t place : {0U, 1U, 2U}) {
    for (const float bad : {kNan, kInf}) {
      Row row{.logits = {1, 2, 3}};
      row.logits[place] = bad;
      EXPECT_FALSE(row.run().finite);
      EXPECT_EQ(row.run().id, -1);
      row.sampling.temperature = 1;
      EXPECT_FALSE(row.run().finite);
    }
  }
  EXPECT_FALSE((Row{.logits = {-kInf, -kInf}}.run().finite));
  EXPECT_FALSE((Row{.logits = {1, 2}, .usable = 0}.run().finite));
}

TEST(Sampler, AMaskedIdIsNeverDrawnNorListed) {
  Row row{.logits = {-kInf, 1, -kInf, -kInf}, .sampling = {.temperature = 1e30}, .logprobs = 4};
  for (std::uint64_t draw = 0; draw < 100; ++draw) {
    const SampleResult result = row.run(draw);
    ASSERT_EQ(result.id, 1);
    ASSERT_EQ(result.best_count, 1);
    ASSERT_EQ(result.logprob, 0.0F);
  }
}

TEST(Sampler, PaddedIdsAreNeverChosenNorListedNorCounted) {
  const Row row{.logits = {0, 0, 50, kNan}, .sampling = {.temperature = 1}, .usable = 2, .logprobs = 5};
  for (std::uint64_t draw = 0; draw < 200; ++draw) {
    const SampleResult result = row.run(draw);
    ASSERT_TRUE(result.finite);
    ASSERT_LT(result.id, 2);
    ASSERT_EQ(result.best_count, 2);
    ASSERT_NEAR(result.logprob, std::log(0.5), 1e-6);
  }
}

TEST(Sampler, LogprobsComeFromTheRawRowBestFirst) {
  Row row{.logits = logits_of({0.1, 0.2, 0.4, 0.2, 0.1}), .logprobs = 4};
  row.sampling = {.temperature = 0.01, .repetition_penalty = 1000, .logit_bias = {{4, 100}}};
  row.history = {2};
  const SampleResult result = row.run();
  EXPECT_EQ(result.id, 4);
  EXPECT_NEAR(result.logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(result.best_count, 4);
  const std::vector<int> ids = {2, 1, 3, 0};
  const std::vector<double> probabilities = {0.4, 0.2, 0.2, 0.1};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(result.best[i].id, ids[i]);
    EXPECT_NEAR(result.best[i].logprob, std::log(probabilities[i]), 1e-6);
  }
}

TEST(Sampler, LogprobsOfExtremeRowsStayFinite) {
  const SampleResult result = Row{.logits = {3e38F, -3e38F}, .logprobs = 2}.run();
  EXPECT_EQ(result.logprob, 0.0F);
  ASSERT_EQ(result.best_count, 2);
  EXPECT_EQ(result.best[1].logprob, -std::numeric_limits<float>::max());
  EXPECT_NEAR((Row{.logits = {1e4F, 1e4F}}.run().logprob), std::log(0.5), 1e-6);
}

TEST(Sampler, BiasComesBeforeThePenaltyAndThePenaltyCountsAnIdOnce) {
  // (2 + 2) / 2 = 2 for id 0; -1 * 2 = -2 for id 1; id 2 is untouched.
  Row row{.logits = {2, -1, 0}};
  row.history = {0, 1, 0, 0, 1};
  row.sampling.temperature = 1;
  row.sampling.repetition_penalty = 2;
  row.sampling.logit_bias.push_back({0, 2});
  const double total = std::exp(2.0) + std::exp(-2.0) + 1;
  const std::vector<double> probabilities = row.distribution();
  EXPECT_NEAR(probabilities[0], std::exp(2.0) / total, 1e-6);
  EXPECT_NEAR(probabilities[1], std::exp(-2.0) / total, 1e-6);
  EXPECT_NEAR(probabilities[2], 1 / total, 1e-6);
}

TEST(Sampler, HugeBiasesForceAndForbid) {
  Row row{.logits = {5, 1, 1}};
  row.sampling.temperature = 1;
  row.sampling.logit_bias.push_back({1, 1e9F});
  for (std::uint64_t draw = 0; draw < 100; ++draw) ASSERT_EQ(row.run(draw).id, 1);
  row.sampling.logit_bias = {{0, -1e9F}, {2, -1e9F}};
  for (std::uint64_t draw = 0; draw < 100; ++draw) ASSERT_EQ(row.run(draw).id, 1);
  row.sampling = {.temperature = 1e-5, .repetition_penalty = 1e-30, .logit_bias = {{2, 1e9F}}};
  row.history = {2};
  EXPECT_EQ(row.run().id, 2);
  row.sampling.temperature = 0;
  EXPECT_EQ(row.run().id, 2);
}

TEST(Sampler, HistoryOutsideTheVocabularyIsIgnored) {
  Row row{.logits = {1, 2}};
  row.sampling.repetition_penalty = 2;
  row.history = {-1, 2, 1000000};
  EXPECT_EQ(row.run().id, 1);
}

TEST(Sampler, TopKKeepsTheKLargestAndEveryTieOfTheLast) {
  const std::vector<float> logits = {1, 5, 3, 3, 2};
  EXPECT_EQ((Row{.logits = logits, .sampling = {.temperature = 1, .top_k = 1}}.support()), (std::set{1}));
  EXPECT_EQ((Row{.logits = logits, .sampling = {.temperature = 1, .top_k = 2}}.support()), (std::set{1, 2, 3}));
  EXPECT_EQ((Row{.logits = logits, .sampling = {.temperature = 1, .top_k = 4}}.support()), (std::set{1, 2, 3, 4}));
  EXPECT_EQ((Row{.logits = logits, .sampling = {.temperature = 1, .top_k = 1000}}.support()).size(), 5U);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> logits = logits_of({0.1, 0.5, 0.25, 0.15});
  const auto support = [&](double top_p) {
    return Row{.logits = logits, .sampling = {.temperature = 1, .top_p = top_p}}.support();
  };
  EXPECT_EQ(support(0), (std::set{1}));
  EXPECT_EQ(support(0.49), (std::set{1}));
  EXPECT_EQ(support(0.51), (std::set{1, 2}));
  EXPECT_EQ(support(0.76), (std::set{1, 2, 3}));
  EXPECT_EQ(support(0.91), (std::set{0, 1, 2, 3}));
  EXPECT_EQ(support(1), (std::set{0, 1, 2, 3}));
}

TEST(Sampler, TopPOverEqualScoresKeepsTheLowestIds) {
  EXPECT_EQ((Row{.logits = {0, 0, 0, 0}, .sampling = {.temperature = 1, .top_p = 0.4}}.support()), (std::set{0, 1}));
}

TEST(Sampler, TopPCountsOverWhatTopKLeft) {
  // Of {0.5, 0.25} the first has 2/3: enough for 0.6, not enough over the whole row.
  const Row row{.logits = logits_of({0.1, 0.5, 0.25, 0.15}), .sampling = {.temperature = 1, .top_k = 2, .top_p = 0.6}};
  EXPECT_EQ(row.support(), (std::set{1}));
}

TEST(Sampler, MinPKeepsWhatIsCloseToTheBest) {
  const std::vector<float> logits = logits_of({0.1, 0.5, 0.24, 0.16});
  EXPECT_EQ((Row{.logits = logits, .sampling = {.temperature = 1, .min_p = 0.3}}.support()), (std::set{1, 2, 3}));
  EXPECT_EQ((Row{.logits = logits, .sampling = {.temperature = 1, .min_p = 1}}.support()), (std::set{1}));
  EXPECT_EQ((Row{.logits = logits, .sampling = {.temperature = 2, .min_p = 0.3}}.support()).size(), 4U);
}

// The same filters by sorting everything, on rows long enough for several rounds of the bisection.
TEST(Sampler, SelectionEqualsAFullSort) {
  constexpr unsigned kSeed = 20261201;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 40; ++round) {
    const std::size_t size = 1 + random() % 5000;
    std::normal_distribution<float> normal(0, 0.5F + static_cast<float>(round % 5));
    Row row;
    for (std::size_t i = 0; i < size; ++i) {
      const float value = normal(random);
      row.logits.push_back(round % 2 == 0 ? value : std::round(value));  // Odd rounds: many ties.
    }
    row.sampling.temperature = 1;
    row.sampling.top_p = std::uniform_real_distribution<double>(0.01, 0.99)(random);

    std::vector<std::size_t> order(size);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return row.logits[a] > row.logits[b]; });
    long double total = 0;
    for (const float logit : row.logits) total += std::exp(static_cast<long double>(logit));
    std::set<int> want;
    long double above = 0;
    bool near_a_border = false;
    for (const std::size_t id : order) {
      near_a_border |= std::abs(static_cast<double>(above / total) - row.sampling.top_p) < 1e-9;
      if (!want.empty() && above >= row.sampling.top_p * total) break;
      want.insert(static_cast<int>(id));
      above += std::exp(static_cast<long double>(row.logits[id]));
    }
    if (near_a_border) continue;
    ASSERT_EQ(row.support(), want) << "seed " << kSeed << ", round " << round << ", top_p " << row.sampling.top_p;
  }
}

Sampling sampling_of(const nlohmann::json& settings) {
  Sampling sampling;
  sampling.temperature = settings.value("temperature", 1.0);
  sampling.top_k = settings.value("top_k", 0);
  sampling.top_p = settings.value("top_p", 1.0);
  sampling.min_p = settings.value("min_p", 0.0);
  sampling.repetition_penalty = settings.value("repetition_penalty", 1.0);
  const nlohmann::json biases = settings.value("logit_bias", nlohmann::json::object());
  for (const auto& [id, bias] : biases.items()) sampling.logit_bias.push_back({std::stoi(id), bias.get<float>()});
  return sampling;
}

// What transformers' processors keep, and how likely each is (tests/golden/README.md, sampling/).
TEST(Sampler, DistributionsEqualTheReference) {
  const auto golden = nlohmann::json::parse(test::read_file(test::golden_directory() / "sampling" / "sampling.json"));
  int cases = 0;
  for (const auto& vector : golden["vectors"]) {
    for (const auto& wanted : vector["cases"]) {
      Row row;
      row.logits = vector["logits"].get<std::vector<float>>();
      row.history = vector["history"].get<std::vector<std::int32_t>>();
      row.sampling = sampling_of(wanted["settings"]);
      const std::vector<double> got = row.distribution();
      const auto ids = wanted["kept"].get<std::vector<std::size_t>>();
      const auto probabilities = wanted["probabilities"].get<std::vector<double>>();
      const std::string settings = wanted["settings"].dump();
      ++cases;
      // Weights are float32: what is less likely than that holds may count as nothing.
      const auto held = [](double p) { return p > 1e-37; };
      EXPECT_EQ(std::count_if(got.begin(), got.end(), held),
                std::count_if(probabilities.begin(), probabilities.end(), held))
          << settings;
      if (wanted.value("top_p_cuts_a_tie", false)) continue;  // Which of the equal ones stay is not said there.
      for (std::size_t i = 0; i < ids.size(); ++i)
        EXPECT_NEAR(got.at(ids[i]), probabilities[i], 2e-6 * probabilities[i] + 1e-12) << settings << " id " << ids[i];
    }
  }
  EXPECT_GT(cases, 20);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  constexpr int kDraws = 20000;
  const std::vector<double> want = {0.05, 0.6, 0.15, 0.2};
  const Row row{.logits = logits_of(want), .sampling = {.temperature = 1, .seed = 99}};
  std::array<int, 4> seen{};
  for (std::uint64_t draw = 0; draw < kDraws; ++draw) ++seen[static_cast<std::size_t>(row.run(draw).id)];
  for (std::size_t id = 0; id < 4; ++id)
    EXPECT_NEAR(seen[id], kDraws * want[id], 5 * std::sqrt(kDraws * want[id] * (1 - want[id]))) << id;
}

TEST(Sampler, ADrawIsAFunctionOfSeedAndIndex) {
  const Row row{.logits = std::vector<float>(1000, 0), .sampling = {.temperature = 1, .seed = 5}};
  Row other = row;
  other.sampling.seed = 6;
  int same = 0;
  for (std::uint64_t draw = 0; draw < 100; ++draw) {
    ASSERT_EQ(row.run(draw).id, row.run(draw).id);
    EXPECT_EQ(row.run(draw).id, static_cast<int>(uniform_of(5, draw) * 1000));
    same += row.run(draw).id == other.run(draw).id ? 1 : 0;
  }
  EXPECT_LT(same, 5);
}

TEST(Sampler, SenselessSettingsAreNamed) {
  const auto says = [](const Sampling& sampling, const std::string& word) {
    EXPECT_NE(check_sampling(sampling, 10).find(word), std::string::npos) << check_sampling(sampling, 10);
  };
  for (const double bad : {-1.0, double{kNan}, double{kInf}}) {
    says({.temperature = bad}, "temperature");
    says({.top_p = bad}, "top_p");
    says({.min_p = bad}, "min_p");
    says({.repetition_penalty = bad}, "repetition_penalty");
  }
  says({.top_k = -1}, "top_k");
  says({.top_p = 1.5}, "top_p");
  says({.min_p = 1.01}, "min_p");
  says({.repetition_penalty = 0}, "repetition_penalty");
  says({.logit_bias = {{10, 1}}}, "token 10");
  says({.logit_bias = {{-1, 1}}}, "token -1");
  says({.logit_bias = {{1, kInf}}}, "logit_bias of token 1");
  says({.logit_bias = {{1, kNan}}}, "logit_bias of token 1");
  EXPECT_EQ(
      check_sampling({.temperature = 1e30, .top_k = 1000000, .top_p = 0, .min_p = 1, .logit_bias = {{9, 1e9F}}}, 10),
      "");
  EXPECT_EQ(check_sampling({}, 10), "");
}

}  // namespace
}  // namespace duet
