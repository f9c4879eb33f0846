#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

/// Files opened once, mapped read-only, and read by position.
///
/// Policy for files that change under us. The size and the modification time seen at open are kept. `read` copies
/// through the file descriptor, so a file that got shorter is an Error, never a signal or a page of zeros; loaders copy
/// everything they keep through it. `bytes()` is the mapping itself, for readers that can look at pages in place: call
/// `check_unchanged()` before a pass over it. A file replaced by renaming another one over it stays the file that was
/// opened.
namespace duet::loaders {

enum class Symlinks : std::uint8_t { follow, refuse };

class MappedFile {
 public:
  /// Throws Error(not_found) when there is no such file, Error(bad_file) when it is not a regular file or cannot be
  /// read. `Symlinks::refuse` looks at the last component of `path` only.
  explicit MappedFile(const std::filesystem::path& path, Symlinks symlinks = Symlinks::follow);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& name() const { return name_; }  ///< Path as given, for messages.
  std::uint64_t size() const { return size_; }       ///< At open.
  std::int64_t modified_nanoseconds() const { return modified_nanoseconds_; }
  std::uint64_t device() const { return device_; }  ///< With `inode`: which file it is, whatever its path.
  std::uint64_t inode() const { return inode_; }

  /// The whole file as mapped; empty for an empty file. Thread-safe.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  /// Copies [offset, offset + destination.size()). Throws Error(bad_file) when the file no longer holds all of it.
  /// Thread-safe.
  void read(std::uint64_t offset, std::span<std::byte> destination) const;

  /// Throws Error(bad_file) with both sizes when size or modification time are not those seen at open.
  void check_unchanged() const;

 private:
  std::string name_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  std::int64_t modified_nanoseconds_ = 0;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

/// The whole of a small file. Throws Error(bad_file) when it is larger than `limit` bytes.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit);

}  // namespace duet::loaders
