#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

/// Where test data lies.
namespace duet::test {

/// tests/golden/data in the source tree.
std::filesystem::path golden_directory();

/// Third-party data that is not in the repository: $DUET_SHARED_DATA, else ../shared/data beside the source tree;
/// nothing when absent.
std::optional<std::filesystem::path> shared_data_directory();

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view content);

/// A fresh empty folder, removed with its content when the object dies.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace duet::test
