#include "loaders/file_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view action, int reason) {
  const bool full = reason == ENOSPC || reason == EDQUOT || reason == EFBIG;
  const Code code = full ? Code::no_room : reason == ENOENT ? Code::not_found : Code::invalid_argument;
  throw Error(code, fmt::format("{} cannot be {}: {}", quote(path.string()), action, std::strerror(reason)),
              full ? "Free some room or choose another disk" : "Choose a folder that exists and can be written to");
}

}  // namespace

FileWriter::FileWriter(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path_, ignored)) fail(path_, "written", EISDIR);
  temporary_ = path_.string() + ".part-XXXXXX";
  descriptor_ = mkstemp(temporary_.data());
  if (descriptor_ < 0) fail(path_, "written", errno);
  fchmod(descriptor_, 0644);
}

FileWriter::~FileWriter() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(temporary_.c_str());
}

void FileWriter::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path_, "written", errno);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void FileWriter::finish() {
  if (fsync(descriptor_) != 0 && errno != EINVAL) fail(path_, "written", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "put in place", errno);
  close(descriptor_);
  descriptor_ = -1;
}

}  // namespace duet::loaders
