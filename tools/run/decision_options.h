#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/run/options.h"

/// The sub-commands for typed questions.
namespace duet::run {

/// Texts as they were written; turned into values once everything is read.
struct DecisionTexts {
  std::vector<std::string> choices, scores, nouls, asks, thresholds;
  std::string measure;
  std::string accuracy, escalate, least_cases;
};

CLI::App* add_decide(CLI::App& app, DecisionTexts& texts, DecideOptions& options);
CLI::App* add_calibrate(CLI::App& app, DecisionTexts& texts, RunOptions& options);

/// `rules_file` may be empty; what the command line says wins over it. Both throw Error for what makes no sense.
void finish_decide(const CLI::App& decide, const DecisionTexts& texts, const std::string& rules_file,
                   RunOptions& options);
void finish_calibrate(const CLI::App& calibrate, const DecisionTexts& texts, const std::string& rules_file,
                      RunOptions& options);

}  // namespace duet::run
