#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "duet/engine.h"

/// Sampling rules as pure functions over one row of logits; allocation-free when given scratch. The order of steps is
/// logit bias, repetition penalty, temperature, top-k, top-p, min-p (transformers' generate()).
namespace duet {

constexpr int kMaxLogprobs = 20;

struct SampleRules {
  std::int32_t usable_vocabulary = 0;  ///< Ids at and above it are never chosen nor listed (padded heads).
  const Sampling* sampling = nullptr;
  std::span<const std::int32_t> history;  ///< Prompt and answer so far, for the repetition penalty.
  std::uint64_t draw = 0;  ///< Index of the generated token: the random number is a pure function of (seed, draw).
  int logprobs = 0;
};

struct SampleResult {
  bool finite =
      true;  ///< False when a usable logit is NaN or +infinity, or all are -infinity; nothing else is set then.
  std::int32_t id = -1;
  float logprob = 0;
  std::array<TokenLogprob, kMaxLogprobs> best{};
  int best_count = 0;
};

/// Scratch floats that `sample` needs for a row.
std::size_t sample_scratch_floats(std::int64_t vocabulary);

/// `logits` [vocabulary], raw. `scratch` holds at least sample_scratch_floats(logits.size()).
SampleResult sample(std::span<const float> logits, const SampleRules& rules, std::span<float> scratch);

/// The distribution `sample` draws from: `probabilities` [vocabulary], zero where an id is never chosen. At temperature
/// 0 the arg-max has 1. False (nothing written) where `sample` would say that the row is not finite.
bool distribution_of(std::span<const float> logits, const SampleRules& rules, std::span<float> scratch,
                     std::span<double> probabilities);

/// Philox4x32-10: ten rounds over a 128-bit counter under a 64-bit key (Salmon et al., SC 2011).
std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// Uniform in [0, 1): 53 bits of a counter-based generator (Philox4x32-10, Salmon et al. 2011) keyed by seed and draw.
double uniform_of(std::uint64_t seed, std::uint64_t draw);

/// A logit bias may not lie beyond this: past it sums lose the logit itself.
constexpr float kMaxLogitBias = 1e9F;

/// Empty when the settings make sense; else the sentence that says which does not.
std::string check_sampling(const Sampling& sampling, std::int32_t vocabulary);

}  // namespace duet
