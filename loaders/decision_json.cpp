#include "loaders/decision_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "duet/error.h"
#include "engine/decision_text.h"
#include "loaders/json_value.h"
#include "loaders/names.h"

namespace duet::loaders {
namespace {

using Kind = JsonValue::Kind;

constexpr JsonLimits kRequestLimits{.bytes = std::uint64_t{16} << 20, .depth = 64};

/// One question on its way, with what messages name.
class QuestionReader {
 public:
  QuestionReader(std::string name, const JsonValue& json, std::string_view source) : json_(json), source_(source) {
    question_.name = std::move(name);
  }

  Question read() {
    if (json_.kind != Kind::object) refuse("is no object");
    check_keys();
    read_kind();
    if (const JsonValue* instructions = json_.find("instructions")) question_.instructions = *instructions;
    const JsonValue* criteria = json_.find("criteria");
    if (criteria != nullptr && criteria->kind == Kind::null) criteria = nullptr;
    switch (question_.kind) {
      case QuestionKind::choice:
        read_choice(criteria);
        break;
      case QuestionKind::score:
        read_levels(criteria);
        break;
      case QuestionKind::noul:
        read_noul(criteria);
        break;
    }
    read_words();
    return std::move(question_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what, std::string_view fix = {}) const {
    throw Error(Code::bad_file, fmt::format("{}: question {} {}", quote(source_), quote(question_.name), what), fix);
  }

  void check_keys() const {
    static const std::vector<std::string> kKnown = {"type", "instructions", "criteria", "labels"};
    for (const std::string& key : json_.keys) {
      if (std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end()) continue;
      const std::string nearest = nearest_name(key, kKnown);
      refuse(fmt::format("has a key {} that no question has", quote(key)),
             nearest.empty() ? "Known are " + listed(kKnown) : fmt::format("The nearest is '{}'", nearest));
    }
  }

  void read_kind() {
    constexpr std::array kKinds = {QuestionKind::choice, QuestionKind::score, QuestionKind::noul};
    const JsonValue* type = json_.find("type");
    if (type != nullptr && type->kind == Kind::string) {
      for (const QuestionKind kind : kKinds) {
        if (type->text != name_of(kind)) continue;
        question_.kind = kind;
        return;
      }
    }
    refuse("has no type", "Give \"type\": \"choice\", \"score\" or \"noul\"");
  }

  void check_count(std::size_t count, std::string_view what) const {
    if (count >= 1 && count <= static_cast<std::size_t>(kMostOptions)) return;
    refuse(fmt::format("has {} {}; 1 to {} are possible", count, what, kMostOptions));
  }

  void read_choice(const JsonValue* criteria) {
    if (criteria == nullptr || !criteria->is_container())
      refuse("has no criteria", "Give an object of labels and descriptions, or a list of labels");
    check_count(criteria->items.size(), "options");
    for (std::size_t i = 0; i < criteria->items.size(); ++i) {
      const JsonValue& item = criteria->items[i];
      if (criteria->kind == Kind::object) {
        question_.options.push_back({criteria->keys[i], item});
        continue;
      }
      if (item.is_container() || item.kind == Kind::null)
        refuse(fmt::format("has a label that is no text: {}", printable(python_json(item), 60)));
      question_.options.push_back({kev_text(item), {}});
    }
    std::set<std::string_view> labels;
    for (const QuestionOption& option : question_.options)
      if (!labels.insert(option.label).second)
        refuse(fmt::format("has the label {} twice", quote(option.label)), "Remove one of the two");
  }

  void read_levels(const JsonValue* criteria) {
    if (criteria == nullptr || criteria->kind != Kind::array)
      refuse("has no criteria", "Give a list of level descriptions, lowest first");
    check_count(criteria->items.size(), "levels");
    for (std::size_t i = 0; i < criteria->items.size(); ++i)
      question_.options.push_back({fmt::to_string(i), criteria->items[i]});
  }

  void read_noul(const JsonValue* criteria) {
    question_.options = {{"false", {}}, {"true", {}}};
    if (criteria == nullptr) return;
    if (criteria->kind != Kind::object) refuse("has criteria that are no object", "Give \"true\" and \"false\"");
    for (std::size_t i = 0; i < criteria->items.size(); ++i)
      side_of(criteria->keys[i]).description = criteria->items[i];
  }

  QuestionOption& side_of(const std::string& key) {
    if (key == "false") return question_.options[0];
    if (key == "true") return question_.options[1];
    refuse(fmt::format("has a criterion {}", quote(key)), "A noul has \"true\" and \"false\"");
  }

  void read_words() {
    const JsonValue* labels = json_.find("labels");
    if (labels == nullptr || labels->kind == Kind::null) return;
    if (question_.kind != QuestionKind::noul) refuse("has labels", "Only a noul has them");
    const JsonValue *no = labels->find("false"), *yes = labels->find("true");
    const auto is_text = [](const JsonValue* value) { return value != nullptr && value->kind == Kind::string; };
    if (!is_text(no) || !is_text(yes) || labels->items.size() != 2)
      refuse("has labels that are not two texts", "Give \"labels\": {\"false\": ..., \"true\": ...}");
    question_.words = {trimmed(no->text), trimmed(yes->text)};
    if (question_.words[0].empty() || question_.words[1].empty() || question_.words[0] == question_.words[1])
      refuse("has labels that are empty or equal", "Give two different words");
  }

  static std::string trimmed(std::string_view text) {
    constexpr std::string_view kSpaces = " \t\n\r\f\v";
    const std::size_t begin = text.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos) return {};
    return std::string(text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin));
  }

  const JsonValue& json_;
  std::string_view source_;
  Question question_;
};

}  // namespace

Question question_from(std::string name, const JsonValue& question, std::string_view source) {
  return QuestionReader(std::move(name), question, source).read();
}

DecisionProblem parse_decision_problem(std::string_view json, std::string_view source) {
  JsonValue root = parse_json_value(json, source, kRequestLimits);
  const auto refuse = [&](std::string_view what, std::string_view fix) {
    throw Error(Code::bad_file, fmt::format("{} {}", quote(source), what), fix);
  };
  if (root.kind != Kind::object) refuse("is no object", "Give {\"state\": ..., \"questions\": {...}}");
  const JsonValue *state = root.find("state"), *questions = root.find("questions");
  if (state == nullptr) refuse("has no state", "Give the text or JSON that the questions are about as \"state\"");
  if (questions == nullptr || questions->kind != Kind::object)
    refuse("has no questions", "Give an object of questions by name as \"questions\"");
  if (questions->items.size() > static_cast<std::size_t>(kMostQuestions))
    refuse(fmt::format("has {} questions; at most {} are answered at once", questions->items.size(), kMostQuestions),
           "Split the request");
  DecisionProblem problem;
  problem.state = *state;
  for (std::size_t i = 0; i < questions->items.size(); ++i)
    problem.questions.push_back(question_from(questions->keys[i], questions->items[i], source));
  return problem;
}

}  // namespace duet::loaders
