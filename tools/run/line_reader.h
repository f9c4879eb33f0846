#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tools/run/interrupt.h"

namespace duet::run {

constexpr std::size_t kLongestLine = std::size_t{16} << 20;  // Bytes, far over the longest context there is.

/// The lines of a file, a pipe, a device or standard input. Waits for input no longer than until Ctrl-C.
class LineReader {
 public:
  /// "-": standard input. `interrupts` may be null. Throws Error(not_found) or Error(invalid_argument), naming
  /// `option`, the option that gave the path, when it cannot be opened.
  LineReader(const std::string& path, std::string option, Interrupts* interrupts);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// The next line without its line feed; false at the end and after Ctrl-C.
  /// Throws Error(bad_file) on a line over kLongestLine and Error(invalid_argument) when the system cannot read.
  bool next(std::string& line);
  /// Everything that is left, at most `limit` bytes. Throws as `next`.
  std::string rest(std::size_t limit);

  bool line_feed_seen() const { return line_feed_seen_; }  ///< The last line had its line feed: it was written whole.
  std::uint64_t line_number() const { return line_number_; }  ///< Of the last line, from 1.
  const std::string& name() const { return name_; }           ///< The path, or "standard input".

 private:
  bool read_more();

  std::string name_;
  std::string option_;
  Interrupts* interrupts_;
  int descriptor_ = -1;
  std::string buffer_;
  std::size_t begin_ = 0;     // Of what of the buffer is not handed out.
  std::size_t searched_ = 0;  // No line feed stands in [begin_, searched_).
  std::uint64_t line_number_ = 0;
  bool line_feed_seen_ = false;
};

/// Lines of a regular file; 0 for anything else, whose end is not known.
std::uint64_t count_lines(const std::string& path);

}  // namespace duet::run
