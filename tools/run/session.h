#pragma once

#include <string>

#include "tools/run/interrupt.h"
#include "tools/run/options.h"

namespace duet::run {

/// Asks one text and prints the answer. Returns its code.
Code run_prompt(Engine& engine, const RunOptions& options, const std::string& text);

/// Reads a line, answers it, until the end of input, /quit or Ctrl-C at the prompt. Ctrl-C while an answer comes ends
/// that answer only. Returns Code::ok.
Code run_session(Engine& engine, const RunOptions& options, Interrupts& interrupts);

}  // namespace duet::run
