#include "tools/run/decision_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/decision_rules.h"
#include "tools/run/command_line.h"
#include "tools/run/parse.h"

namespace duet::run {
namespace {

[[noreturn]] void refuse(std::string what, std::string_view fix) {
  throw Error(Code::invalid_argument, std::move(what), fix);
}

void add_questions(CLI::App& app, DecisionTexts& texts, DecideOptions& options) {
  const std::string group = "Questions";
  app.add_option("--questions", options.questions_file, "Questions by name, in the System One shape")
      ->type_name("FILE")
      ->group(group);
  add_list(app, "--choice", texts.choices, "Which one: labels, each with a description if need be")
      ->type_name("NAME=LABEL[:TEXT],...")
      ->group(group);
  add_list(app, "--score", texts.scores, "Which level, the lowest first")->type_name("NAME=LEVEL,...")->group(group);
  add_list(app, "--noul", texts.nouls, "Whether a statement is true")->type_name("NAME")->group(group);
  add_list(app, "--ask", texts.asks, "What the question before it asks")->type_name("TEXT")->group(group);
}

void add_gate(CLI::App& app, DecisionTexts& texts) {
  const std::string group = "Which model answers";
  app.add_option("--measure", texts.measure, "Confidence that routing reads: largest (default), entropy, linear, ...")
      ->type_name("NAME")
      ->group(group);
  add_list(app, "--threshold", texts.thresholds, "Below it the deep model is asked (0.7)")
      ->type_name("[KIND=]X")
      ->group(group);
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

DecisionQuestion question_of_flag(QuestionKind kind, const std::string& text) {
  if (kind == QuestionKind::noul) return {.name = text, .kind = kind};
  const NamedValue named = split_named(text);
  if (named.name.empty() || named.value.empty())
    refuse(fmt::format("--{} is '{}'", name_of(kind), text), "Give NAME=ONE,ANOTHER");
  DecisionQuestion question{.name = named.name, .kind = kind};
  for (const std::string& part : split_at_commas(named.value)) {
    const std::size_t colon = kind == QuestionKind::choice ? part.find(':') : std::string::npos;
    if (kind == QuestionKind::score)
      question.options.push_back({.description = part});
    else if (colon == std::string::npos)
      question.options.push_back({.label = part});
    else
      question.options.push_back({.label = part.substr(0, colon), .description = part.substr(colon + 1)});
  }
  return question;
}

/// Questions in the order of the command line; --ask belongs to the one before it.
void read_question_flags(const CLI::App& decide, std::vector<DecisionQuestion>& questions) {
  std::map<std::string, std::size_t> used;
  for (const CLI::Option* option : decide.parse_order()) {
    const std::string name = option->get_name();
    if (name != "--choice" && name != "--score" && name != "--noul" && name != "--ask") continue;
    const std::string& text = option->results().at(used[name]++);
    if (name != "--ask") {
      questions.push_back(question_of_flag(
          name == "--choice" ? QuestionKind::choice : (name == "--score" ? QuestionKind::score : QuestionKind::noul),
          text));
    } else if (questions.empty() || !questions.back().instructions.empty()) {
      refuse(fmt::format("--ask \"{}\" follows no question of its own", text),
             "Put it behind --choice, --score or --noul");
    } else {
      questions.back().instructions = text;
    }
  }
  for (const DecisionQuestion& question : questions)
    if (question.instructions.empty())
      refuse(fmt::format("The question '{}' asks nothing", question.name), "Put --ask \"...\" behind it");
}

/// What decide and calibrate have in common.
void finish_questions(const CLI::App& app, const DecisionTexts& texts, const std::string& rules_file,
                      RunOptions& options) {
  DecideOptions& own = options.decide;
  if (!rules_file.empty()) {
    own.rules = read_decision_rules(rules_file);
    options.rules.fast = own.rules.fast;
    options.rules.deep = own.rules.deep;
  }
  if (!texts.measure.empty()) own.rules.measure = texts.measure;
  for (const std::string& text : texts.thresholds) {
    const NamedValue value = split_named(text);
    const double threshold = parse_double("--threshold", value.value);
    bool found = false;
    for (const QuestionKind kind : {QuestionKind::choice, QuestionKind::score, QuestionKind::noul}) {
      if (!value.name.empty() && value.name != name_of(kind)) continue;
      own.rules.threshold.at(static_cast<std::size_t>(kind)) = threshold;
      found = true;
    }
    if (!found) refuse(fmt::format("--threshold is '{}'", text), "Name choice, score or noul, or none");
  }
  if (const std::string wrong = check_decision_rules(own.rules); !wrong.empty())
    refuse("The rules make no sense: " + wrong, "Correct --measure, --threshold or the rules");
  read_question_flags(app, own.questions);
  if (!own.questions.empty() && !own.questions_file.empty())
    refuse("--questions does not go with --choice, --score and --noul", "Give one of the two");
}

double parse_share(std::string_view option, const std::string& text) {
  const double share = parse_double(option, text);
  if (!(share >= 0 && share <= 1)) refuse(fmt::format("{} is {}", option, text), "Give a share such as 0.95");
  return share;
}

}  // namespace

CLI::App* add_decide(CLI::App& app, DecisionTexts& texts, DecideOptions& options) {
  CLI::App* decide = app.add_subcommand("decide", "Answer typed questions about a state with decision models");
  decide->fallthrough();
  const std::string group = "State";
  decide->add_option("state,--state", options.state, "What the questions are about")->type_name("TEXT")->group(group);
  decide->add_option("--state-file", options.state_file, "The same from a file; JSON when it is called .json")
      ->type_name("FILE")
      ->group(group);
  decide->add_option("--states", options.states_file, "A state a line (-: standard input)")
      ->type_name("FILE")
      ->group(group);
  add_questions(*decide, texts, options);
  add_gate(*decide, texts);
  return decide;
}

CLI::App* add_calibrate(CLI::App& app, DecisionTexts& texts, RunOptions& options) {
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "Fit temperatures and thresholds of decision models on labelled questions");
  calibrate->fallthrough();
  CalibrateOptions& own = options.calibrate;
  calibrate->add_option("--data", own.data, "Requests with \"labels\": {\"team\": \"billing\", \"urgency\": 2, ...}")
      ->type_name("FILE")
      ->group("Data");
  calibrate->add_option("--least-cases", texts.least_cases, "Labelled questions that a fit needs (30)")
      ->type_name("N")
      ->group("Data");
  add_questions(*calibrate, texts, options.decide);
  add_gate(*calibrate, texts);
  calibrate->add_option("--accuracy", texts.accuracy, "Choose thresholds that reach this share of right answers")
      ->type_name("X")
      ->group("Which model answers");
  calibrate
      ->add_option("--escalate", texts.escalate, "Choose thresholds that send at most this share to the deep model")
      ->type_name("X")
      ->group("Which model answers");
  calibrate->add_option("--svg", own.chart, "Draw the trade-off")->type_name("FILE")->group("Results");
  calibrate->add_option("--output", own.output, "Write rules for decide --rules")->type_name("FILE")->group("Results");
  return calibrate;
}

void finish_decide(const CLI::App& decide, const DecisionTexts& texts, const std::string& rules_file,
                   RunOptions& options) {
  DecideOptions& own = options.decide;
  own.asked = true;
  own.state_given = decide.count("--state") > 0;
  finish_questions(decide, texts, rules_file, options);
  const int sources = (own.state_given ? 1 : 0) + (own.state_file.empty() ? 0 : 1) + (own.states_file.empty() ? 0 : 1) +
                      (options.input.empty() ? 0 : 1);
  if (sources > 1) refuse("More than one of a state, --state-file, --states and --input was given", "Give one of them");
  if (own.questions.empty() && own.questions_file.empty() && options.input.empty())
    refuse("There are no questions", "Give --choice, --score, --noul or --questions");
}

void finish_calibrate(const CLI::App& calibrate, const DecisionTexts& texts, const std::string& rules_file,
                      RunOptions& options) {
  CalibrateOptions& own = options.calibrate;
  own.asked = true;
  finish_questions(calibrate, texts, rules_file, options);
  if (!options.input.empty()) refuse("--input does not go with calibrate", "Give the labelled lines as --data");
  if (own.data.empty()) refuse("There are no labelled questions", "Give a JSONL file as --data");
  if (!texts.accuracy.empty() && !texts.escalate.empty())
    refuse("--accuracy and --escalate exclude each other", "Wish for one of them");
  if (!texts.accuracy.empty()) own.accuracy = parse_share("--accuracy", texts.accuracy);
  if (!texts.escalate.empty()) own.escalate = parse_share("--escalate", texts.escalate);
  if (!texts.least_cases.empty()) {
    const int least = parse_int("--least-cases", texts.least_cases);
    if (least < 1) refuse(fmt::format("--least-cases is {}", least), "Give 1 or more");
    own.least_cases = static_cast<std::size_t>(least);
  }
  if (!own.output.empty() && own.output == own.chart)
    refuse("--output and --svg name the same file", "Give each its own");
}

}  // namespace duet::run
