#include "tools/run/batch.h"

#include <fmt/format.h>

#include <deque>
#include <future>

#include "tools/run/ask.h"
#include "tools/run/batch_output.h"
#include "tools/run/line_reader.h"
#include "tools/run/questions.h"
#include "tools/run/report.h"
#include "tools/run/terminal.h"

namespace duet::run {
namespace {

// The lines that ask something: blank ones are passed over, but counted.
class BatchInput {
 public:
  BatchInput(const std::string& path, Interrupts& interrupts)
      : lines_(path, "--input", &interrupts), total_(count_lines(path)) {}

  bool next(std::string& line) {  // False at the end and after Ctrl-C.
    while (lines_.next(line)) {
      if (number() == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
      if (line.ends_with('\r')) line.pop_back();
      if (line.find_first_not_of(" \t") != std::string::npos) return true;
    }
    return false;
  }

  std::uint64_t number() const { return lines_.line_number(); }
  std::string place(std::uint64_t number) const { return fmt::format("{}:{}", lines_.name(), number); }
  std::uint64_t total() const { return total_; }  ///< 0: not known.

 private:
  LineReader lines_;
  std::uint64_t total_;
};

struct Asked {
  std::uint64_t line = 0;
  std::string id_json;
  std::future<Reply> reply;
};

class Batch {
 public:
  Batch(Engine& engine, const RunOptions& options, Interrupts& interrupts)
      : engine_(engine),
        options_(options),
        interrupts_(interrupts),
        input_(options.input, interrupts),
        output_(options.output),
        progress_("answering", Progress::Unit::lines, !options.quiet) {}

  Code run() {
    const auto window = static_cast<std::size_t>(options_.engine.max_sequences);
    std::string line;
    while (!interrupts_.pending() && input_.next(line)) {
      take(line, input_.number());
      while (asked_.size() >= window) write_next();
    }
    while (!asked_.empty()) write_next();
    if (interrupts_.pending() || cancelled_) return Code::cancelled;
    return first_failure_;
  }

 private:
  void take(const std::string& line, std::uint64_t number) {
    try {
      Question question = parse_question(line, input_.place(number), options_);
      if (output_.has(number, question.id_json)) {
        ++skipped_;
        finished(number);
        return;
      }
      std::string id = question.id_json;
      asked_.push_back({number, std::move(id), std::async(std::launch::async, [this, own = std::move(question)] {
                          return ask(engine_, options_, own.mode, own.request, nullptr);
                        })});
    } catch (const Error& error) {
      if (error.code() != Code::bad_file || output_.has(number)) throw;
      note_failure(error.code());
      progress_.wipe();
      print_error(fmt::format("line {} is skipped: {}", number, error.what()));
    }
  }

  // In order: the oldest question that is asked, when its answer is there.
  void write_next() {
    Asked next = std::move(asked_.front());
    asked_.pop_front();
    const Reply reply = next.reply.get();
    const Code code = code_of(reply);
    // After a cancelled line nothing more is written: the output stays a beginning of the whole, to go on from.
    cancelled_ = cancelled_ || (code == Code::cancelled && interrupts_.pending());
    if (cancelled_) return;
    output_.write(json_line_of(reply, next.line, next.id_json, engine_.counters()));
    if (code != Code::ok) {
      note_failure(code);
      progress_.wipe();
      for (const Answer& answer : reply.answers) {
        if (answer.code != Code::ok) print_error(fmt::format("line {}: {}", next.line, answer.message));
      }
    }
    finished(next.line);
  }

  void note_failure(Code code) {
    if (first_failure_ == Code::ok) first_failure_ = code;
  }
  void finished(std::uint64_t line) { progress_.show(line, input_.total(), skipped_); }

  Engine& engine_;
  const RunOptions& options_;
  Interrupts& interrupts_;
  BatchInput input_;
  BatchOutput output_;
  Progress progress_;
  std::deque<Asked> asked_;
  std::uint64_t skipped_ = 0;
  bool cancelled_ = false;
  Code first_failure_ = Code::ok;
};

}  // namespace

Code run_batch(Engine& engine, const RunOptions& options, Interrupts& interrupts) {
  return Batch(engine, options, interrupts).run();
}

}  // namespace duet::run
