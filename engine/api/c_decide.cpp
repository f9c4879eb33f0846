#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "duet/c_api.h"
#include "duet/decide.h"
#include "engine/api/c_border.h"
#include "engine/decision_rules.h"
#include "loaders/names.h"

// Decisions in C.
using duet::api::checked;
using duet::api::fail;
using duet::api::made;
using duet::api::with;

// NOLINTBEGIN(readability-identifier-naming): C names.
struct duet_decision_request {
  duet::DecisionRequest request;
};

struct duet_decision_rules {
  duet::DecisionRules rules;
};

struct duet_decision {
  duet::Decision decision;
};
// NOLINTEND(readability-identifier-naming)

namespace {

duet::DecisionQuestion& question_of(duet_decision_request& request, const char* name, duet::QuestionKind kind) {
  std::vector<std::string> known;
  for (duet::DecisionQuestion& question : request.request.questions) {
    known.push_back(question.name);
    if (question.name != name) continue;
    if (question.kind == kind) return question;
    throw duet::Error(duet::Code::invalid_argument,
                      "The question " + duet::loaders::quote(name) + " is a " +
                          std::string(duet::name_of(question.kind)) + ", not a " + std::string(duet::name_of(kind)),
                      "Options belong to a choice, levels to a score");
  }
  const std::string nearest = duet::loaders::nearest_name(name, known);
  throw duet::Error(duet::Code::not_found, "No question " + duet::loaders::quote(name) + " was added to this request",
                    nearest.empty() ? "Add it first" : "The nearest is '" + nearest + "'");
}

duet_code handed_out(duet::Decision decision, duet_decision** out) {
  *out = std::make_unique<duet_decision>(duet_decision{std::move(decision)}).release();
  const duet::Decision& own = (*out)->decision;
  return own.code == duet::Code::ok ? DUET_OK : fail(own.code, own.message);
}

/// An empty one without a decision and past the end.
const duet::DecisionAnswer& answer_at(const duet_decision* decision, std::size_t index) {
  static const duet::DecisionAnswer kNone;
  return index < duet_decision_answer_count(decision) ? decision->decision.answers[index] : kNone;
}

const char* text_at(const std::vector<std::string>& texts, std::size_t index) {
  return index < texts.size() ? texts[index].c_str() : "";
}

}  // namespace

// ---- requests ----

duet_decision_request* duet_decision_request_new(void) { return made<duet_decision_request>(); }
void duet_decision_request_free(duet_decision_request* request) { delete request; }

duet_code duet_decision_request_set_model(duet_decision_request* request, const char* model) {
  return with([&] { request->request.model = model; }, request, model);
}

duet_code duet_decision_request_set_json(duet_decision_request* request, const char* json) {
  return with([&] { request->request.json = json; }, request, json);
}

duet_code duet_decision_request_set_state(duet_decision_request* request, const char* state) {
  return with([&] { request->request.state = state; }, request, state);
}

duet_code duet_decision_request_add_question(duet_decision_request* request, const char* name, duet_question_kind kind,
                                             const char* instructions) {
  return with(
      [&] {
        const auto own = checked<duet::QuestionKind>(kind, DUET_QUESTION_NOUL, "duet_question_kind");
        request->request.questions.push_back({.name = name, .kind = own, .instructions = instructions});
      },
      request, name, instructions);
}

duet_code duet_decision_request_add_option(duet_decision_request* request, const char* question, const char* label,
                                           const char* description) {
  return with(
      [&] {
        question_of(*request, question, duet::QuestionKind::choice)
            .options.push_back({.label = label, .description = description == nullptr ? "" : description});
      },
      request, question, label);
}

duet_code duet_decision_request_add_level(duet_decision_request* request, const char* question, const char* text) {
  return with(
      [&] { question_of(*request, question, duet::QuestionKind::score).options.push_back({.description = text}); },
      request, question, text);
}

duet_code duet_decision_request_set_priority(duet_decision_request* request, int priority) {
  return with([&] { request->request.priority = priority; }, request);
}

duet_code duet_decision_request_set_deadline(duet_decision_request* request, double seconds) {
  return with([&] { request->request.deadline = seconds; }, request);
}

// ---- rules ----

duet_decision_rules* duet_decision_rules_new(void) { return made<duet_decision_rules>(); }
void duet_decision_rules_free(duet_decision_rules* rules) { delete rules; }

duet_code duet_decision_rules_set_models(duet_decision_rules* rules, const char* fast, const char* deep) {
  return with(
      [&] {
        rules->rules.fast = fast;
        rules->rules.deep = deep;
      },
      rules, fast, deep);
}

