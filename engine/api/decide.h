#pragma once

#include <string>
#include <vector>

#include "duet/engine.h"
#include "engine/api/open.h"
#include "engine/decision.h"
#include "engine/request.h"

/// Typed questions: from a request to rows, and from logits to answers.
namespace duet::api {

/// Throws Error(invalid_argument or bad_file) naming the question that makes no sense.
DecisionProblem problem_of(const DecisionRequest& request);

/// Rows of a Laya, one a question, with what the answers will say of them.
struct LayaQuestions {
  EncoderBatch rows;
  std::vector<DecisionAnswer> answers;  ///< Filled but for what the logits say.
};
LayaQuestions prepare_laya(const DecisionProblem& problem, const ModelParts& model);

/// Completes the answers from the rows' logits, at the temperatures of `rules` where they have some; `rules` may be
/// null. Throws Error(non_finite).
void answer_laya(const ModelParts& model, const DecisionRules* rules, LayaQuestions& questions);

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

/// Completes the answers from the rows that were read, as answer_laya does.
void answer_kev(const ModelParts& model, const DecisionRules* rules, KevQuestions& questions);

}  // namespace duet::api
