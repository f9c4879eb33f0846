#include "engine/decision_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "duet/error.h"

namespace duet {

std::string option_bucket(QuestionKind kind, std::size_t options) {
  const char* size = options <= 2 ? "2" : options <= 5 ? "3-5" : options <= 10 ? "6-10" : "11+";
  return fmt::format("{}:{}", name_of(kind), size);
}

double LayaCalibration::of(QuestionKind kind, std::size_t options) const {
  const auto bucket = by_options.find(option_bucket(kind, options));
  const double value = bucket == by_options.end() ? temperature.at(static_cast<std::size_t>(kind)) : bucket->second;
  return std::isfinite(value) ? std::clamp(value, kLowestTemperature, kHighestTemperature) : 1.0;
}

std::vector<double> option_probabilities(std::span<const float> logits, double temperature, std::string_view what) {
  if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); }))
    throw Error(Code::non_finite, fmt::format("{} gave NaN or infinity", what), "Check the weights and the adapter");
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> probabilities;
  double sum = 0;
  for (const float logit : logits) {
    probabilities.push_back(std::exp((double{logit} - largest) / temperature));
    sum += probabilities.back();
  }
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

std::array<float, 4> act_features(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  double first = 0, second = 0, entropy = 0;
  for (const float logit : logits) {
    const double p = std::exp(double{logit} - largest) / sum;
    entropy -= p * std::log(std::max(p, 1e-9));
    second = std::max(second, std::min(first, p));
    first = std::max(first, p);
  }
  if (logits.size() < 2) second = 0;
  const auto n = static_cast<double>(std::max<std::size_t>(logits.size(), 2));
  return {static_cast<float>(first), static_cast<float>(first - second), static_cast<float>(entropy / std::log(n)),
          static_cast<float>(n / 255)};
}

Confidences confidences_of(std::span<const double> probabilities) {
  const auto n = static_cast<double>(probabilities.size());
  if (probabilities.size() < 2) return {};
  const std::size_t mode = most_probable(probabilities);
  double entropy = 0, distance = 0, middle_distance = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    const auto level = static_cast<double>(i);
    if (probabilities[i] > 0) entropy -= probabilities[i] * std::log(probabilities[i]);
    distance += probabilities[i] * std::abs(level - static_cast<double>(mode));
    middle_distance += std::abs(level - (n - 1) / 2) / n;
  }
  Confidences all;
  all.largest = probabilities[mode];
  all.entropy = std::clamp(1 - entropy / std::log(n), 0.0, 1.0);
  all.linear = std::clamp((n * all.largest - 1) / (n - 1), 0.0, 1.0);
  all.spread = std::clamp(1 - distance / middle_distance, 0.0, 1.0);
  return all;
}

DecisionConfidence decision_confidence(std::span<const double> probabilities, std::string_view family,
                                       QuestionKind kind) {
  const Confidences sure = confidences_of(probabilities);
  DecisionConfidence all{
      .largest = sure.largest, .entropy = sure.entropy, .linear = sure.linear, .spread = sure.spread};
  if (family == "laya")
    all.published = kind == QuestionKind::noul ? all.largest : all.entropy;
  else
    all.published = kind == QuestionKind::score ? all.spread : all.linear;
  return all;
}

std::size_t most_probable(std::span<const double> probabilities) {
  return static_cast<std::size_t>(std::max_element(probabilities.begin(), probabilities.end()) - probabilities.begin());
}

double mean_level(std::span<const double> probabilities) {
  double sum = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) sum += static_cast<double>(i) * probabilities[i];
  return sum;
}

double four_decimals(double value) { return std::strtod(fmt::format("{:.4f}", value).c_str(), nullptr); }

}  // namespace duet
