#include "tools/run/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/decision_answer.h"

namespace duet::run {
namespace {

double largest_logit(const LabelledLogits& labelled) {
  return *std::max_element(labelled.logits.begin(), labelled.logits.end());
}

/// E_p[z] - z(right) at p = softmax(b z). Logits are taken as distances to the largest: both terms shift alike.
double slope(const LabelledLogits& labelled, double b) {
  const double top = largest_logit(labelled);
  double sum = 0, weighted = 0;
  for (const float logit : labelled.logits) {
    const double distance = logit - top;
    const double weight = std::exp(b * distance);
    sum += weight;
    weighted += weight * distance;
  }
  return weighted / sum - (labelled.logits[labelled.right] - top);
}

double mean_slope(std::span<const LabelledLogits> cases, double b) {
  double sum = 0;
  for (const LabelledLogits& labelled : cases) sum += slope(labelled, b);
  return sum / static_cast<double>(cases.size());
}

bool logits_differ(const LabelledLogits& labelled) {
  const auto [smallest, largest] = std::minmax_element(labelled.logits.begin(), labelled.logits.end());
  return *smallest != *largest;
}

constexpr double kAlways = 1.01;  // No measure reaches it.

/// The middle; of numbers with none between them the higher one, so that a threshold always lies above `low`.
double between(double low, double high) {
  const double middle = (low + high) / 2;
  return middle > low ? middle : high;
}

double share_of(std::size_t part, std::size_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

}  // namespace

std::optional<TemperatureFit> fit_temperature(std::span<const LabelledLogits> cases) {
  if (std::none_of(cases.begin(), cases.end(), logits_differ)) return std::nullopt;
  double low = 1 / kHighestTemperature, high = 1 / kLowestTemperature;
  if (mean_slope(cases, low) >= 0) return TemperatureFit{kHighestTemperature, true};
  if (mean_slope(cases, high) <= 0) return TemperatureFit{kLowestTemperature, true};
  for (double middle = (low + high) / 2; middle > low && middle < high; middle = (low + high) / 2)
    (mean_slope(cases, middle) < 0 ? low : high) = middle;
  return TemperatureFit{1 / low, false};
}

Verdict judge(const LabelledLogits& labelled, double temperature) {
  const double top = largest_logit(labelled);
  double sum = 0;
  for (const float logit : labelled.logits) sum += std::exp((logit - top) / temperature);
  const auto chosen = std::max_element(labelled.logits.begin(), labelled.logits.end()) - labelled.logits.begin();
  return {.log_likelihood = (labelled.logits[labelled.right] - top) / temperature - std::log(sum),
          .largest = 1 / sum,
          .right = static_cast<std::size_t>(chosen) == labelled.right};
}

Quality quality_of(std::span<const Verdict> verdicts) {
  struct Bin {
    double cases = 0, right = 0, sure = 0;
  };
  std::array<Bin, kCalibrationBins> bins;
  Quality quality;
  for (const Verdict& verdict : verdicts) {
    const double place = std::ceil(verdict.largest * kCalibrationBins) - 1;
    Bin& bin = bins.at(static_cast<std::size_t>(std::clamp(place, 0.0, kCalibrationBins - 1.0)));
    bin.cases += 1;
    bin.right += verdict.right ? 1 : 0;
    bin.sure += verdict.largest;
    quality.accuracy += verdict.right ? 1 : 0;
    quality.log_loss -= verdict.log_likelihood;
  }
  const auto cases = static_cast<double>(verdicts.size());
  quality.accuracy /= cases;
  quality.log_loss /= cases;
  for (const Bin& bin : bins) quality.calibration_error += std::abs(bin.right - bin.sure) / cases;
  return quality;
}

std::vector<GatePoint> gate_points(std::vector<GatedCase> cases) {
  std::sort(cases.begin(), cases.end(), [](const GatedCase& a, const GatedCase& b) { return a.sureness < b.sureness; });
  GatePoint point;
  for (const GatedCase& gated : cases) point.kept_right += gated.fast_right ? 1U : 0U;
  point.routed_right = point.kept_right;
  std::vector<GatePoint> points = {point};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    ++point.escalated;
    point.kept_right -= cases[i].fast_right ? 1U : 0U;
    point.routed_right = point.routed_right + (cases[i].deep_right ? 1U : 0U) - (cases[i].fast_right ? 1U : 0U);
    const bool last = i + 1 == cases.size();
    if (!last && cases[i + 1].sureness <= cases[i].sureness) continue;
    point.threshold = last ? kAlways : between(cases[i].sureness, cases[i + 1].sureness);
    points.push_back(point);
  }
  return points;
}

std::optional<double> GateAccuracy::of(const GatePoint& point) const {
  if (has_deep) return share_of(point.routed_right, cases);
  const std::size_t kept = cases - point.escalated;
  if (kept == 0 || kept < least_kept) return std::nullopt;
  return share_of(point.kept_right, kept);
}

GateChoice choose_accuracy(std::span<const GatePoint> points, const GateAccuracy& accuracy, double wish) {
  std::size_t best = 0;
  double best_accuracy = -1;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double reached = accuracy.of(points[i]).value_or(-1);
    if (reached >= wish) return {.point = i, .reached = true};
    if (reached <= best_accuracy) continue;
    best = i;
    best_accuracy = reached;
  }
  return {.point = best, .reached = false};
}

std::size_t choose_share(std::span<const GatePoint> points, std::size_t cases, double share) {
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < points.size(); ++i)
    if (share_of(points[i].escalated, cases) <= share) chosen = i;
  return chosen;
}

ShareInterval share_interval(std::size_t right, std::size_t cases) {
  constexpr double kZ = 1.959963984540054;  // The normal distribution's 97.5th percentile.
  const auto n = static_cast<double>(cases);
  const double share = share_of(right, cases);
  const double scale = 1 + kZ * kZ / n;
  const double middle = (share + kZ * kZ / (2 * n)) / scale;
  const double half = kZ * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n)) / scale;
  return {.low = std::max(0.0, middle - half), .high = std::min(1.0, middle + half)};
}

}  // namespace duet::run
