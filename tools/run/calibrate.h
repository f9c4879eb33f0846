#pragma once

#include "tools/run/calibration_data.h"
#include "tools/run/interrupt.h"
#include "tools/run/options.h"

namespace duet::run {

/// Reads `options.calibrate.data`, before any model is loaded. Prints a sentence for each wrong line; throws
/// Error(bad_file) when there is one, and for a file without cases.
LabelledData read_labelled(const RunOptions& options);

/// engine_run calibrate: asks the models every labelled question, fits temperatures, chooses thresholds, prints what
/// came of it and writes the rules and the chart. Nothing is written when it fails, is cancelled, or a wish is not
/// reached.
Code run_calibration(Engine& engine, const RunOptions& options, const LabelledData& data, Interrupts& interrupts);

}  // namespace duet::run
