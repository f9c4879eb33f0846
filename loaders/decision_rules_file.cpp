#include "loaders/decision_rules_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/decision_rules.h"
#include "loaders/json_file.h"
#include "loaders/names.h"

namespace duet::loaders {
namespace {

constexpr std::uint64_t kLargestRulesFile = 1 << 20;
constexpr std::array kKinds = {QuestionKind::choice, QuestionKind::score, QuestionKind::noul};

void check_keys(const JsonObject& object, const std::vector<std::string>& known, std::string_view what) {
  for (const std::string& key : object.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string nearest = nearest_name(key, known);
    throw Error(Code::bad_file, fmt::format("{} is no {}", object.where(key), what),
                nearest.empty() ? fmt::format("Known are {}", listed(known, known.size()))
                                : fmt::format("The nearest is '{}'", nearest));
  }
}

void read_thresholds(const JsonObject& object, DecisionRules& rules) {
  const Json* threshold = object.find("threshold");
  if (threshold == nullptr) return;
  if (threshold->is_number()) return rules.threshold.fill(object.number("threshold"));
  const JsonObject by_kind(*threshold, object.source(), "threshold");
  check_keys(by_kind, {"choice", "score", "noul"}, "kind of question");
  for (const QuestionKind kind : kKinds) {
    double& own = rules.threshold.at(static_cast<std::size_t>(kind));
    own = by_kind.number_or(name_of(kind), own);
  }
}

void read_temperatures(const JsonObject& object, DecisionRules& rules) {
  const auto models = object.object("temperatures");
  if (!models) return;
  for (const std::string& model : models->keys()) {
    const auto temperatures = models->object(model);
    if (!temperatures) models->refuse(model, "an object of temperatures");
    if (model != rules.fast && model != rules.deep)
      throw Error(Code::bad_file,
                  fmt::format("{} are temperatures of a model that the rules do not name", models->where(model)),
                  fmt::format("They name '{}' and '{}'", rules.fast, rules.deep));
    for (const std::string& questions : temperatures->keys())
      rules.temperatures.push_back({model, questions, temperatures->number(questions)});
  }
}

DecisionRules rules_from(const Json& json, std::string_view source) {
  const JsonObject object(json, std::string(source));
  check_keys(object, {"fast", "deep", "measure", "threshold", "temperatures"}, "rule of decisions");
  DecisionRules rules;
  rules.fast = object.text_or("fast", rules.fast);
  rules.deep = object.text_or("deep", rules.deep);
  rules.measure = object.text_or("measure", rules.measure);
  read_thresholds(object, rules);
  read_temperatures(object, rules);
  const std::string problem = check_decision_rules(rules);
  if (!problem.empty()) throw Error(Code::bad_file, fmt::format("'{}': {}", source, problem), "Correct the rules file");
  return rules;
}

}  // namespace

DecisionRules parse_decision_rules(std::string_view text, std::string_view source) {
  return rules_from(parse_json(text, source, {.bytes = kLargestRulesFile, .depth = 8}), source);
}

std::string decision_rules_text(const DecisionRules& rules) {
  Json json = {{"fast", rules.fast}, {"deep", rules.deep}, {"measure", rules.measure}};
  for (const QuestionKind kind : kKinds)
    json["threshold"][std::string(name_of(kind))] = rules.threshold.at(static_cast<std::size_t>(kind));
  for (const DecisionTemperature& temperature : rules.temperatures)
    json["temperatures"][temperature.model][temperature.questions] = temperature.value;
  return json.dump(2) + "\n";
}

}  // namespace duet::loaders

namespace duet {

DecisionRules read_decision_rules(const std::string& path) {
  return loaders::rules_from(loaders::read_json_file(path, {.bytes = loaders::kLargestRulesFile, .depth = 8}), path);
}

}  // namespace duet
