#pragma once

#include <string>
#include <string_view>

#include "loaders/json_file.h"
#include "tools/run/options.h"

/// Requests in the System One shape, put together as text: numbers in a state keep their spelling.
namespace duet::run {

/// JSON text. Throws Error(invalid_argument), naming `what`, when a string in it is not valid UTF-8.
std::string json_text(const loaders::Json& json, std::string_view what);

/// The questions that the command line brings, as JSON text; empty: every line brings its own. Throws Error.
std::string questions_text(const DecideOptions& options);

/// Both as JSON text.
std::string request_text(const std::string& state, const std::string& questions);

/// A line that is a request, with the command line's questions put into it when there are some. `line` is the text of
/// `object`. Throws Error(bad_file) when it has questions of its own beside them.
std::string with_questions(const std::string& line, const loaders::JsonObject& object, const std::string& questions);

/// Which fitted temperatures answer in place of the checkpoints'.
std::string temperatures_remark(const DecisionRules& rules);

/// The rules of what `options` ask: of the pair when it is routed, else of the one model alone.
DecisionRules rules_of(const RunOptions& options);

}  // namespace duet::run
