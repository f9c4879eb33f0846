#pragma once

#include <optional>
#include <string>
#include <vector>

#include "duet/decide.h"
#include "tools/run/calibration.h"

/// What a calibration found, for people and for programs.
namespace duet::run {

/// Questions that share a temperature, of one model.
struct GroupReport {
  std::string model;
  std::string questions;  ///< "choice", "choice:3-5", ...
  std::size_t cases = 0;
  std::optional<TemperatureFit> fit;  ///< None: what was there stays.
  /// Temperatures the cases had before; several where a checkpoint tells them apart by number of options.
  double lowest_before = 0, highest_before = 0;
  Quality before, after;
};

/// The gate of one kind of question.
struct GateReport {
  QuestionKind kind = QuestionKind::choice;
  std::vector<GatePoint> points;
  GateAccuracy accuracy;
  std::optional<GateChoice> choice;  ///< None: nothing was wished.
};

struct CalibrationReport {
  std::string data;
  std::uint64_t lines = 0;
  std::size_t labelled = 0, unlabelled = 0;  ///< Questions.
  std::vector<GroupReport> groups;           ///< By model, then kind, the kind itself before its numbers of options.
  std::vector<GateReport> gates;             ///< By kind.
  std::optional<double> accuracy;            ///< The accuracy that was wished.
  DecisionRules rules;                       ///< What came of it; `deep` is empty when one model was asked.
};

/// Tables: each group before and after, then the trade-off of each kind, about every tenth of the questions.
std::string tables_of(const CalibrationReport& report);

/// The same on one line, the trade-off whole:
///   "data", "lines", "questions", "unlabelled", "bins", "measure", "fast", "deep" (null with one model),
///   "groups"  list of {"model", "questions", "cases", "accuracy", "temperature", "log_loss", "calibration_error"}, the
///             last three {"before", "after"}; a temperature before may be a list [lowest, highest]; "fitted" and
///             "at_bound" say where the one after comes from,
///   "gates"   by kind {"threshold", "reached" (null when nothing was wished), "curve": list of {"threshold",
///             "escalated", "kept_accuracy", "routed_accuracy"}}, shares of all questions or null.
std::string json_of(const CalibrationReport& report);

/// One sentence about the chosen threshold of a gate: what it sends on, what it reaches and how sure that is.
std::string sentence_of(const GateReport& gate, const CalibrationReport& report);

}  // namespace duet::run
