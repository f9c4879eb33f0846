#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/run/interrupt.h"
#include "tools/run/options.h"

/// How often a pair is right: the fast model alone, the deep one alone, and routed, on labelled cases.
namespace duet::run {

/// One line of a file of cases: {"text": "...", "<field>": "<right value>", ...}; other members are passed over.
struct LabelledCase {
  std::string text;
  std::vector<std::string> right;  ///< In the order of `fields`.
};

/// Throws Error(bad_file) naming the line for broken JSON, a missing text or field, a wrong kind.
std::vector<LabelledCase> read_cases(const std::string& path, const std::vector<std::string>& fields);

/// The value that an answer gives a field: what stands behind "field:" up to '|' or the end of the line, trimmed. The
/// name stands at the start of a line or behind '|'; the last one counts, since reasons may come before the decision.
std::string field_of(std::string_view answer, std::string_view field);

/// What a way of answering came to.
struct Score {
  int cases = 0;
  int right = 0;                 ///< Every field right.
  std::vector<int> field_right;  ///< In the order of the fields.
  int deep_calls = 0;
  double tokens = 0;  ///< Generated, of both models.
};

/// Adds one answer to a score; `answers` hold the text that counts.
void count(Score& score, const LabelledCase& labelled, std::string_view answer, const std::vector<std::string>& fields);

/// Shows the decisions on `options.samples` and scores `options.evaluate`, as either is given. Returns Code::ok,
/// Code::cancelled after Ctrl-C, or the code of the first request that failed. Throws Error for files and fields.
Code run_evaluation(Engine& engine, const RunOptions& options, Interrupts& interrupts);

}  // namespace duet::run
