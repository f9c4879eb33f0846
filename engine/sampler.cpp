#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace duet {
namespace {

constexpr double kGreedyBelow = 1e-5;  // Dividing by less overflows float32 for ordinary logits.
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

struct RowFacts {
  bool finite = true;
  float largest = -kInfinity;
  std::int32_t arg_max = -1;  // Ties to the lowest id.
};

RowFacts facts_of(std::span<const float> logits) {
  RowFacts facts;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (!(logit < kInfinity)) return {.finite = false};  // NaN or +infinity
    if (logit > facts.largest) {
      facts.largest = logit;
      facts.arg_max = static_cast<std::int32_t>(id);
    }
  }
  facts.finite = facts.arg_max >= 0;
  return facts;
}

// Biases and penalties may push a finite logit past float32; it stays the largest or smallest finite number instead.
float held_finite(double value) { return static_cast<float>(std::clamp<double>(value, -kLargest, kLargest)); }

bool is_greedy(const Sampling& sampling) { return sampling.temperature < kGreedyBelow; }

bool changes_logits(const Sampling& sampling) {
  return !sampling.logit_bias.empty() || sampling.repetition_penalty != 1;
}

// Logit bias, then the repetition penalty, in place. `saved` [usable] is scratch.
void adjust(const SampleRules& rules, std::span<float> scores, std::span<float> saved) {
  const auto in_range = [&](std::int32_t id) { return id >= 0 && static_cast<std::size_t>(id) < scores.size(); };
  for (const LogitBias& entry : rules.sampling->logit_bias) {
    if (!in_range(entry.id)) continue;
    float& score = scores[static_cast<std::size_t>(entry.id)];
    if (score > -kInfinity) score = held_finite(double{score} + double{entry.bias});
  }
  const double penalty = rules.sampling->repetition_penalty;
  if (penalty == 1) return;
  // Each id counts once however often it occurs: save first, then write from what was saved.
  for (const std::int32_t id : rules.history) {
    if (in_range(id)) saved[static_cast<std::size_t>(id)] = scores[static_cast<std::size_t>(id)];
  }
  for (const std::int32_t id : rules.history) {
    if (!in_range(id)) continue;
    const float score = saved[static_cast<std::size_t>(id)];
    if (score == -kInfinity) continue;
    scores[static_cast<std::size_t>(id)] = held_finite(score < 0 ? score * penalty : score / penalty);
  }
}

// Which scores may be drawn: everything above `cutoff`, and the first `ties` ids that equal it.
struct Kept {
  float cutoff = -kLargest;
  std::size_t ties = std::numeric_limits<std::size_t>::max();
};

double weight(float score, float largest) { return std::exp(double{score} - double{largest}); }

// transformers keeps every score that equals the k-th largest, so a tie may keep more than k.
// `values` [n] in any order; on return its first `count` are those kept.
std::size_t keep_top_k(std::span<float> values, std::size_t k) {
  if (k >= values.size()) return values.size();
  const auto kth = values.begin() + static_cast<std::ptrdiff_t>(k) - 1;
  std::nth_element(values.begin(), kth, values.end(), std::greater<>());
  const float threshold = *kth;
  const auto end = std::partition(kth, values.end(), [&](float value) { return value >= threshold; });
  return static_cast<std::size_t>(end - values.begin());
}

// The smallest set of largest scores whose probabilities reach top_p: a score stays while those before it sum to less.
// Bisects by mass, from the top, so that a peaked row costs one selection of a few hundred values and no sort.
Kept keep_top_p(std::span<float> values, double top_p, float largest) {
  double total = 0;
  for (const float value : values) total += weight(value, largest);
  const double target = top_p * total;
  std::size_t first = 0;  // values[0, first) are kept and weigh `above` < target (or first is 0).
  std::size_t end = values.size();
  double above = 0;
  std::size_t step = 256;
  while (end - first > 1) {
    const std::size_t middle = first + std::min(step, (end - first) / 2);
    const auto at = [&](std::size_t index) { return values.begin() + static_cast<std::ptrdiff_t>(index); };
    std::nth_element(at(first), at(middle), at(end), std::greater<>());
    double part = 0;
    for (std::size_t i = first; i < middle; ++i) part += weight(values[i], largest);
    if (above + part < target) {
      above += part;
      first = middle;
      step *= 4;
    } else {
      end = middle;
    }
  }
  const float cutoff = values[first];
  return {cutoff, static_cast<std::size_t>(
                      std::count(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(first) + 1, cutoff))};
}

