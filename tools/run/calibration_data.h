#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/decision.h"

/// Labelled requests: JSONL in the System One shape, with the right answers beside the questions.
namespace duet::run {

struct LabelledQuestion {
  std::string name;
  QuestionKind kind = QuestionKind::choice;
  std::optional<std::size_t> right;  ///< Index of the right option; none: the line does not say.
};

struct LabelledRequest {
  std::uint64_t line = 0;
  std::string json;  ///< The request as Engine::decide takes it.
  std::vector<LabelledQuestion> questions;
};

struct LabelledData {
  std::vector<LabelledRequest> requests;
  std::vector<std::string> problems;  ///< A sentence for each line that is wrong, with file and line.
  std::uint64_t lines = 0;            ///< That hold anything.
};

/// A line is {"state": ..., "questions": {...}, "labels": {"team": "billing", "urgency": 2, "spam": true}}: of a choice
/// the label, of a score the level from 0, of a noul true or false. A question may go without a label, a line may not.
/// `questions`, JSON text, are those of lines that bring none. Throws Error for a file that cannot be read.
LabelledData read_labelled(const std::string& path, const std::string& questions);

}  // namespace duet::run
