#pragma once

#include "tools/run/interrupt.h"
#include "tools/run/options.h"

namespace duet::run {

/// Answers every line of `options.input`, several at a time, and writes the answers in order, each flushed when it is
/// there. An output that exists is gone on with: its whole lines are kept and not asked again, a last line that was
/// cut off is removed. Returns the code of the first line that failed, Code::cancelled after Ctrl-C, or Code::ok.
/// Throws Error for files that cannot be read, written or gone on with.
Code run_batch(Engine& engine, const RunOptions& options, Interrupts& interrupts);

}  // namespace duet::run
