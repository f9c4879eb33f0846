#include "tools/run/calibration_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "duet/error.h"
#include "engine/decision_text.h"
#include "loaders/decision_json.h"
#include "loaders/json_value.h"
#include "loaders/names.h"
#include "tools/run/decision_request.h"
#include "tools/run/line_reader.h"

namespace duet::run {
namespace {

using Kind = JsonValue::Kind;

[[noreturn]] void refuse(std::string_view place, std::string_view what, std::string_view fix) {
  throw Error(Code::bad_file, fmt::format("'{}': {}", place, what), fix);
}

std::optional<std::size_t> level_of(const JsonValue& label) {
  std::size_t level = 0;
  if (label.kind != Kind::integer) return std::nullopt;
  const char* end = label.text.data() + label.text.size();
  const auto [stop, error] = std::from_chars(label.text.data(), end, level);
  return error == std::errc() && stop == end ? std::optional(level) : std::nullopt;
}

std::optional<std::size_t> option_called(const Question& question, const JsonValue& label) {
  if (label.is_container()) return std::nullopt;
  const std::string text = kev_text(label);  // As labels that are numbers become text.
  for (std::size_t i = 0; i < question.options.size(); ++i)
    if (question.options[i].label == text) return i;
  return std::nullopt;
}

std::size_t right_option(const Question& question, const JsonValue& label, std::string_view place) {
  std::optional<std::size_t> right;
  std::string expected;
  switch (question.kind) {
    case QuestionKind::choice: {
      right = option_called(question, label);
      std::vector<std::string> labels;
      for (const QuestionOption& option : question.options) labels.push_back(option.label);
      expected = "one of " + loaders::listed(labels, 8);
      break;
    }
    case QuestionKind::score:
      right = level_of(label);
      expected = fmt::format("a level from 0 to {}", question.options.size() - 1);
      break;
    case QuestionKind::noul:
      if (label.kind == Kind::boolean) right = label.boolean ? 1 : 0;
      expected = "true or false";
      break;
  }
  if (right && *right < question.options.size()) return *right;
  refuse(place,
         fmt::format("the label of {} is {}; {} was expected", loaders::quote(question.name),
                     loaders::printable(python_json(label), 60), expected),
         "Correct the label");
}

LabelledRequest labelled_from(const std::string& line, std::uint64_t number, std::string_view place,
                              const std::string& questions) {
  const loaders::Json json = loaders::parse_json(line, place);
  LabelledRequest request;
  request.line = number;
  request.json = with_questions(line, loaders::JsonObject(json, std::string(place)), questions);
  const JsonValue root = loaders::parse_json_value(line, place);
  const JsonValue* labels = root.find("labels");
  if (labels == nullptr || labels->kind != Kind::object)
    refuse(place, "the line has no labels", R"(Give the right answers as "labels": {"team": "billing", ...})");
  std::vector<std::string> names;
  bool any = false;
  for (const Question& question : loaders::parse_decision_problem(request.json, place).questions) {
    const JsonValue* label = labels->find(question.name);
    names.push_back(question.name);
    request.questions.push_back({question.name, question.kind, std::nullopt});
    if (label == nullptr || label->kind == Kind::null) continue;
    request.questions.back().right = right_option(question, *label, place);
    any = true;
  }
  for (const std::string& name : labels->keys) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const std::string nearest = loaders::nearest_name(name, names);
    refuse(place, fmt::format("there is a label of {}, but no such question", loaders::quote(name)),
           nearest.empty() ? "Questions are " + loaders::listed(names) : fmt::format("The nearest is '{}'", nearest));
  }
  if (!any) refuse(place, "no question has a label", "Label one, or take the line out");
  return request;
}

}  // namespace

LabelledData read_labelled(const std::string& path, const std::string& questions) {
  LineReader lines(path, "--data", nullptr);
  LabelledData data;
  for (std::string line; lines.next(line);) {
    if (lines.line_number() == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ++data.lines;
    try {
      data.requests.push_back(
          labelled_from(line, lines.line_number(), fmt::format("{}:{}", lines.name(), lines.line_number()), questions));
    } catch (const Error& error) {
      data.problems.emplace_back(error.what());
    }
  }
  return data;
}

}  // namespace duet::run
