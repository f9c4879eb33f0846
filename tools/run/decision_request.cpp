#include "tools/run/decision_request.h"

#include <fmt/format.h>

#include "loaders/mapped_file.h"

namespace duet::run {
namespace {

using loaders::Json;

constexpr std::size_t kLargestQuestions = std::size_t{16} << 20;

Json questions_json(const std::vector<DecisionQuestion>& questions) {
  Json all = Json::object();
  for (const DecisionQuestion& question : questions) {
    Json one = {{"type", name_of(question.kind)}, {"instructions", question.instructions}};
    if (question.kind == QuestionKind::choice) {
      one["criteria"] = Json::object();
      for (const DecisionOption& option : question.options) {
        if (one["criteria"].contains(option.label))
          throw Error(Code::invalid_argument,
                      fmt::format("--choice {} has the label '{}' twice", question.name, option.label), "Remove one");
        one["criteria"][option.label] = option.description.empty() ? Json() : Json(option.description);
      }
    } else if (question.kind == QuestionKind::score) {
      one["criteria"] = Json::array();
      for (const DecisionOption& option : question.options) one["criteria"].push_back(option.description);
    }
    if (all.contains(question.name))
      throw Error(Code::invalid_argument, fmt::format("Two questions are called '{}'", question.name),
                  "Give each its own name");
    all[question.name] = std::move(one);
  }
  return all;
}

}  // namespace

std::string json_text(const Json& json, std::string_view what) {
  try {
    return json.dump();
  } catch (const Json::exception&) {
    throw Error(Code::invalid_argument, fmt::format("Not valid UTF-8: {}", what), "Save or type it as UTF-8");
  }
}

std::string questions_text(const DecideOptions& options) {
  if (!options.questions_file.empty()) return loaders::read_text_file(options.questions_file, kLargestQuestions);
  return options.questions.empty() ? std::string() : json_text(questions_json(options.questions), "a question");
}

std::string request_text(const std::string& state, const std::string& questions) {
  return fmt::format(R"({{"state": {}, "questions": {}}})", state, questions);
}

std::string with_questions(const std::string& line, const loaders::JsonObject& object, const std::string& questions) {
  if (questions.empty()) return line;
  if (object.has("questions")) object.refuse("questions", "nothing, as the command line brings the questions,");
  const std::string_view comma = object.json().empty() ? "" : ",";
  return fmt::format("{}{} \"questions\": {}}}", line.substr(0, line.rfind('}')), comma, questions);
}

std::string temperatures_remark(const DecisionRules& rules) {
  std::string text;
  for (const DecisionTemperature& fitted : rules.temperatures) {
    if (fitted.model != rules.fast && fitted.model != rules.deep) continue;
    text += fmt::format("{}{} {} {:.3g}", text.empty() ? "" : ", ", fitted.model, fitted.questions, fitted.value);
  }
  return text.empty() ? fmt::format("the fitted temperatures are of other models than {}", rules.fast)
                      : "fitted temperatures in place of the checkpoints': " + text;
}

DecisionRules rules_of(const RunOptions& options) {
  DecisionRules rules = options.decide.rules;
  const bool routed = options.mode == Mode::route;
  rules.fast = routed ? options.rules.fast : options.only_model;
  rules.deep = routed ? options.rules.deep : std::string();
  return rules;
}

}  // namespace duet::run