// Temperature, top-k, top-p, min-p on `scores`; then `weights` [usable] holds what each id weighs (0: never chosen).
// Returns their sum.
double weigh(const Sampling& sampling, std::span<float> scores, std::span<float> weights) {
  const double temperature = sampling.temperature;
  float largest = -kInfinity;
  std::size_t count = 0;
  for (float& score : scores) {
    if (score == -kInfinity) continue;
    score = held_finite(score / temperature);
    largest = std::max(largest, score);
    weights[count++] = score;
  }
  std::span<float> values = weights.first(count);
  Kept kept;
  if (sampling.top_k > 0) {
    values = values.first(keep_top_k(values, static_cast<std::size_t>(sampling.top_k)));
    if (values.size() < count) kept.cutoff = *std::min_element(values.begin(), values.end());
  }
  if (sampling.top_p < 1) kept = keep_top_p(values, sampling.top_p, largest);

  double total = 0;
  for (std::size_t id = 0; id < scores.size(); ++id) {
    const float score = scores[id];
    weights[id] = 0;
    if (score < kept.cutoff || (score == kept.cutoff && kept.ties == 0)) continue;
    if (score == kept.cutoff) --kept.ties;
    const double own = weight(score, largest);
    if (own < sampling.min_p) continue;  // The largest weighs 1.
    weights[id] = static_cast<float>(own);
    total += weights[id];
  }
  return total;
}

std::int32_t draw_from(std::span<const float> weights, double total, double uniform) {
  const double target = uniform * total;
  double sum = 0;
  std::size_t last = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] == 0) continue;
    sum += weights[id];
    last = id;
    if (target < sum) break;
  }
  return static_cast<std::int32_t>(last);
}

// Log-probabilities of the raw row, in float64.
struct LogSoftmax {
  double log_sum = 0;
  LogSoftmax(std::span<const float> logits, float largest) {
    double sum = 0;
    for (const float logit : logits) sum += weight(logit, largest);
    log_sum = double{largest} + std::log(sum);
  }
  float operator()(float logit) const { return held_finite(double{logit} - log_sum); }
};

// The `wanted` best ids, best first, ties to the lowest id; ids of probability 0 are not listed.
int list_best(std::span<const float> logits, std::size_t wanted, const LogSoftmax& log_softmax,
              std::span<TokenLogprob> best) {
  std::size_t count = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (logit == -kInfinity || (count == wanted && !(logit > best[count - 1].logprob))) continue;
    std::size_t place = count < wanted ? count++ : count - 1;
    for (; place > 0 && best[place - 1].logprob < logit; --place) best[place] = best[place - 1];
    best[place] = {static_cast<std::int32_t>(id), logit};
  }
  for (TokenLogprob& entry : best.first(count)) entry.logprob = log_softmax(entry.logprob);
  return static_cast<int>(count);
}

std::span<const float> usable_part(std::span<const float> logits, const SampleRules& rules) {
  const auto usable = static_cast<std::size_t>(std::max(rules.usable_vocabulary, 0));
  return logits.first(std::min(usable, logits.size()));
}

}  // namespace

std::size_t sample_scratch_floats(std::int64_t vocabulary) { return 2 * static_cast<std::size_t>(vocabulary); }

