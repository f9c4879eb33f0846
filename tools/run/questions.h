#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/run/options.h"

/// Lines of a JSONL file of questions.
namespace duet::run {

struct Question {
  Mode mode = Mode::single;
  Request request;
  std::string id_json;  ///< The line's "id" as JSON text; empty when it has none.
};

/// `place` names file and line, for messages. Throws Error(bad_file) for a line that is no question: broken JSON,
/// unknown keys (naming the nearest), wrong kinds, no text.
Question parse_question(std::string_view line, const std::string& place, const RunOptions& options);

}  // namespace duet::run
