#pragma once

#include <array>
#include <string>
#include <vector>

#include "duet/decide.h"
#include "engine/json_value.h"

/// Typed questions about a state, as decision models are asked (shared words: TypeSafe's System One API).
namespace duet {

struct QuestionOption {
  std::string label;      ///< choice: as the caller wrote it; score: the level, "0", "1", ...; noul: "false", "true".
  JsonValue description;  ///< null: none.
};

struct Question {
  std::string name;
  QuestionKind kind = QuestionKind::choice;
  JsonValue instructions;               ///< null: none.
  std::vector<QuestionOption> options;  ///< At least one, in the caller's order; noul: false, then true.
  std::array<std::string, 2> words = {"false", "true"};  ///< noul: what Laya reads before the two descriptions.
};

struct DecisionProblem {
  JsonValue state;  ///< A string is shown as it is; anything else as the model's family renders JSON.
  std::vector<Question> questions;
};

}  // namespace duet