SampleResult sample(std::span<const float> logits, const SampleRules& rules, std::span<float> scratch) {
  const std::span<const float> usable = usable_part(logits, rules);
  const Sampling& sampling = *rules.sampling;
  const RowFacts raw = facts_of(usable);
  SampleResult result;
  result.finite = raw.finite;
  if (!raw.finite) return result;

  result.id = raw.arg_max;
  if (changes_logits(sampling) || !is_greedy(sampling)) {
    const std::span<float> scores = scratch.first(usable.size());
    const std::span<float> weights = scratch.subspan(usable.size(), usable.size());
    std::copy(usable.begin(), usable.end(), scores.begin());
    if (changes_logits(sampling)) adjust(rules, scores, weights);
    if (is_greedy(sampling)) {
      result.id = facts_of(scores).arg_max;
    } else {
      const double total = weigh(sampling, scores, weights);
      result.id = draw_from(weights, total, uniform_of(sampling.seed, rules.draw));
    }
  }
  const LogSoftmax log_softmax(usable, raw.largest);
  result.logprob = log_softmax(usable[static_cast<std::size_t>(result.id)]);
  const auto wanted = static_cast<std::size_t>(std::clamp(rules.logprobs, 0, kMaxLogprobs));
  if (wanted > 0) result.best_count = list_best(usable, wanted, log_softmax, result.best);
  return result;
}

bool distribution_of(std::span<const float> logits, const SampleRules& rules, std::span<float> scratch,
                     std::span<double> probabilities) {
  const std::span<const float> usable = usable_part(logits, rules);
  if (!facts_of(usable).finite) return false;
  const std::span<float> scores = scratch.first(usable.size());
  const std::span<float> weights = scratch.subspan(usable.size(), usable.size());
  std::copy(usable.begin(), usable.end(), scores.begin());
  adjust(rules, scores, weights);
  std::fill(probabilities.begin(), probabilities.end(), 0.0);
  if (is_greedy(*rules.sampling)) {
    probabilities[static_cast<std::size_t>(facts_of(scores).arg_max)] = 1;
    return true;
  }
  const double total = weigh(*rules.sampling, scores, weights);
  for (std::size_t id = 0; id < weights.size(); ++id) probabilities[id] = double{weights[id]} / total;
  return true;
}

std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // Golden ratio.
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1.
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

double uniform_of(std::uint64_t seed, std::uint64_t draw) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
  const std::array<std::uint32_t, 4> bits = philox4x32_10({low(draw), high(draw), 0, 0}, {low(seed), high(seed)});
  const std::uint64_t mantissa = (std::uint64_t{bits[0]} >> 5 << 26) | (bits[1] >> 6);
  return static_cast<double>(mantissa) * 0x1p-53;
}

std::string check_sampling(const Sampling& sampling, std::int32_t vocabulary) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0)
    return fmt::format("temperature is {}; it must be 0 (greedy) or a positive number", sampling.temperature);
  if (sampling.top_k < 0) return fmt::format("top_k is {}; it must be 0 (off) or positive", sampling.top_k);
  if (!(sampling.top_p >= 0 && sampling.top_p <= 1))
    return fmt::format("top_p is {}; it must lie in [0, 1]", sampling.top_p);
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1))
    return fmt::format("min_p is {}; it must lie in [0, 1]", sampling.min_p);
  if (!std::isfinite(sampling.repetition_penalty) || sampling.repetition_penalty <= 0)
    return fmt::format("repetition_penalty is {}; it must be a positive number (1: off)", sampling.repetition_penalty);
  for (const LogitBias& entry : sampling.logit_bias) {
    if (entry.id < 0 || entry.id >= vocabulary)
      return fmt::format("logit_bias names token {}; ids of this model lie in [0, {})", entry.id, vocabulary);
    if (!(std::abs(entry.bias) <= kMaxLogitBias))
      return fmt::format("logit_bias of token {} is {}; it must lie in [-1e9, 1e9]", entry.id, entry.bias);
  }
  return {};
}

}  // namespace duet
