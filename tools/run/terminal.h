#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "duet/engine.h"

/// What people see: standard output for answers, standard error for everything else.
namespace duet::run {

bool output_is_terminal();
bool errors_are_terminal();
bool input_is_terminal();

/// One line on standard error: "engine_run: <sentence>".
void print_error(std::string_view sentence);

/// A remark on standard error, dimmed on a terminal unless NO_COLOR is set.
void print_remark(std::string_view text);

/// `text` with control characters other than line feed and tab left out: an answer must not steer a terminal.
std::string without_controls(std::string_view text);

/// Writes an answer's text to standard output as it comes.
class TextPrinter final : public TokenSink {
 public:
  void on_text(std::string_view text) override;
  void finish();  ///< Ends the line when it is not ended.

 private:
  bool on_terminal_ = output_is_terminal();
  char last_ = '\n';
};

/// A bar on standard error with rate and time left; silent where that is no terminal. Thread-safe.
class Progress {
 public:
  enum class Unit { bytes, lines };
  Progress(std::string label, Unit unit, bool wanted);
  ~Progress();  ///< Wipes the bar.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `skipped` of `done` were there at the start: they do not count for the rate. total 0: not known.
  void show(std::uint64_t done, std::uint64_t total, std::uint64_t skipped = 0);
  void wipe();  ///< For a line of another kind; the next `show` draws the bar again.

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  Unit unit_;
  bool active_;
  std::mutex mutex_;
  std::size_t drawn_columns_ = 0;  // Of the bar on the screen; 0: there is none.
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = {};
};

/// The bar's text for a width of 24 cells: "laya [####----] 4/8  2.0/s  0:02 left".
std::string progress_text(std::string_view label, Progress::Unit unit, std::uint64_t done, std::uint64_t total,
                          double rate);

/// Progress of Engine::open.
class LoadBar final : public LoadSink {
 public:
  explicit LoadBar(bool wanted) : progress_("loading", Progress::Unit::bytes, wanted) {}
  void on_load(std::string_view model, std::uint64_t bytes_done, std::uint64_t bytes_total) override;

 private:
  Progress progress_;
};

}  // namespace duet::run
