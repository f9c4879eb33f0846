#include <fmt/format.h>

#include <chrono>
#include <exception>

#include "duet/engine.h"
#include "loaders/kev_checkpoint.h"
#include "loaders/mapped_file.h"
#include "loaders/storage_choice.h"
#include "tools/run/batch.h"
#include "tools/run/calibrate.h"
#include "tools/run/decide.h"
#include "tools/run/evaluate.h"
#include "tools/run/interrupt.h"
#include "tools/run/line_reader.h"
#include "tools/run/options.h"
#include "tools/run/report.h"
#include "tools/run/session.h"
#include "tools/run/terminal.h"

// engine_run: asks models from the command line. Exit codes are duet::Code, and 130 after a second Ctrl-C.
namespace duet::run {
namespace {

constexpr std::size_t kLargestPromptFile = std::size_t{16} << 20;

std::string without_last_line_feed(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::string piped_prompt(Interrupts& interrupts) {
  std::string text = without_last_line_feed(LineReader("-", "what is piped in", &interrupts).rest(kLargestPromptFile));
  if (text.empty()) throw Error(Code::invalid_argument, "Standard input is empty", "Give a prompt; --help says how");
  return text;
}

Engine open_with_bar(const RunOptions& options) {
  LoadBar bar(!options.quiet);  // Gone from the screen when this returns.
  Options engine = options.engine;
  engine.load_sink = &bar;
  return Engine::open(engine);
}

/// "laya bf16, kev int8"
std::string weights_text(const Engine& engine, const RunOptions& options) {
  std::string text;
  for (const ModelOptions& model : options.engine.models)
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", model.name, loaders::name_of(engine.weight_type(model.name)));
  return text;
}

void warn_of_4bit_kevs(const Engine& engine, const RunOptions& options) {
  for (const ModelOptions& model : options.engine.models) {
    const WeightType type = engine.weight_type(model.name);
    if ((type == WeightType::nf4 || type == WeightType::fp4) && loaders::is_kev(model))
      print_remark(
          fmt::format("{} is held in {}: its probabilities move more than in int8, a Kev's default "
                      "(docs/typed-decisions.md, Weights)",
                      model.name, loaders::name_of(type)));
  }
}

Engine open(const RunOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  Engine engine = open_with_bar(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (options.verbose) {
    print_remark(engine.load_report());
  } else if (!options.quiet) {
    print_remark(
        fmt::format("loaded in {:.1f} s on {}: {}", seconds, engine.device_name(), weights_text(engine, options)));
  }
  if (!options.quiet) warn_of_4bit_kevs(engine, options);
  return engine;
}

Code answer(Engine& engine, const RunOptions& options, const LabelledData& labelled, Interrupts& interrupts) {
  if (options.calibrate.asked) return run_calibration(engine, options, labelled, interrupts);
  if (options.decide.asked) return run_decide(engine, options, interrupts);
  if (!options.samples.empty() || !options.evaluate.empty()) return run_evaluation(engine, options, interrupts);
  if (!options.input.empty()) return run_batch(engine, options, interrupts);
  if (options.prompt_given) return run_prompt(engine, options, options.prompt);
  if (!options.prompt_file.empty())
    return run_prompt(engine, options,
                      without_last_line_feed(loaders::read_text_file(options.prompt_file, kLargestPromptFile)));
  if (options.interactive || input_is_terminal()) return run_session(engine, options, interrupts);
  return run_prompt(engine, options, piped_prompt(interrupts));
}

int run(RunOptions& options) {
  if (options.plan) {
    fmt::print("{}\n", Engine::plan(options.engine));
    return 0;
  }
  Interrupts interrupts;
  const LabelledData labelled = options.calibrate.asked ? read_labelled(options) : LabelledData();
  Engine engine = open(options);
  interrupts.watch(&engine);
  const auto begin = std::chrono::steady_clock::now();
  const Code code = answer(engine, options, labelled, interrupts);
  if (options.stats)
    fmt::print(stderr, "{}\n",
               stats_text(engine, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()));
  interrupts.watch(nullptr);
  return static_cast<int>(code);
}

}  // namespace
}  // namespace duet::run

int main(int argc, char** argv) {
  using duet::run::print_error;
  duet::run::RunOptions options;
  int exit_code = 0;
  try {
    if (!duet::run::read_options(argc, argv, options, exit_code)) return exit_code;
    return duet::run::run(options);
  } catch (const duet::Error& error) {
    print_error(error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    print_error(error.what());
    return static_cast<int>(duet::Code::internal);
  }
}
