// The card's sampler against the host's, on the same rows and rules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cuda/launch.h"
#include "engine/sampler.h"
#include "tests/support/gpu.h"
#include "tests/support/gpu_time.h"

namespace duet::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// One row and its rules, as both samplers take them.
struct Row {
  std::vector<float> logits;
  Sampling sampling;
  std::vector<std::int32_t> history;
  std::int32_t usable = 0;
  std::uint64_t draw = 0;
  int logprobs = 0;

  SampleResult on_host() const {
    std::vector<float> scratch(sample_scratch_floats(static_cast<std::int64_t>(logits.size())));
    const SampleRules rules{
        .usable_vocabulary = usable, .sampling = &sampling, .history = history, .draw = draw, .logprobs = logprobs};
    return sample(logits, rules, scratch);
  }
};

/// The same rows on the card, all in one launch; rows without logits are inactive.
class OnCardSampler {
 public:
  OnCardSampler(std::int64_t vocabulary, int rows)
      : vocabulary_(vocabulary),
        counters_(cuda::sample_counter_bytes(rows)),
        scratch_(cuda::sample_scratch_bytes(vocabulary, rows)) {
    DUET_CUDA(cudaMemset(counters_.data(), 0, counters_.size()));
  }

  std::vector<cuda::SampledRow> run(const std::vector<Row>& rows) {
    std::vector<float> logits(rows.size() * static_cast<std::size_t>(vocabulary_), kNan);
    std::vector<cuda::SampleRow> rules(rows.size());
    std::vector<std::int32_t> history{-1};
    std::vector<cuda::SampleBias> biases{{-1, 0.0F}};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      rules[i] = {};
      if (row.logits.empty()) continue;
      std::copy(row.logits.begin(), row.logits.end(), logits.begin() + static_cast<std::ptrdiff_t>(i) * vocabulary_);
      rules[i].active = 1;
      rules[i].temperature = row.sampling.temperature;
      rules[i].top_p = row.sampling.top_p;
      rules[i].min_p = row.sampling.min_p;
      rules[i].top_k = row.sampling.top_k;
      rules[i].repetition_penalty = row.sampling.repetition_penalty;
      rules[i].uniform = uniform_of(row.sampling.seed, row.draw);
      rules[i].usable_vocabulary = row.usable;
      rules[i].logprobs = row.logprobs;
      rules[i].first_history = static_cast<std::int32_t>(history.size());
      rules[i].history_count = static_cast<std::int32_t>(row.history.size());
      history.insert(history.end(), row.history.begin(), row.history.end());
      rules[i].first_bias = static_cast<std::int32_t>(biases.size());
      rules[i].bias_count = static_cast<std::int32_t>(row.sampling.logit_bias.size());
      for (const LogitBias& bias : row.sampling.logit_bias) biases.push_back({bias.id, bias.bias});
    }
    const PoisonedBuffer card_logits = on_card(logits), card_rules = on_card(rules), card_history = on_card(history),
                         card_biases = on_card(biases);
    const PoisonedBuffer out(rows.size() * sizeof(cuda::SampledRow));
    cuda::sample(as<float>(card_logits), vocabulary_, static_cast<int>(rows.size()), as<cuda::SampleRow>(card_rules),
                 {as<std::int32_t>(card_history), as<cuda::SampleBias>(card_biases)}, counters_.data(), scratch_.data(),
                 as<cuda::SampledRow>(out), nullptr);
    const std::vector<cuda::SampledRow> results = from_card<cuda::SampledRow>(out);
    EXPECT_TRUE(out.guards_intact() && scratch_.guards_intact() && counters_.guards_intact());
    EXPECT_EQ(from_card<float>(card_logits).size(), logits.size());
    for (const std::uint8_t byte : from_card<std::uint8_t>(counters_))
      EXPECT_EQ(byte, 0) << "counters must be left at zero";
    return results;
  }

 private:
  std::int64_t vocabulary_;
  PoisonedBuffer counters_, scratch_;
};

