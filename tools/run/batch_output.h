#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

namespace duet::run {

/// The JSONL file of answers, which may hold some from an earlier run.
class BatchOutput {
 public:
  /// "" or "-": standard output. Throws Error(bad_file) when the file holds lines that are no answers of ours.
  explicit BatchOutput(const std::string& path);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  std::size_t kept() const { return done_.size(); }
  /// Whether input line `line` has its answer. Throws Error(bad_file) when that answer is of a question with another
  /// id.
  bool has(std::uint64_t line, const std::string& id_json) const;
  bool has(std::uint64_t line) const { return done_.count(line) > 0; }

  void write(std::string_view json_line);  ///< With a line feed, flushed. Throws Error(no_room) when the disk is full.

 private:
  void read_earlier();
  [[noreturn]] void refuse_to_write() const;  // errno says why.

  std::string path_;
  std::map<std::uint64_t, std::string> done_;  // Line of the input -> its id as JSON text.
  std::FILE* file_ = nullptr;
};

}  // namespace duet::run
