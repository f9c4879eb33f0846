#include "tools/run/decide.h"

#include <fmt/format.h>

#include <string>

#include "loaders/mapped_file.h"
#include "tools/run/batch_output.h"
#include "tools/run/decide_report.h"
#include "tools/run/decision_request.h"
#include "tools/run/line_reader.h"
#include "tools/run/terminal.h"

namespace duet::run {
namespace {

using loaders::Json;

constexpr std::size_t kLargestState = std::size_t{16} << 20;

class Deciding {
 public:
  Deciding(Engine& engine, const RunOptions& options, Interrupts& interrupts)
      : engine_(engine),
        options_(options),
        interrupts_(interrupts),
        rules_(rules_of(options)),
        questions_(questions_text(options.decide)) {
    if (!rules_.temperatures.empty() && !options.quiet) print_remark(temperatures_remark(rules_));
  }

  Code run() {
    if (!options_.input.empty()) return run_batch();
    if (!options_.decide.states_file.empty()) return run_lines();
    return show(decide(request_text(state_json(), questions_)), {});
  }

 private:
  std::string state_json() const {
    const DecideOptions& own = options_.decide;
    if (own.state_given) return json_text(Json(own.state), "the state");
    if (own.state_file.empty())
      return json_text(Json(LineReader("-", "what is piped in", &interrupts_).rest(kLargestState)), "standard input");
    std::string text = loaders::read_text_file(own.state_file, kLargestState);
    return own.state_file.ends_with(".json") ? text : json_text(Json(text), own.state_file);
  }

  Decision decide(std::string json) {
    DecisionRequest request;
    request.json = std::move(json);
    request.priority = options_.request.priority;
    request.deadline = options_.request.deadline;
    return engine_.decide(request, rules_);
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
          show(decide(request_text(json_text(Json(line), fmt::format("line {}", lines.line_number())), questions_)),
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
      read.request = with_questions(line, object, questions_);
    } catch (const Error& error) {
      read.problem = error.what();
    }
    return read;
  }

  Engine& engine_;
  const RunOptions& options_;
  Interrupts& interrupts_;
  DecisionRules rules_;
  std::string questions_;  // JSON text; empty: every line brings its own.
};

}  // namespace

Code run_decide(Engine& engine, const RunOptions& options, Interrupts& interrupts) {
  return Deciding(engine, options, interrupts).run();
}

}  // namespace duet::run
