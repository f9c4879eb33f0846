#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decision.h"

/// From logits to what is answered. Probabilities are float64 here; rounding is the printer's.
namespace duet {

/// What temperatures are held inside.
constexpr double kLowestTemperature = 0.5;
constexpr double kHighestTemperature = 5.0;

/// "choice:3-5": the name under which a kind of question with so many options has a temperature of its own. The numbers
/// are 2 (and less), 3-5, 6-10 and 11+.
std::string option_bucket(QuestionKind kind, std::size_t options);

/// Laya's temperatures: one a kind of question, and buckets by kind and number of options, which win.
struct LayaCalibration {
  std::array<double, 3> temperature = {1, 1, 1};  ///< By QuestionKind.
  std::map<std::string, double> by_options;       ///< "choice:3-5", "noul:2", ...

  /// In [0.5, 5]; 1 where the file's number is not finite.
  double of(QuestionKind kind, std::size_t options) const;
};

/// softmax(logits / temperature). Throws Error(non_finite) naming `what` when a logit is not finite.
std::vector<double> option_probabilities(std::span<const float> logits, double temperature, std::string_view what);

/// What Laya's act head reads of a row's options beside the first token's vector: the largest probability, its lead
/// over the second (0 without one), the entropy over log n and n / 255, of probabilities without temperature.
std::array<float, 4> act_features(std::span<const float> logits);

/// Measures of how sure an answer is; all in [0, 1], and 1 for a question of one option.
struct Confidences {
  double largest = 1;  ///< The largest probability: what temperatures are fitted on, and what routing reads.
  double entropy = 1;  ///< 1 - H(p) / log n: Laya's `confidence` of choice and score.
  double linear = 1;   ///< (n max p - 1) / (n - 1): TypeSafe's and Kev's of choice.
  double spread = 1;   ///< 1 - E|i - mode| / D: Kev's of score; D is the mean distance of levels to their middle.
};
Confidences confidences_of(std::span<const double> probabilities);

/// The same as the public interface has them; `published` is the measure that the reference of `family` ("laya" or
/// "kev") calls confidence.
DecisionConfidence decision_confidence(std::span<const double> probabilities, std::string_view family,
                                       QuestionKind kind);

/// The first largest.
std::size_t most_probable(std::span<const double> probabilities);

/// sum i p_i.
double mean_level(std::span<const double> probabilities);

/// Rounds to 4 decimals as Python's round does: correctly, ties on the exact binary value to even.
double four_decimals(double value);

}  // namespace duet
