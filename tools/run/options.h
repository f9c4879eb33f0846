#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "duet/engine.h"

/// What the command line and the config file of engine_run come to.
namespace duet::run {

enum class Mode {
  single,  ///< One named model answers.
  route,   ///< The fast model answers, the deep one takes over by the rules.
  compare  ///< Every model answers.
};

/// engine_run decide.
struct DecideOptions {
  bool asked = false;
  std::string state;  ///< Text; behind it come the files.
  bool state_given = false;
  std::string state_file;                   ///< Text, or JSON when its name ends in .json.
  std::string states_file;                  ///< A state a line.
  std::string questions_file;               ///< JSON: questions by name.
  std::vector<DecisionQuestion> questions;  ///< Of short flags, in their order.
  DecisionRules rules;
};

/// engine_run calibrate. Its questions and the rules that it starts from are DecideOptions.
struct CalibrateOptions {
  bool asked = false;
  std::string data;                ///< Labelled JSONL.
  std::optional<double> accuracy;  ///< What the thresholds shall reach, in (0, 1].
  std::optional<double> escalate;  ///< Or which share of the questions may go to the deep model, in [0, 1].
  std::size_t least_cases = 30;    ///< Fewer labelled questions fit no temperature and choose no threshold.
  std::string chart;               ///< SVG.
  std::string output;              ///< Rules that decide reads.
};

struct RunOptions {
  Options engine;
  DecideOptions decide;
  CalibrateOptions calibrate;
  Request request;  ///< Settings of every request; no text.
  bool max_tokens_given = false;
  RouteRules rules;
  Mode mode = Mode::single;
  std::string only_model;  ///< Mode::single.

  std::string prompt;
  bool prompt_given = false;
  std::string prompt_file;
  std::string system;
  std::string input;                ///< JSONL; "-" is standard input.
  std::string output;               ///< JSONL; empty or "-" is standard output.
  std::string samples;              ///< Labelled JSONL: show the decisions.
  std::string evaluate;             ///< Labelled JSONL: score them.
  std::vector<std::string> expect;  ///< Fields of a labelled line that an answer must give.
  bool interactive = false;

  bool raw = false;      ///< No chat template.
  bool chat = false;     ///< The interactive session remembers what was said.
  bool json = false;     ///< One JSON object an answer.
  bool plan = false;     ///< Print the plan and stop.
  bool stats = false;    ///< Counters and rates at the end.
  bool quiet = false;    ///< Answers and errors only.
  bool verbose = false;  ///< The load report too.
};

/// Whether typed questions are asked: `--rules` are those of decisions then.
inline bool asks_decisions(const RunOptions& options) { return options.decide.asked || options.calibrate.asked; }

/// Reads arguments and config file into `options`. False when the program shall end now with `exit_code`: help and
/// version were printed, or the mistake is already on standard error.
bool read_options(int argc, char** argv, RunOptions& options, int& exit_code);

/// Models whose answers Mode::compare shows: all, the fast one first.
std::vector<std::string> compared_models(const RunOptions& options);

}  // namespace duet::run