duet_code duet_decision_rules_set_measure(duet_decision_rules* rules, const char* measure) {
  return with([&] { rules->rules.measure = measure; }, rules, measure);
}

duet_code duet_decision_rules_set_threshold(duet_decision_rules* rules, duet_question_kind kind, double threshold) {
  return with(
      [&] {
        const auto own = checked<duet::QuestionKind>(kind, DUET_QUESTION_NOUL, "duet_question_kind");
        rules->rules.threshold.at(static_cast<std::size_t>(own)) = threshold;
      },
      rules);
}

// ---- asking ----

duet_code duet_engine_decide(duet_engine* engine, const duet_decision_request* request, duet_decision** decision) {
  return with([&] { return handed_out(engine->engine.decide(request->request), decision); }, engine, request, decision);
}

duet_code duet_engine_decide_routed(duet_engine* engine, const duet_decision_request* request,
                                    const duet_decision_rules* rules, duet_decision** decision) {
  return with(
      [&] {
        const duet::DecisionRules own = rules == nullptr ? duet::DecisionRules() : rules->rules;
        return handed_out(engine->engine.decide(request->request, own), decision);
      },
      engine, request, decision);
}

// ---- decisions ----

void duet_decision_free(duet_decision* decision) { delete decision; }

duet_code duet_decision_code(const duet_decision* decision) {
  return decision == nullptr ? DUET_INVALID_ARGUMENT : static_cast<duet_code>(decision->decision.code);
}
const char* duet_decision_message(const duet_decision* decision) {
  return decision == nullptr ? "" : decision->decision.message.c_str();
}
size_t duet_decision_answer_count(const duet_decision* decision) {
  return decision == nullptr ? 0 : decision->decision.answers.size();
}
int64_t duet_decision_input_tokens(const duet_decision* decision) {
  return decision == nullptr ? 0 : decision->decision.input_tokens;
}
double duet_decision_seconds(const duet_decision* decision) {
  return decision == nullptr ? 0 : decision->decision.seconds;
}

const char* duet_decision_question(const duet_decision* decision, size_t index) {
  return answer_at(decision, index).question.c_str();
}
duet_question_kind duet_decision_kind(const duet_decision* decision, size_t index) {
  return static_cast<duet_question_kind>(answer_at(decision, index).kind);
}
size_t duet_decision_label_count(const duet_decision* decision, size_t index) {
  return answer_at(decision, index).labels.size();
}
const char* duet_decision_label(const duet_decision* decision, size_t index, size_t label) {
  return text_at(answer_at(decision, index).labels, label);
}
const char* duet_decision_description(const duet_decision* decision, size_t index, size_t label) {
  return text_at(answer_at(decision, index).descriptions, label);
}
double duet_decision_probability(const duet_decision* decision, size_t index, size_t label) {
  const std::vector<double>& all = answer_at(decision, index).probabilities;
  return label < all.size() ? all[label] : 0;
}
size_t duet_decision_choice(const duet_decision* decision, size_t index) { return answer_at(decision, index).choice; }
double duet_decision_score(const duet_decision* decision, size_t index) { return answer_at(decision, index).score; }
duet_code duet_decision_confidence(const duet_decision* decision, size_t index, const char* measure, double* value) {
  return with(
      [&] {
        if (index >= duet_decision_answer_count(decision))
          throw duet::Error(duet::Code::invalid_argument, "The decision has no such answer",
                            "Ask duet_decision_answer_count how many there are");
        *value = duet::measure_of(answer_at(decision, index).confidence, measure);
      },
      decision, measure, value);
}
double duet_decision_act_probability(const duet_decision* decision, size_t index) {
  return answer_at(decision, index).act_probability;
}
const char* duet_decision_model(const duet_decision* decision, size_t index) {
  return answer_at(decision, index).model.c_str();
}
int duet_decision_escalated(const duet_decision* decision, size_t index) {
  return answer_at(decision, index).escalated ? 1 : 0;
}
const char* duet_decision_reason(const duet_decision* decision, size_t index) {
  return answer_at(decision, index).reason.c_str();
}
int64_t duet_decision_state_tokens(const duet_decision* decision, size_t index) {
  return answer_at(decision, index).state_tokens;
}
int64_t duet_decision_state_tokens_kept(const duet_decision* decision, size_t index) {
  return answer_at(decision, index).state_tokens_kept;
}
size_t duet_decision_distinct_options(const duet_decision* decision, size_t index) {
  return static_cast<size_t>(answer_at(decision, index).distinct_options);
}
