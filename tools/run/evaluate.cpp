#include "tools/run/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/router.h"
#include "loaders/json_file.h"
#include "loaders/mapped_file.h"
#include "tools/run/ask.h"
#include "tools/run/terminal.h"

namespace duet::run {
namespace {

constexpr std::uint64_t kLargestCaseFile = std::uint64_t{256} << 20;
constexpr std::size_t kShownTextLength = 400;

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

LabelledCase parse_case(std::string_view line, const std::string& place, const std::vector<std::string>& fields) {
  const loaders::Json json = loaders::parse_json(line, place);
  const loaders::JsonObject object(json, place);
  LabelledCase labelled;
  labelled.text = object.text("text");
  for (const std::string& field : fields) labelled.right.push_back(object.text(field));
  return labelled;
}

// ---- asking ----

struct Run {
  std::vector<Answer> answers;
  double seconds = 0;
};

/// One model's answers to every case, in order. Stops early, with fewer answers, after Ctrl-C.
Run ask_all(Engine& engine, const RunOptions& options, const std::vector<LabelledCase>& cases, const std::string& model,
            int max_tokens, Interrupts& interrupts) {
  Progress progress(model, Progress::Unit::lines, !options.quiet);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Ticket> tickets;
  for (const LabelledCase& labelled : cases) {
    Request request = request_for(options, labelled.text);
    request.model = model;
    if (!options.max_tokens_given) request.max_tokens = max_tokens;
    tickets.push_back(engine.submit(request));
  }
  Run run;
  for (const Ticket ticket : tickets) {
    Answer answer = engine.wait(ticket);
    if (interrupts.pending()) continue;  // every ticket is waited for; the rest were cancelled
    run.answers.push_back(std::move(answer));
    progress.show(run.answers.size(), cases.size());
  }
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return run;
}

// ---- showing ----

std::string on_one_line(std::string_view text) {
  std::string line = without_controls(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  if (line.size() <= kShownTextLength) return line;
  std::size_t end = kShownTextLength;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0U) == 0x80U) --end;  // not inside a character
  return line.substr(0, end) + " ...";
}

std::string indented(std::string_view text) {
  std::string out;
  for (const char c : without_controls(trimmed(text))) {
    out += c;
    if (c == '\n') out += "         ";
  }
  return out;
}

Code show_samples(Engine& engine, const RunOptions& options, Interrupts& interrupts) {
  int number = 0;
  for (const LabelledCase& sample : read_cases(options.samples, {})) {
    if (interrupts.pending()) return Code::cancelled;
    const Reply reply = ask(engine, options, options.mode, request_for(options, sample.text), nullptr);
    if (const Code code = code_of(reply); code != Code::ok) {
      print_error(reply.answers.front().message);
      return code;
    }
    fmt::print("{:2}. {}\n", ++number, on_one_line(sample.text));
    if (reply.routed) {
      fmt::print("    {:<5}{}  ({})\n", reply.route.fast.model, indented(reply.route.fast.text), reply.route.reason);
      if (reply.route.escalated)
        fmt::print("    {:<5}{}\n", reply.route.answer.model, indented(reply.route.answer.text));
    } else {
      for (const Answer& answer : reply.answers) fmt::print("    {:<5}{}\n", answer.model, indented(answer.text));
    }
    fmt::print("\n");
  }
  return Code::ok;
}

// ---- scoring ----

double percent(int part, int whole) { return whole == 0 ? 0.0 : 100.0 * part / whole; }

void print_row(const std::string& name, const Score& score, bool counts_calls, double seconds) {
  fmt::print("  {:<14}{:>7.1f} %", name, percent(score.right, score.cases));
  for (const int right : score.field_right) fmt::print("{:>10.1f} %", percent(right, score.cases));
  fmt::print("{:>14}", counts_calls ? fmt::format("{:.0f} %", percent(score.deep_calls, score.cases)) : "");
  fmt::print("{:>12.1f}", score.tokens / std::max(1, score.cases));
  fmt::print("{:>10}\n", seconds > 0 ? fmt::format("{:.1f}", seconds) : "");
}

void print_head(const RunOptions& options, const std::string& calls_of) {
  fmt::print("  {:<14}{:>9}", "", "all right");
  for (const std::string& field : options.expect) fmt::print("{:>12}", field);
  fmt::print("{:>14}{:>12}{:>10}\n", calls_of, "tokens each", "seconds");
}

Code first_failure(const Run& run, std::size_t cases) {
  if (run.answers.size() < cases) return Code::cancelled;
  for (std::size_t i = 0; i < run.answers.size(); ++i) {
    if (run.answers[i].code == Code::ok) continue;
    print_error(fmt::format("Case {} failed: {}", i + 1, run.answers[i].message));
    return run.answers[i].code;
  }
  return Code::ok;
}

double tokens_of(const Answer& answer) { return static_cast<double>(answer.tokens.size()); }

Code score_one_model(Engine& engine, const RunOptions& options, const std::vector<LabelledCase>& cases,
                     Interrupts& interrupts) {
  const Run run = ask_all(engine, options, cases, options.only_model, options.request.max_tokens, interrupts);
  if (const Code code = first_failure(run, cases.size()); code != Code::ok) return code;
  Score score;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    count(score, cases[i], run.answers[i].text, options.expect);
    score.tokens += tokens_of(run.answers[i]);
  }
  print_head(options, "");
  print_row(options.only_model, score, false, run.seconds);
  return Code::ok;
}