void expect_same(const cuda::SampledRow& got, const SampleResult& want, const std::string& what) {
  SCOPED_TRACE(what);
  EXPECT_EQ(got.finite != 0, want.finite);
  if (!want.finite || got.finite == 0) return;
  EXPECT_EQ(got.id, want.id);
  EXPECT_NEAR(got.logprob, want.logprob, 1e-5 * std::max(1.0F, std::abs(want.logprob)));
  ASSERT_EQ(got.best_count, want.best_count);
  for (int i = 0; i < want.best_count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(got.best_ids[i], want.best[at].id) << "place " << i;
    EXPECT_NEAR(got.best_logprobs[i], want.best[at].logprob, 1e-5 * std::max(1.0F, std::abs(want.best[at].logprob)));
  }
}

/// Rows of every kind: smooth, peaked, full of ties, partly masked, wide; settings up to the ends of what is allowed.
Row random_row(std::int64_t vocabulary, std::mt19937& random) {
  const auto chance = [&](unsigned of) { return random() % of == 0; };
  const auto unit = [&] { return static_cast<double>(random() % 10001) / 10000.0; };
  const auto any_id = [&] { return static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary)); };
  Row row;
  const float spread = std::vector<float>{0.01F, 1.0F, 4.0F, 30.0F}[random() % 4];
  std::normal_distribution<float> normal(0.0F, spread);
  for (std::int64_t i = 0; i < vocabulary; ++i) row.logits.push_back(normal(random));
  if (chance(3))  // ties
    for (float& logit : row.logits) logit = std::round(logit * 2) / 2;
  if (chance(4))
    for (float& logit : row.logits)
      if (chance(3)) logit = -kInf;
  row.logits[random() % row.logits.size()] = spread;  // at least one is finite
  row.usable = static_cast<std::int32_t>(chance(3) ? 1 + static_cast<std::int64_t>(random()) % vocabulary : vocabulary);
  if (std::none_of(row.logits.begin(), row.logits.begin() + row.usable, [](float x) { return x > -kInf; }))
    row.logits[0] = 0;
  row.sampling.temperature = chance(4) ? 0.0 : 0.05 + 2 * unit();
  if (chance(2)) row.sampling.top_k = static_cast<int>(1 + random() % static_cast<unsigned>(2 * vocabulary));
  if (chance(2)) row.sampling.top_p = unit();
  if (chance(3)) row.sampling.min_p = 0.3 * unit();
  if (chance(3)) row.sampling.repetition_penalty = 0.5 + 1.5 * unit();
  if (chance(2))
    for (int i = 0; i < 50; ++i) row.history.push_back(any_id());
  if (chance(4))
    for (int i = 0; i < 5; ++i) row.sampling.logit_bias.push_back({any_id(), static_cast<float>(20 * unit() - 10)});
  if (chance(6)) row.sampling.temperature = std::vector<double>{1e-8, 1e-30, 1e30}[random() % 3];
  if (chance(8)) row.sampling.min_p = 1;
  if (chance(8)) row.sampling.logit_bias.push_back({any_id(), chance(2) ? 1e9F : -1e9F});
  if (chance(12)) {  // All but one masked by bias.
    const std::int32_t kept = any_id();
    row.sampling.logit_bias.clear();
    for (std::int32_t id = 0; id < vocabulary; ++id)
      if (id != kept) row.sampling.logit_bias.push_back({id, -1e9F});
  }
  row.sampling.seed = random();
  row.draw = random() % 100;
  row.logprobs = static_cast<int>(random() % 21);
  return row;
}

TEST(CudaSample, ChoosesAndListsWhatTheHostDoes) {  // O-31, O-32
  DUET_NEEDS_GPU();
  std::mt19937 random(20261201);
  for (const std::int64_t vocabulary : {1, 2, 31, 320, 1024, 1025, 5000, 32000}) {
    OnCardSampler sampler(vocabulary, 9);
    const int rounds = vocabulary > 4000 ? 12 : 60;
    for (int round = 0; round < rounds; ++round) {
      std::vector<Row> rows;
      for (int i = 0; i < 9; ++i) rows.push_back(i == 4 ? Row{} : random_row(vocabulary, random));
      const std::vector<cuda::SampledRow> got = sampler.run(rows);
      for (std::size_t i = 0; i < rows.size(); ++i)
        if (!rows[i].logits.empty())
          expect_same(got[i], rows[i].on_host(), fmt::format("vocabulary {}, round {}, row {}", vocabulary, round, i));
    }
  }
}

