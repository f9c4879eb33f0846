#include "engine/api/decide.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine/api/prepare.h"
#include "engine/decision_answer.h"
#include "engine/decision_rules.h"
#include "engine/decision_text.h"
#include "loaders/decision_json.h"
#include "loaders/names.h"

namespace duet::api {
namespace {

using loaders::quote;

[[noreturn]] void refuse(std::string what, std::string_view fix) {
  throw Error(Code::invalid_argument, std::move(what), fix);
}

JsonValue text_value(const std::string& text, const std::string& what) {
  check_utf8(text, what);
  return json_string(text);
}

Question question_of(const DecisionQuestion& asked) {
  const std::string name = fmt::format("question {}", quote(asked.name));
  Question question;
  question.name = asked.name;
  question.kind = asked.kind;
  question.instructions = text_value(asked.instructions, "the instructions of " + name);
  if (asked.kind == QuestionKind::noul) {
    if (!asked.options.empty()) refuse(fmt::format("The {} is a noul and has options", name), "Leave them out");
    question.options = {{"false", {}}, {"true", {}}};
    return question;
  }
  if (asked.options.empty() || asked.options.size() > static_cast<std::size_t>(loaders::kMostOptions))
    refuse(fmt::format("The {} has {} options", name, asked.options.size()),
           fmt::format("Give 1 to {}", loaders::kMostOptions));
  std::set<std::string> labels;
  for (const DecisionOption& option : asked.options) {
    const bool level = asked.kind == QuestionKind::score;
    const std::string label = level ? fmt::to_string(labels.size()) : option.label;
    check_utf8(label, "a label of " + name);
    if (!labels.insert(label).second)
      refuse(fmt::format("The {} has the label {} twice", name, quote(label)), "Remove one");
    JsonValue description;
    if (level || !option.description.empty()) description = text_value(option.description, "a description of " + name);
    question.options.push_back({label, std::move(description)});
  }
  return question;
}

}  // namespace

DecisionProblem problem_of(const DecisionRequest& request) {
  if (!std::isfinite(request.deadline) || request.deadline < 0)
    refuse(fmt::format("deadline is {} seconds", request.deadline), "It must be 0 (none) or positive");
  if (!request.json.empty()) {
    if (!request.state.empty() || !request.questions.empty())
      refuse("The request has both json and a state or questions", "Give one of them");
    check_size(request.json.size());
    return loaders::parse_decision_problem(request.json, "request");
  }
  check_size(request.state.size());
  if (request.questions.size() > static_cast<std::size_t>(loaders::kMostQuestions))
    refuse(fmt::format("The request has {} questions", request.questions.size()),
           fmt::format("Give at most {}", loaders::kMostQuestions));
  DecisionProblem problem;
  problem.state = text_value(request.state, "the state");
  std::set<std::string> names;
  for (const DecisionQuestion& asked : request.questions) {
    if (!names.insert(asked.name).second)
      refuse(fmt::format("Two questions are called {}", quote(asked.name)), "Give each its own name");
    problem.questions.push_back(question_of(asked));
  }
  return problem;
}

namespace {

/// What is known of an answer before a model saw the question.
DecisionAnswer blank_answer(const Question& question, const ModelParts& model, std::string (*shown)(const JsonValue&)) {
  DecisionAnswer answer;
  answer.question = question.name;
  answer.kind = question.kind;
  answer.model = model.name;
  answer.family = model.laya ? "laya" : "kev";
  for (const QuestionOption& option : question.options) {
    answer.labels.push_back(option.label);
    const bool described = option.description.kind != JsonValue::Kind::null;
    answer.descriptions.push_back(described ? shown(option.description) : std::string());
  }
  return answer;
}

/// What logits say, at the checkpoint's temperature unless the rules have one.
void complete(std::span<const float> logits, double temperature, const DecisionRules* rules, std::string_view what,
              DecisionAnswer& answer) {
  const DecisionTemperature* fitted =
      rules == nullptr ? nullptr : fitted_temperature(*rules, answer.model, answer.kind, answer.labels.size());
  answer.logits.assign(logits.begin(), logits.end());
  answer.temperature = fitted == nullptr ? temperature : fitted->value;
  answer.temperature_is_fitted = fitted != nullptr;
  answer.probabilities = option_probabilities(logits, answer.temperature, what);
  answer.choice = most_probable(answer.probabilities);
  answer.score = answer.kind == QuestionKind::choice ? 0 : mean_level(answer.probabilities);
  answer.confidence = decision_confidence(answer.probabilities, answer.family, answer.kind);
}

std::string asked_of(const DecisionAnswer& answer, const ModelParts& model) {
  return fmt::format("Question {} to model {}", quote(answer.question), quote(model.name));
}

}  // namespace

LayaQuestions prepare_laya(const DecisionProblem& problem, const ModelParts& model) {
  const LayaParts& laya = *model.laya;
  const Tokenizer& tokenizer = tokenizer_of(model);
  const std::vector<std::int32_t> state = laya_state_ids(tokenizer, laya.tokens, problem.state);
  const bool keep_newest = problem.state.kind == JsonValue::Kind::array;
  LayaQuestions all;
  for (const Question& question : problem.questions) {
    if (question.instructions.kind == JsonValue::Kind::null)
      refuse(fmt::format("The question {} has no instructions", quote(question.name)), "Laya needs them");
    LayaRow row = laya_row(tokenizer, laya.tokens, laya.settings.budget, question, state, keep_newest);
    DecisionAnswer answer = blank_answer(question, model, laya_text);
    answer.state_tokens = row.state_tokens;
    answer.state_tokens_kept = row.state_tokens_kept;
    answer.distinct_options = row.distinct_options;
    all.answers.push_back(std::move(answer));
    all.rows.push_back({.ids = std::move(row.ids),
                        .markers = std::move(row.markers),
                        .question_kind = static_cast<int>(question.kind)});
  }
  return all;
}

void answer_laya(const ModelParts& model, const DecisionRules* rules, LayaQuestions& questions) {
  for (std::size_t i = 0; i < questions.rows.size(); ++i) {
    const EncodedRow& row = questions.rows[i];
    DecisionAnswer& answer = questions.answers[i];
    const std::string what = asked_of(answer, model);
    const double temperature = model.laya->settings.calibration.of(answer.kind, answer.labels.size());
    complete(row.option_logits, temperature, rules, what, answer);
    answer.act_probability = option_probabilities(row.act_logits, 1.0, what)[0];
  }
}

KevQuestions prepare_kev(const DecisionProblem& problem, const ModelParts& model, const std::string& adapter,
                         std::shared_ptr<const PointerHead> head) {
  const KevParts& kev = *model.kev;
  const Tokenizer& tokenizer = tokenizer_of(model);
  KevQuestions all;
  all.head = std::move(head);
  all.state_ids = kev_state_ids(tokenizer, kev.tokens, kev.budget, problem.state);
  const auto state_tokens = static_cast<std::int64_t>(all.state_ids.size());
  all.input_tokens = state_tokens;
  for (const Question& question : problem.questions) {
    const KevRow row = kev_row(tokenizer, kev.tokens, kev.budget, question, state_tokens);
    DecisionAnswer answer = blank_answer(question, model, kev_text);
    answer.state_tokens = answer.state_tokens_kept = state_tokens;
    answer.distinct_options = static_cast<int>(answer.labels.size());
    all.answers.push_back(std::move(answer));
    TokenRequest request;
    request.adapter = adapter;
    request.prompt_ids = all.state_ids;
    request.prompt_ids.insert(request.prompt_ids.end(), row.branch_ids.begin(), row.branch_ids.end());
    request.readout = std::make_shared<HiddenRows>();
    request.readout->positions = row.closes;
    request.readout->positions.push_back(row.decide);
    all.input_tokens += static_cast<std::int64_t>(row.branch_ids.size());
    all.requests.push_back(std::move(request));
  }
  return all;
}

void answer_kev(const ModelParts& model, const DecisionRules* rules, KevQuestions& questions) {
  const auto hidden = static_cast<std::size_t>(questions.head->hidden);
  std::vector<float> logits;
  for (std::size_t i = 0; i < questions.requests.size(); ++i) {
    DecisionAnswer& answer = questions.answers[i];
    const std::span<const float> rows = questions.requests[i].readout->rows;
    logits.resize(answer.labels.size());
    pointer_logits(*questions.head, rows.last(hidden), rows.first(rows.size() - hidden), logits);
    complete(logits, questions.head->temperature, rules, asked_of(answer, model), answer);
  }
}

}  // namespace duet::api
