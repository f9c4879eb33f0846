#include "tools/run/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace duet::run {
namespace {

bool colour_wanted() {
  const char* no_color = std::getenv("NO_COLOR");
  return errors_are_terminal() && (no_color == nullptr || *no_color == '\0');
}

bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F; }

std::string amount(Progress::Unit unit, double value) {
  return unit == Progress::Unit::bytes ? fmt::format("{:.1f} MiB", value / 0x1p20) : fmt::format("{:.0f}", value);
}

}  // namespace

bool output_is_terminal() { return isatty(STDOUT_FILENO) != 0; }
bool errors_are_terminal() { return isatty(STDERR_FILENO) != 0; }
bool input_is_terminal() { return isatty(STDIN_FILENO) != 0; }

void print_error(std::string_view sentence) { fmt::print(stderr, "engine_run: {}\n", without_controls(sentence)); }

void print_remark(std::string_view text) {
  const std::string clean = without_controls(text);
  fmt::print(stderr, "{}\n", colour_wanted() ? fmt::format("\x1b[2m{}\x1b[0m", clean) : clean);
}

std::string without_controls(std::string_view text) {
  std::string out(text);
  std::erase_if(out, is_control);
  return out;
}

void TextPrinter::on_text(std::string_view text) {
  if (text.empty()) return;
  const std::string shown = on_terminal_ ? without_controls(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
  last_ = text.back();
}

void TextPrinter::finish() {
  if (last_ != '\n') std::fputc('\n', stdout);
  std::fflush(stdout);
  last_ = '\n';
}

std::string progress_text(std::string_view label, Progress::Unit unit, std::uint64_t done, std::uint64_t total,
                          double rate) {
  constexpr std::uint64_t kCells = 24;
  std::string text = fmt::format("{} ", label);
  if (total > 0) {
    const std::uint64_t full = std::min(kCells, done * kCells / total);
    text += fmt::format("[{}{}] {}/{}", std::string(full, '#'), std::string(kCells - full, '-'),
                        amount(unit, static_cast<double>(done)), amount(unit, static_cast<double>(total)));
  } else {
    text += amount(unit, static_cast<double>(done));
  }
  if (!(rate > 0)) return text;
  text += unit == Progress::Unit::bytes ? fmt::format("  {}/s", amount(unit, rate)) : fmt::format("  {:.1f}/s", rate);
  if (total < done || total == 0) return text;
  const auto left = static_cast<std::uint64_t>(std::ceil(std::min(static_cast<double>(total - done) / rate, 1e9)));
  const std::uint64_t hours = left / 3600;
  const std::uint64_t minutes = left / 60 % 60;
  return text + (hours > 0 ? fmt::format("  {}:{:02}:{:02} left", hours, minutes, left % 60)
                           : fmt::format("  {}:{:02} left", minutes, left % 60));
}

Progress::Progress(std::string label, Unit unit, bool wanted)
    : label_(std::move(label)), unit_(unit), active_(wanted && errors_are_terminal()) {}

Progress::~Progress() { wipe(); }

void Progress::show(std::uint64_t done, std::uint64_t total, std::uint64_t skipped) {
  if (!active_) return;
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (drawn_columns_ > 0 && done != total && now - last_ < std::chrono::milliseconds(100)) return;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate = seconds > 0 && done > skipped ? static_cast<double>(done - skipped) / seconds : 0;
  const std::string text = progress_text(label_, unit_, done, total, rate);
  fmt::print(stderr, "\r{:<{}}", text, drawn_columns_);  // Blanks over what was longer: no escape sequence is needed.
  std::fflush(stderr);
  last_ = now;
  drawn_columns_ = std::max(drawn_columns_, text.size());
}

void Progress::wipe() {
  const std::lock_guard lock(mutex_);
  if (drawn_columns_ > 0) fmt::print(stderr, "\r{:{}}\r", "", drawn_columns_);
  std::fflush(stderr);
  drawn_columns_ = 0;
}

void LoadBar::on_load(std::string_view, std::uint64_t bytes_done, std::uint64_t bytes_total) {
  progress_.show(bytes_done, bytes_total);
}

}  // namespace duet::run
