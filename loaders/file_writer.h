#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace duet::loaders {

/// Writes a file that appears under its name only when it is complete: it grows under a temporary name beside it, and
/// `finish` renames. Without `finish` nothing is left. Every failure is an Error naming the file.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::uint64_t offset, std::span<const std::byte> bytes);  ///< Gaps read as zeros.
  void finish();                                                       ///< Flushes to the disk, then renames.

 private:
  std::filesystem::path path_;
  std::string temporary_;
  int descriptor_ = -1;
};

}  // namespace duet::loaders
