#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

/// How well probabilities say how often a model is right, and what asking another one where it is unsure would give.
/// Pure functions; probabilities are p = softmax(z / T) of logits z.
namespace duet::run {

/// A question whose answer is known, as a model saw it.
struct LabelledLogits {
  std::vector<float> logits;  ///< One an option, finite, before temperature.
  std::size_t right = 0;      ///< Which of them.
};

struct TemperatureFit {
  double temperature = 1;
  bool at_bound = false;  ///< The likelihood still grows beyond the bound.
};

/// The temperature in [0.5, 5] at which the mean of -log p(right) is smallest. With b = 1 / T its derivative is the
/// mean of E_p[z] - z(right), which grows with b; so there is one zero, found by bisection to the last bit. None when
/// every temperature is as good: no case, or logits that do not differ.
std::optional<TemperatureFit> fit_temperature(std::span<const LabelledLogits> cases);

/// One case at one temperature.
struct Verdict {
  double log_likelihood = 0;  ///< log p(right); finite.
  double largest = 0;         ///< max p.
  bool right = false;         ///< The first most probable option is the right one.
};
Verdict judge(const LabelledLogits& labelled, double temperature);

constexpr int kCalibrationBins = 15;

struct Quality {
  double accuracy = 0;
  double log_loss = 0;           ///< Mean of -log p(right), in nats.
  double calibration_error = 0;  ///< Expected: sum over bins of max p, ((i - 1) / 15, i / 15], of share times
                                 ///< |accuracy - mean max p| (Guo et al., arXiv:1706.04599).
};
Quality quality_of(std::span<const Verdict> verdicts);  ///< At least one.

// ---- asking a second model below a threshold ----

struct GatedCase {
  double sureness = 0;  ///< The measure of the fast model's answer.
  bool fast_right = false;
  bool deep_right = false;  ///< Without a deep model of no meaning.
};

/// What a threshold would have given.
struct GatePoint {
  double threshold = 0;
  std::size_t escalated = 0;
  std::size_t kept_right = 0;    ///< Right answers among those that stay with the fast model.
  std::size_t routed_right = 0;  ///< With the deep model's answers in place of the others.
};

/// Every outcome there is, fewest escalations first: threshold 0 sends none, 1.01 all, the others lie in the middle
/// between two neighbouring values of the measure, so that noise in the last digits changes nothing.
std::vector<GatePoint> gate_points(std::vector<GatedCase> cases);

/// What counts as the accuracy of a point.
struct GateAccuracy {
  std::size_t cases = 0;
  bool has_deep = false;       ///< Routed answers over all cases; else right ones over those kept.
  std::size_t least_kept = 1;  ///< Without a deep model: fewer kept answers say nothing.

  std::optional<double> of(const GatePoint& point) const;
};

struct GateChoice {
  std::size_t point = 0;
  bool reached = true;
};
/// The point with the fewest escalations whose accuracy is at least `wish`; when none is, the most accurate of all
/// (the fewest escalations among equal ones). `points` as gate_points made them.
GateChoice choose_accuracy(std::span<const GatePoint> points, const GateAccuracy& accuracy, double wish);

/// The point with the most escalations that are at most `share` of all cases.
std::size_t choose_share(std::span<const GatePoint> points, std::size_t cases, double share);

/// Where the true share lies with 95 % probability when `right` of `cases` (at least one) were right: Wilson's
/// interval.
struct ShareInterval {
  double low = 0;
  double high = 1;
};
ShareInterval share_interval(std::size_t right, std::size_t cases);

}  // namespace duet::run
