#include "loaders/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

std::int64_t nanoseconds_of(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

int open_descriptor(const std::filesystem::path& path, const std::string& name, Symlinks symlinks) {
  // O_NONBLOCK: a FIFO with no writer must not hang the open; it is refused below as no regular file.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (symlinks == Symlinks::refuse ? O_NOFOLLOW : 0);
  const int descriptor = ::open(path.c_str(), flags);
  if (descriptor >= 0) return descriptor;
  const int reason = errno;
  if (reason == ENOENT || reason == ENOTDIR) {
    throw Error(Code::not_found, fmt::format("There is no file {}", quote(name)), "Check the path");
  }
  throw Error(Code::bad_file, fmt::format("Cannot open {}: {}", quote(name), std::strerror(reason)));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path, Symlinks symlinks) : name_(path.string()) {
  if (name_.find('\0') != std::string::npos) {
    throw Error(Code::bad_file, fmt::format("File name {} holds a NUL byte", quote(name_)));
  }
  descriptor_ = open_descriptor(path, name_, symlinks);
  struct stat status {};
  try {
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      throw Error(Code::bad_file, fmt::format("{} is not a regular file", quote(name_)));
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
    modified_nanoseconds_ = nanoseconds_of(status.st_mtim);
    device_ = static_cast<std::uint64_t>(status.st_dev);
    inode_ = static_cast<std::uint64_t>(status.st_ino);
    if (size_ > 0) {
      void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
      if (mapped == MAP_FAILED) {
        throw Error(Code::bad_file,
                    fmt::format("Cannot map {} ({} bytes): {}", quote(name_), size_, std::strerror(errno)));
      }
      data_ = static_cast<const std::byte*>(mapped);
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(descriptor_);
}

void MappedFile::read(std::uint64_t offset, std::span<std::byte> destination) const {
  if (offset > size_ || destination.size() > size_ - offset) {
    throw Error(Code::bad_file, fmt::format("{} bytes at {} were asked of {}, which has {}", destination.size(), offset,
                                            quote(name_), size_));
  }
  constexpr std::size_t kLargestRead = std::size_t{1} << 30;
  while (!destination.empty()) {
    const std::size_t wanted = std::min(destination.size(), kLargestRead);
    const ssize_t got = ::pread(descriptor_, destination.data(), wanted, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error(Code::bad_file,
                  fmt::format("Reading {} at byte {} failed: {}", quote(name_), offset, std::strerror(errno)));
    }
    if (got == 0) {
      throw Error(Code::bad_file,
                  fmt::format("{} had {} bytes when it was opened and ends at {} now", quote(name_), size_, offset),
                  "Leave model files alone while they are loaded");
    }
    destination = destination.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void MappedFile::check_unchanged() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    throw Error(Code::bad_file, fmt::format("Cannot look at {}: {}", quote(name_), std::strerror(errno)));
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size == size_ && nanoseconds_of(status.st_mtim) == modified_nanoseconds_) return;
  throw Error(Code::bad_file,
              fmt::format("{} was changed after it was opened ({} bytes then, {} now)", quote(name_), size_, size),
              "Leave model files alone while they are loaded");
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit) {
  const MappedFile file(path);
  if (file.size() > limit) {
    throw Error(Code::bad_file, fmt::format("{} has {} bytes; at most {} are read of a file of this kind",
                                            quote(file.name()), file.size(), limit));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace duet::loaders