TEST(CudaSample, RowsThatAreNotFiniteSaySo) {  // O-31
  DUET_NEEDS_GPU();
  OnCardSampler sampler(700, 6);
  std::vector<Row> rows(6);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits.assign(700, 0.5F);
    rows[i].usable = 650;
    rows[i].sampling.temperature = i % 2 == 0 ? 0.0 : 1.0;
  }
  rows[0].logits[649] = kNan;
  rows[1].logits[3] = kInf;
  std::fill(rows[2].logits.begin(), rows[2].logits.end(), -kInf);
  rows[3].logits[650] = kNan;  // Beyond what is usable: nobody looks.
  rows[4].logits[10] = -kInf;
  rows[5].logits[10] = kNan;
  const std::vector<cuda::SampledRow> got = sampler.run(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) expect_same(got[i], rows[i].on_host(), fmt::format("row {}", i));
  EXPECT_EQ(got[3].finite, 1);
}

TEST(CudaSample, ARowsBitsDoNotDependOnTheOthersOrTheRun) {
  DUET_NEEDS_GPU();
  std::mt19937 random(7);
  std::vector<Row> rows;
  for (int i = 0; i < 8; ++i) rows.push_back(random_row(20000, random));
  OnCardSampler together(20000, 8), alone(20000, 1);
  const std::vector<cuda::SampledRow> first = together.run(rows), second = together.run(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const cuda::SampledRow one = alone.run({rows[i]}).front();
    for (const cuda::SampledRow& other : {first[i], second[i]}) {
      EXPECT_EQ(other.id, one.id);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(other.logprob), std::bit_cast<std::uint32_t>(one.logprob));
    }
  }
}

TEST(CudaSample, Times) {
  DUET_NEEDS_GPU();
  constexpr std::int64_t kVocabulary = 151936;
  std::mt19937 random(8);
  for (const int count : {1, 8})
    for (const bool greedy : {true, false}) {
      std::vector<cuda::SampleRow> rules(static_cast<std::size_t>(count));
      for (cuda::SampleRow& rule : rules)
        rule = {.temperature = greedy ? 0.0 : 0.8,
                .top_p = greedy ? 1.0 : 0.95,
                .min_p = 0,
                .repetition_penalty = 1,
                .uniform = 0.5,
                .active = 1,
                .usable_vocabulary = kVocabulary,
                .top_k = greedy ? 0 : 50,
                .logprobs = 0,
                .first_history = 0,
                .history_count = 0,
                .first_bias = 0,
                .bias_count = 0};
      std::vector<float> logits(static_cast<std::size_t>(count * kVocabulary));
      std::normal_distribution<float> normal(0.0F, 3.0F);
      for (float& logit : logits) logit = normal(random);
      const PoisonedBuffer card_logits = on_card(logits), card_rules = on_card(rules);
      const PoisonedBuffer counters(cuda::sample_counter_bytes(count)),
          scratch(cuda::sample_scratch_bytes(kVocabulary, count)),
          out(static_cast<std::size_t>(count) * sizeof(cuda::SampledRow));
      DUET_CUDA(cudaMemset(counters.data(), 0, counters.size()));
      const double time = microseconds_of([&](cuda::Stream stream) {
        cuda::sample(as<float>(card_logits), kVocabulary, count, as<cuda::SampleRow>(card_rules), {}, counters.data(),
                     scratch.data(), as<cuda::SampledRow>(out), stream);
      });
      print_time(fmt::format("sample {} of 151,936, {} row{}", greedy ? "greedy" : "top-k 50, top-p 0.95", count,
                             count == 1 ? "" : "s"),
                 time);
      EXPECT_GT(time, 0);
    }
}

}  // namespace
}  // namespace duet::test