Code score_pair(Engine& engine, const RunOptions& options, const std::vector<LabelledCase>& cases,
                Interrupts& interrupts) {
  const RouteRules& rules = options.rules;
  const Run fast = ask_all(engine, options, cases, rules.fast, rules.fast_max_tokens, interrupts);
  if (const Code code = first_failure(fast, cases.size()); code != Code::ok) return code;
  const Run deep = ask_all(engine, options, cases, rules.deep, rules.deep_max_tokens, interrupts);
  if (const Code code = first_failure(deep, cases.size()); code != Code::ok) return code;

  Score fast_alone, deep_alone, routed, kept, replaced;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const bool escalate = decide(fast.answers[i], rules).escalate;
    count(fast_alone, cases[i], fast.answers[i].text, options.expect);
    count(deep_alone, cases[i], deep.answers[i].text, options.expect);
    count(routed, cases[i], (escalate ? deep : fast).answers[i].text, options.expect);
    count(escalate ? replaced : kept, cases[i], fast.answers[i].text, options.expect);
    fast_alone.tokens += tokens_of(fast.answers[i]);
    deep_alone.tokens += tokens_of(deep.answers[i]);
    routed.tokens += tokens_of(fast.answers[i]) + (escalate ? tokens_of(deep.answers[i]) : 0);
    deep_alone.deep_calls += 1;
    routed.deep_calls += escalate ? 1 : 0;
  }
  print_head(options, fmt::format("calls of {}", rules.deep));
  print_row(rules.fast + " alone", fast_alone, true, fast.seconds);
  print_row(rules.deep + " alone", deep_alone, true, deep.seconds);
  print_row("routed", routed, true, 0);
  fmt::print("\n  Routing asked {} for {} of {} cases: {:.0f} % of its calls were saved.\n", rules.deep,
             routed.deep_calls, routed.cases, 100.0 - percent(routed.deep_calls, routed.cases));
  fmt::print(
      "  Where {} was kept she was right in {:.1f} % of {}; where she was not, she would have been in {:.1f} % of "
      "{}.\n",
      rules.fast, percent(kept.right, kept.cases), kept.cases, percent(replaced.right, replaced.cases), replaced.cases);
  return Code::ok;
}

}  // namespace

std::vector<LabelledCase> read_cases(const std::string& path, const std::vector<std::string>& fields) {
  const std::string content = loaders::read_text_file(path, kLargestCaseFile);
  std::vector<LabelledCase> cases;
  std::string_view rest = content;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (!trimmed(line).empty()) cases.push_back(parse_case(line, fmt::format("{} line {}", path, number), fields));
  }
  if (cases.empty())
    throw Error(Code::bad_file, fmt::format("'{}' holds no cases", path), "Give one JSON object a line");
  return cases;
}

std::string field_of(std::string_view answer, std::string_view field) {
  std::string found;
  for (std::size_t at = answer.find(field); at != std::string_view::npos; at = answer.find(field, at + 1)) {
    const std::string_view behind = answer.substr(at + field.size());
    const std::size_t before = answer.substr(0, at).find_last_not_of(" \t");
    const bool begins = before == std::string_view::npos || answer[before] == '\n' || answer[before] == '|';
    if (!begins || !behind.starts_with(':')) continue;
    const std::string_view value = behind.substr(1);
    found = trimmed(value.substr(0, value.find_first_of("|\n")));
  }
  return found;
}

void count(Score& score, const LabelledCase& labelled, std::string_view answer,
           const std::vector<std::string>& fields) {
  score.field_right.resize(fields.size());
  bool all = true;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const bool right = field_of(answer, fields[i]) == labelled.right[i];
    score.field_right[i] += right ? 1 : 0;
    all = all && right;
  }
  ++score.cases;
  score.right += all ? 1 : 0;
}

Code run_evaluation(Engine& engine, const RunOptions& options, Interrupts& interrupts) {
  if (!options.samples.empty()) {
    if (const Code code = show_samples(engine, options, interrupts); code != Code::ok) return code;
  }
  if (options.evaluate.empty()) return Code::ok;
  const std::vector<LabelledCase> cases = read_cases(options.evaluate, options.expect);
  fmt::print("Scores on the {} cases of {}\n\n", cases.size(), options.evaluate);
  return options.mode == Mode::single ? score_one_model(engine, options, cases, interrupts)
                                      : score_pair(engine, options, cases, interrupts);
}

}  // namespace duet::run
