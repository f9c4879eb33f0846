#include "tools/run/session.h"

#include <fmt/format.h>

#include <cstdio>

#include "tools/run/ask.h"
#include "tools/run/line_reader.h"
#include "tools/run/report.h"
#include "tools/run/terminal.h"

namespace duet::run {
namespace {

constexpr std::string_view kSessionHelp =
    "/new       forget what was said (with --chat)\n"
    "/stats     counters and rates\n"
    "/plan      where every byte lies\n"
    "/help      this\n"
    "/quit      end; so does Ctrl-D\n"
    "Ctrl-C ends the answer that is coming, or the session.";

void print_failures(const Reply& reply) {
  for (const Answer& answer : reply.answers) {
    if (answer.code != Code::ok) print_error(answer.message);
  }
}

Reply print_json(Engine& engine, const RunOptions& options, const Request& request) {
  Reply reply = ask(engine, options, options.mode, request, nullptr);
  for (const Answer& answer : reply.answers)
    fmt::print("{}\n", json_of(answer, reply.routed ? &reply.route : nullptr, engine.counters()));
  std::fflush(stdout);
  return reply;
}

// One model after the other, each under its name.
Reply print_compared(Engine& engine, const RunOptions& options, Request request) {
  Reply all;
  for (const std::string& model : compared_models(options)) {
    fmt::print("{}{}:\n", all.answers.empty() ? "" : "\n", model);
    request.model = model;
    TextPrinter printer;
    all.answers.push_back(engine.run(request, &printer));
    printer.finish();
    if (all.answers.back().code == Code::cancelled) break;
  }
  return all;
}

Reply print_answer(Engine& engine, const RunOptions& options, const Request& request) {
  Reply reply;
  if (options.json) {
    reply = print_json(engine, options, request);
  } else if (options.mode == Mode::compare) {
    reply = print_compared(engine, options, request);
  } else {
    TextPrinter printer;
    reply = ask(engine, options, options.mode, request, &printer);
    printer.finish();
  }
  const std::string remark = remark_on(reply);
  if (!remark.empty() && !options.quiet && !options.json) print_remark(remark);
  print_failures(reply);
  return reply;
}

}  // namespace

Code run_prompt(Engine& engine, const RunOptions& options, const std::string& text) {
  return code_of(print_answer(engine, options, request_for(options, text)));
}

Code run_session(Engine& engine, const RunOptions& options, Interrupts& interrupts) {
  const bool talking = input_is_terminal() && !options.quiet;
  if (talking) print_remark("Ask; /help says what else there is.");
  LineReader reader("-", "standard input", &interrupts);
  std::vector<Message> said;
  for (std::string line;;) {
    if (talking) {
      fmt::print(stderr, "> ");
      std::fflush(stderr);
    }
    if (!reader.next(line) || line == "/quit") break;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (line == "/help") {
      fmt::print("{}\n", kSessionHelp);
    } else if (line == "/new") {
      said.clear();
    } else if (line == "/stats") {
      const Counters counters = engine.counters();
      fmt::print("{} requests, {} tokens generated, {} switches\n", counters.requests, counters.generated_tokens,
                 counters.switches);
    } else if (line == "/plan") {
      fmt::print("{}\n", engine.plan_table());
    } else {
      Request request = request_for(options, line);
      if (options.chat && !options.raw) {
        const std::ptrdiff_t behind_system = options.system.empty() ? 0 : 1;
        request.messages.insert(request.messages.begin() + behind_system, said.begin(), said.end());
      }
      const Reply reply = print_answer(engine, options, request);
      if (code_of(reply) == Code::ok) {
        said.push_back({"user", line});
        said.push_back({"assistant", reply.answers.front().text});
      }
      interrupts.forget();
    }
    std::fflush(stdout);
  }
  if (talking) fmt::print(stderr, "\n");
  return Code::ok;
}

}  // namespace duet::run
