#include "tools/run/batch_output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "duet/error.h"
#include "loaders/json_file.h"

namespace duet::run {

BatchOutput::BatchOutput(const std::string& path) : path_(path) {
  if (path_.empty() || path_ == "-") {
    path_.clear();
    file_ = stdout;
    return;
  }
  if (std::filesystem::exists(path_)) read_earlier();
  file_ = std::fopen(path_.c_str(), "ab");
  if (file_ == nullptr)
    throw Error(Code::invalid_argument, fmt::format("'{}' cannot be written: {}", path_, std::strerror(errno)),
                "Check the folder and your rights to it");
}

BatchOutput::~BatchOutput() {
  if (!path_.empty() && file_ != nullptr) std::fclose(file_);
}

void BatchOutput::read_earlier() {
  if (!std::filesystem::is_regular_file(path_)) return;  // /dev/null, a pipe: nothing to go on with.
  std::ifstream file(path_, std::ios::binary);
  if (!file) throw Error(Code::invalid_argument, fmt::format("'{}' cannot be read", path_), "Check your rights to it");
  std::uint64_t whole_bytes = 0;
  std::string line;
  for (std::uint64_t number = 1; std::getline(file, line); ++number) {
    if (file.eof()) break;  // No line feed: the writer was stopped in the middle.
    try {
      const loaders::Json json = loaders::parse_json(line, path_);
      const loaders::JsonObject object(json, path_);
      const auto of = static_cast<std::uint64_t>(object.integer("line", 1, std::int64_t{1} << 53));
      const loaders::Json* id = object.find("id");
      done_[of] = id == nullptr ? std::string() : id->dump();
    } catch (const Error& error) {
      throw Error(Code::bad_file,
                  fmt::format("Line {} of '{}' is no answer of an earlier run: {}", number, path_, error.what()),
                  "Give another --output, or move the file away");
    }
    whole_bytes += line.size() + 1;
  }
  file.close();
  if (whole_bytes != std::filesystem::file_size(path_)) std::filesystem::resize_file(path_, whole_bytes);
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
