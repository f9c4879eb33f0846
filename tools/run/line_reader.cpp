#include "tools/run/line_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "duet/error.h"

namespace duet::run {
namespace {

constexpr std::size_t kBytesAtOnce = std::size_t{64} << 10;

int open_to_read(const std::string& path, const std::string& option) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) return descriptor;
  if (errno == ENOENT) throw Error(Code::not_found, fmt::format("'{}' is not there", path), "Check " + option);
  throw Error(Code::invalid_argument, fmt::format("'{}' cannot be read: {}", path, std::strerror(errno)),
              "Check " + option);
}

}  // namespace

LineReader::LineReader(const std::string& path, std::string option, Interrupts* interrupts)
    : name_(path == "-" ? "standard input" : path),
      option_(std::move(option)),
      interrupts_(interrupts),
      descriptor_(path == "-" ? STDIN_FILENO : open_to_read(path, option_)) {}

LineReader::~LineReader() {
  if (descriptor_ != STDIN_FILENO) ::close(descriptor_);
}

bool LineReader::next(std::string& line) {
  for (;;) {
    const std::size_t end = buffer_.find('\n', searched_);
    const std::size_t length = std::min(end, buffer_.size()) - begin_;
    if (length > kLongestLine)
      throw Error(Code::bad_file,
                  fmt::format("Line {} of '{}' is longer than {} bytes", line_number_ + 1, name_, kLongestLine),
                  "Give one question a line");
    line_feed_seen_ = end != std::string::npos;
    searched_ = buffer_.size();
    if (!line_feed_seen_ && read_more()) continue;
    if (interrupts_ != nullptr && interrupts_->pending()) return false;
    if (!line_feed_seen_ && length == 0) return false;
    line.assign(buffer_, begin_, length);
    begin_ = searched_ = begin_ + length + (line_feed_seen_ ? 1 : 0);
    ++line_number_;
    return true;
  }
}

std::string LineReader::rest(std::size_t limit) {
  while (read_more()) {
    if (buffer_.size() - begin_ <= limit) continue;
    throw Error(Code::bad_file, fmt::format("'{}' holds more than {} bytes", name_, limit), "Check " + option_);
  }
  std::string all = buffer_.substr(begin_);
  begin_ = searched_ = buffer_.size();
  return all;
}

// False at the end and after Ctrl-C.
bool LineReader::read_more() {
  buffer_.erase(0, begin_);
  searched_ -= begin_;
  begin_ = 0;
  if (interrupts_ != nullptr) {
    std::array<pollfd, 2> waited = {{{descriptor_, POLLIN, 0}, {interrupts_->descriptor(), POLLIN, 0}}};
    while (::poll(waited.data(), waited.size(), -1) < 0 && errno == EINTR) {
    }
    if (waited[1].revents != 0) return false;
  }
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kBytesAtOnce);
  ssize_t count = 0;
  do {
    count = ::read(descriptor_, buffer_.data() + before, kBytesAtOnce);
  } while (count < 0 && errno == EINTR);
  const int reason = errno;
  buffer_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0)
    throw Error(Code::invalid_argument, fmt::format("'{}' cannot be read: {}", name_, std::strerror(reason)),
                "Check " + option_);
  return count > 0;
}

std::uint64_t count_lines(const std::string& path) {
  struct stat status {};
  if (path == "-" || ::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  std::array<char, kBytesAtOnce> bytes;
  std::uint64_t lines = 0;
  bool ends_in_line_feed = true;
  for (ssize_t count = 0; (count = ::read(descriptor, bytes.data(), bytes.size())) > 0;) {
    lines += static_cast<std::uint64_t>(std::count(bytes.data(), bytes.data() + count, '\n'));
    ends_in_line_feed = bytes[static_cast<std::size_t>(count - 1)] == '\n';
  }
  ::close(descriptor);
  return lines + (ends_in_line_feed ? 0 : 1);
}

}  // namespace duet::run
