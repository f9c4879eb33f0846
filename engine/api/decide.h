#pragma once

#include <string>
#include <vector>

#include "duet/engine.h"
#include "engine/api/open.h"
#include "engine/decision.h"
#include "engine/decision_answer.h"
#include "engine/request.h"

/// Typed questions: from a request to rows, from logits to answers, and who is asked again.
namespace duet::api {

/// Throws Error(invalid_argument or bad_file) naming the question that makes no sense.
DecisionProblem problem_of(const DecisionRequest& request);

/// Rows of a Laya, one a question, with what the answers will say of them.
struct LayaQuestions {
  EncoderBatch rows;
  std::vector<DecisionAnswer> answers;  ///< Filled but for what the logits say.
};
LayaQuestions prepare_laya(const DecisionProblem& problem, const ModelParts& model);

/// Completes the answers from the rows' logits. Throws Error(non_finite).
void answer_laya(const ModelParts& model, LayaQuestions& questions);

/// Rows of a Kev: one state, a branch a question; and with what head they are read.
struct KevQuestions {
  std::vector<std::int32_t> state_ids;
  std::vector<TokenRequest> requests;   ///< One a question, `readout` set: the options' rows, then the decision's.
  std::vector<DecisionAnswer> answers;  ///< Filled but for what the logits say.
  std::int64_t input_tokens = 0;        ///< The state counted once.
  std::shared_ptr<const PointerHead> head;
};
KevQuestions prepare_kev(const DecisionProblem& problem, const ModelParts& model, const std::string& adapter,
                         std::shared_ptr<const PointerHead> head);

/// Completes the answers from the rows that were read. Throws Error(non_finite).
void answer_kev(const ModelParts& model, KevQuestions& questions);

/// The named measure. Throws Error(invalid_argument) when there is none of that name.
double measure_of(const DecisionConfidence& confidence, const std::string& name);

/// Throws Error(invalid_argument) for rules that make no sense.
void check_rules(const DecisionRules& rules);

/// Whether the deep model shall be asked; fills `answer.reason` either way.
bool escalates(DecisionAnswer& answer, const DecisionRules& rules);

}  // namespace duet::api
