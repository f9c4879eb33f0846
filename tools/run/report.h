#pragma once

#include <string>

#include "tools/run/ask.h"

/// Answers as JSON and as remarks.
namespace duet::run {

/// Members "model", "prompt_ids", "ids", "text", "finish", "logprobs", "route", "timings_ms" and "counters", in this
/// order, as one line of valid UTF-8 without the braces' content changed by what the answer holds.
///   logprobs    [tokens][N] of [id, logprob], best first; empty lists without --logprobs.
///   route       null, or {"escalated", "reason", "confidence", "fast": {"model", "ids", "text"}}.
///   timings_ms  {"queued", "prefill", "first_token", "decode", "total"}.
///   counters    of this answer {"prompt_tokens", "cached_tokens", "generated_tokens", "removed_tokens", "segments"}
///   and
///               "engine": duet::Counters as they stand now.
/// `route` may be null.
std::string json_of(const Answer& answer, const RoutedAnswer* route, const Counters& counters);

/// A reply of the batch: "line", "id" (when `id_json` is not empty), then the answer's members, or "answers" with
/// several; a failed one has "error": {"code", "message"}.
std::string json_line_of(const Reply& reply, std::uint64_t line, const std::string& id_json, const Counters& counters);

/// What a person may want to know beside the text: who took over and why, what was cut. Empty: nothing.
std::string remark_on(const Reply& reply);

/// Counters and rates, for --stats. `seconds` is the time that answering took.
std::string stats_text(const Engine& engine, double seconds);

}  // namespace duet::run
