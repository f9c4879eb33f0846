#pragma once

#include <string>

#include "tools/run/calibration_report.h"

namespace duet::run {

/// An SVG of the trade-off: how many of the questions are sent on against how many answers are right, a line a kind of
/// question, chosen thresholds marked and the wished accuracy drawn in. Colours follow the reader's light or dark
/// theme; lines differ by their dashes too.
std::string chart_of(const CalibrationReport& report);

}  // namespace duet::run
