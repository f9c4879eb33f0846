#include "tools/run/decide.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "loaders/json_file.h"
#include "loaders/mapped_file.h"
#include "tools/run/batch_output.h"
#include "tools/run/decide_report.h"
#include "tools/run/line_reader.h"
#include "tools/run/terminal.h"

namespace duet::run {
namespace {

using loaders::Json;

constexpr std::size_t kLargestState = std::size_t{16} << 20;

Json questions_json(const std::vector<DecisionQuestion>& questions) {
  Json all = Json::object();
  for (const DecisionQuestion& question : questions) {
    Json one = {{"type", name_of(question.kind)}, {"instructions", question.instructions}};
    if (question.kind == QuestionKind::choice) {
      one["criteria"] = Json::object();
      for (const DecisionOption& option : question.options) {
        if (one["criteria"].contains(option.label))
          throw Error(Code::invalid_argument,
                      fmt::format("--choice {} has the label '{}' twice", question.name, option.label), "Remove one");
        one["criteria"][option.label] = option.description.empty() ? Json() : Json(option.description);
      }
    } else if (question.kind == QuestionKind::score) {
      one["criteria"] = Json::array();
      for (const DecisionOption& option : question.options) one["criteria"].push_back(option.description);
    }
    if (all.contains(question.name))
      throw Error(Code::invalid_argument, fmt::format("Two questions are called '{}'", question.name),
                  "Give each its own name");
    all[question.name] = std::move(one);
  }
  return all;
}

/// JSON text. Throws Error(invalid_argument), naming `what`, when a string in it is not valid UTF-8.
std::string text_of(const Json& json, std::string_view what) {
  try {
    return json.dump();
  } catch (const Json::exception&) {
    throw Error(Code::invalid_argument, fmt::format("Not valid UTF-8: {}", what), "Save or type it as UTF-8");
  }
}

/// Texts are put together, not parsed and printed again: numbers in a state keep their spelling.
std::string request_json(const std::string& state_json, const std::string& questions_json_text) {
  return fmt::format(R"({{"state": {}, "questions": {}}})", state_json, questions_json_text);
}

class Deciding {
 public:
  Deciding(Engine& engine, const RunOptions& options, Interrupts& interrupts)
      : engine_(engine), options_(options), interrupts_(interrupts) {
    if (!options.decide.questions_file.empty())
      questions_ = loaders::read_text_file(options.decide.questions_file, kLargestState);
    else if (!options.decide.questions.empty())
      questions_ = text_of(questions_json(options.decide.questions), "a question");
  }

  Code run() {
    if (!options_.input.empty()) return run_batch();
    if (!options_.decide.states_file.empty()) return run_lines();
    return show(decide(request_json(state_json(), questions_)), {});
  }

 private:
  std::string state_json() const {
    const DecideOptions& own = options_.decide;
    if (own.state_given) return text_of(Json(own.state), "the state");
    if (own.state_file.empty())
      return text_of(Json(LineReader("-", "what is piped in", &interrupts_).rest(kLargestState)), "standard input");
    std::string text = loaders::read_text_file(own.state_file, kLargestState);
    return own.state_file.ends_with(".json") ? text : text_of(Json(text), own.state_file);
  }

  Decision decide(std::string json) {
    DecisionRequest request;
    request.json = std::move(json);
    request.priority = options_.request.priority;
    request.deadline = options_.request.deadline;
    if (options_.mode == Mode::route) {
      DecisionRules rules = options_.decide.rules;
      rules.fast = options_.rules.fast;
      rules.deep = options_.rules.deep;
      return engine_.decide(request, rules);
    }
    request.model = options_.only_model;
    return engine_.decide(request);
  }

  Code show(const Decision& decision, const std::string& heading) {
    if (decision.code != Code::ok) {
      print_error(decision.message);
    } else if (options_.json) {
      fmt::print("{}\n", json_of(decision));
    } else {
      fmt::print("{}{}\n", heading, table_of(decision));
    }
    std::fflush(stdout);
    return decision.code;
  }

  Code run_lines() {
    LineReader lines(options_.decide.states_file, "--states", &interrupts_);
    Code first_failure = Code::ok;
    for (std::string line; lines.next(line) && !interrupts_.pending();) {
      const Code code =
          show(decide(request_json(text_of(Json(line), fmt::format("line {}", lines.line_number())), questions_)),
               fmt::format("{}. {}\n", lines.line_number(), without_controls(line)));
      if (first_failure == Code::ok) first_failure = code;
    }
    return interrupts_.pending() ? Code::cancelled : first_failure;
  }

  Code run_batch() {
    LineReader lines(options_.input, "--input", &interrupts_);
    BatchOutput output(options_.output);
    Progress progress("deciding", Progress::Unit::lines, !options_.quiet);
    const std::uint64_t total = count_lines(options_.input);
    std::uint64_t skipped = 0;
    Code first_failure = Code::ok;
    const auto failed = [&](std::uint64_t line, Code code, const std::string& message) {
      if (first_failure == Code::ok) first_failure = code;
      progress.wipe();
      print_error(fmt::format("line {}: {}", line, message));
    };
    for (std::string line; lines.next(line);) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::uint64_t number = lines.line_number();
      const Line asked = read_line(line, fmt::format("{}:{}", lines.name(), number));
      if (!asked.problem.empty()) {
        failed(number, Code::bad_file, asked.problem);
        continue;
      }
      if (output.has(number, asked.id_json)) {
        ++skipped;
      } else {
        const Decision decision = decide(asked.request);
        if (decision.code == Code::cancelled && interrupts_.pending()) break;
        output.write(json_line_of(decision, number, asked.id_json));
        if (decision.code != Code::ok) failed(number, decision.code, decision.message);
      }
      progress.show(number, total, skipped);
    }
    return interrupts_.pending() ? Code::cancelled : first_failure;
  }

  struct Line {
    std::string id_json;
    std::string request;
    std::string problem;  // Why it cannot be asked.
  };

  /// A line is a request in the System One shape, with an "id" if need be, and without questions when the command line
  /// has them.
  Line read_line(const std::string& line, const std::string& place) const {
    Line read;
    try {
      const Json json = loaders::parse_json(line, place);
      const loaders::JsonObject object(json, place);
      if (const Json* id = object.find("id")) {
        if (!id->is_string() && !id->is_number()) object.refuse("id", "a string or a number");
        read.id_json = id->dump();
      }
      read.request = line;
      if (questions_.empty()) return read;
      if (object.has("questions")) object.refuse("questions", "nothing, as the command line brings the questions,");
      const std::size_t end = line.rfind('}');
      const bool is_empty = json.empty();
      read.request = fmt::format("{}{} \"questions\": {}}}", line.substr(0, end), is_empty ? "" : ",", questions_);
    } catch (const Error& error) {
      read.problem = error.what();
    }
    return read;
  }

  Engine& engine_;
  const RunOptions& options_;
  Interrupts& interrupts_;
  std::string questions_;  // JSON text; empty: every line brings its own.
};

}  // namespace

Code run_decide(Engine& engine, const RunOptions& options, Interrupts& interrupts) {
  return Deciding(engine, options, interrupts).run();
}

}  // namespace duet::run
