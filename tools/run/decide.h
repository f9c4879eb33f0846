#pragma once

#include "tools/run/interrupt.h"
#include "tools/run/options.h"

namespace duet::run {

/// engine_run decide: one state, a state a line, or JSONL in and out. Returns the code of the first that failed.
Code run_decide(Engine& engine, const RunOptions& options, Interrupts& interrupts);

}  // namespace duet::run
