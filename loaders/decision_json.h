#pragma once

#include <string>
#include <string_view>

#include "engine/decision.h"

namespace duet::loaders {

constexpr int kMostOptions = 255;    ///< Of one question.
constexpr int kMostQuestions = 256;  ///< Of one request.

/// A request in the System One shape:
///     {"state": <any JSON>, "questions": {"<name>": {"type": "choice" | "score" | "noul", "instructions": ...,
///      "criteria": ..., "labels": {"false": ..., "true": ...}}}}
/// criteria: choice an object label -> description or a list of labels; score a list of level descriptions; noul an
/// object with "true" and "false", or nothing. Other keys beside state and questions are left alone. The order of keys
/// is kept, a doubled key or label is refused. Throws Error(bad_file) that names `source`, the question and the key.
DecisionProblem parse_decision_problem(std::string_view json, std::string_view source);

/// One question of that shape, for command lines and tests.
Question question_from(std::string name, const JsonValue& question, std::string_view source);

}  // namespace duet::loaders
