#include "tools/run/batch_output.h"

#include <fmt/format.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "duet/error.h"
#include "loaders/json_file.h"
#include "tools/run/line_reader.h"

namespace duet::run {

BatchOutput::BatchOutput(const std::string& path) : path_(path) {
  if (path_.empty() || path_ == "-") {
    path_.clear();
    file_ = stdout;
    return;
  }
  struct stat status {};
  const bool holds_lines = ::stat(path_.c_str(), &status) == 0 && S_ISREG(status.st_mode);
  if (holds_lines) read_earlier();  // Of /dev/null or a pipe there is nothing to go on with.
  file_ = std::fopen(path_.c_str(), "ab");
  if (file_ == nullptr) refuse_to_write();
}

BatchOutput::~BatchOutput() {
  if (!path_.empty() && file_ != nullptr) std::fclose(file_);
}

void BatchOutput::read_earlier() {
  LineReader lines(path_, "--output", nullptr);
  std::uint64_t whole_bytes = 0;
  for (std::string line; lines.next(line);) {
    if (!lines.line_feed_seen()) {  // The writer was stopped in the middle: the line is asked again.
      if (::truncate(path_.c_str(), static_cast<off_t>(whole_bytes)) != 0) refuse_to_write();
      return;
    }
    try {
      const loaders::Json json = loaders::parse_json(line, path_);
      const loaders::JsonObject object(json, path_);
      const auto of = static_cast<std::uint64_t>(object.integer("line", 1, std::int64_t{1} << 53));
      const loaders::Json* id = object.find("id");
      done_[of] = id == nullptr ? std::string() : id->dump();
    } catch (const Error& error) {
      throw Error(
          Code::bad_file,
          fmt::format("Line {} of '{}' is no answer of an earlier run: {}", lines.line_number(), path_, error.what()),
          "Give another --output, or move the file away");
    }
    whole_bytes += line.size() + 1;
  }
}

void BatchOutput::refuse_to_write() const {
  throw Error(Code::invalid_argument, fmt::format("'{}' cannot be written: {}", path_, std::strerror(errno)),
              "Check the folder and your rights to it");
}

bool BatchOutput::has(std::uint64_t line, const std::string& id_json) const {
  const auto found = done_.find(line);
  if (found == done_.end()) return false;
  if (found->second != id_json)
    throw Error(Code::bad_file,
                fmt::format("'{}' answers line {} with id {}, the input has id {} there", path_, line,
                            found->second.empty() ? "none" : found->second, id_json.empty() ? "none" : id_json),
                "The output belongs to another input: give another --output");
  return true;
}

void BatchOutput::write(std::string_view json_line) {
  const bool written = std::fwrite(json_line.data(), 1, json_line.size(), file_) == json_line.size() &&
                       std::fputc('\n', file_) != EOF && std::fflush(file_) == 0;
  if (!written)
    throw Error(
        Code::no_room,
        fmt::format("'{}' cannot be written: {}", path_.empty() ? "standard output" : path_, std::strerror(errno)),
        "Make room and start again: what was written stays");
}

}  // namespace duet::run
