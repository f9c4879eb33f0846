#pragma once

#include <cstdint>
#include <string>

#include "duet/decide.h"

/// Decisions for people and for programs.
namespace duet::run {

/// A line a question: name, answer, how sure, the other options, which model and why.
std::string table_of(const Decision& decision);

/// The System One shape: "answers" by name with "type" and
///   choice  "choice", "probabilities" by label, "confidence"
///   score   "score", "legend", "probabilities" by level, "confidence"
///   noul    "noul", "confidence"
/// each also with "answer_confidence" (the largest probability), "model", "temperature" and "temperature_from"
/// ("checkpoint" or "rules"), and "escalated" and "reason" when routed;
/// "usage" with "input_tokens", "output_tokens", "truncated" and "truncated_questions". Numbers are not rounded.
std::string json_of(const Decision& decision);

/// The same with "line" and "id" in front; a failed one has "error": {"code", "message"}.
std::string json_line_of(const Decision& decision, std::uint64_t line, const std::string& id_json);

}  // namespace duet::run
