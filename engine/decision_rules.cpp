#include "engine/decision_rules.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <set>

#include "duet/error.h"
#include "engine/decision_answer.h"

namespace duet {
namespace {

constexpr std::string_view kMeasures = "largest, entropy, linear, spread and published";

const double* find_measure(const DecisionConfidence& confidence, std::string_view name) {
  if (name == "largest") return &confidence.largest;
  if (name == "entropy") return &confidence.entropy;
  if (name == "linear") return &confidence.linear;
  if (name == "spread") return &confidence.spread;
  if (name == "published") return &confidence.published;
  return nullptr;
}

const DecisionTemperature* find_temperature(const DecisionRules& rules, std::string_view model,
                                            std::string_view questions) {
  for (const DecisionTemperature& temperature : rules.temperatures)
    if (temperature.model == model && temperature.questions == questions) return &temperature;
  return nullptr;
}

bool names_questions(std::string_view name) {
  for (const QuestionKind kind : {QuestionKind::choice, QuestionKind::score, QuestionKind::noul}) {
    if (name == name_of(kind)) return true;
    for (const std::size_t options : {2U, 3U, 6U, 11U})
      if (name == option_bucket(kind, options)) return true;
  }
  return false;
}

std::string check_temperatures(const DecisionRules& rules) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const DecisionTemperature& temperature : rules.temperatures) {
    const std::string what = fmt::format("the temperature of '{}' {}", temperature.model, temperature.questions);
    if (temperature.model.empty()) return "a temperature names no model";
    if (!names_questions(temperature.questions))
      return fmt::format(
          "{} is for no questions; they are choice, score or noul, alone or with :2, :3-5, :6-10 or "
          ":11+ behind it",
          what);
    if (!(temperature.value >= kLowestTemperature && temperature.value <= kHighestTemperature))
      return fmt::format("{} is {}; it must lie in [{}, {}]", what, temperature.value, kLowestTemperature,
                         kHighestTemperature);
    if (!seen.insert({temperature.model, temperature.questions}).second) return what + " stands twice";
  }
  return {};
}

}  // namespace

double measure_of(const DecisionConfidence& confidence, std::string_view name) {
  if (const double* measure = find_measure(confidence, name)) return *measure;
  throw Error(Code::invalid_argument, fmt::format("There is no measure of confidence called '{}'", name),
              fmt::format("Known are {}", kMeasures));
}

const DecisionTemperature* fitted_temperature(const DecisionRules& rules, std::string_view model, QuestionKind kind,
                                              std::size_t options) {
  const DecisionTemperature* own = find_temperature(rules, model, option_bucket(kind, options));
  return own != nullptr ? own : find_temperature(rules, model, name_of(kind));
}

bool escalates(DecisionAnswer& answer, const DecisionRules& rules) {
  const double threshold = rules.threshold.at(static_cast<std::size_t>(answer.kind));
  const double measure = measure_of(answer.confidence, rules.measure);
  if (measure >= threshold) {
    answer.reason = fmt::format("{} {:.2f}", rules.measure, measure);
    return false;
  }
  int digits = 2;  // More where two would make them look equal.
  while (digits < 17 && fmt::format("{:.{}f}", measure, digits) == fmt::format("{:.{}f}", threshold, digits)) ++digits;
  answer.reason = fmt::format("{} {:.{}f} is below {:.{}f}", rules.measure, measure, digits, threshold, digits);
  return true;
}

std::string check_decision_rules(const DecisionRules& rules) {
  if (rules.fast.empty()) return "the name 'fast' may not be empty";
  if (rules.fast == rules.deep) return fmt::format("'fast' and 'deep' are both '{}'", rules.fast);
  if (find_measure({}, rules.measure) == nullptr)
    return fmt::format("measure is '{}'; known are {}", rules.measure, kMeasures);
  for (const double threshold : rules.threshold)
    if (!std::isfinite(threshold) || threshold < 0)
      return fmt::format("a threshold is {}; it must be 0 (never) or positive", threshold);
  return check_temperatures(rules);
}

}  // namespace duet
