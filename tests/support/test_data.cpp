#include "tests/support/test_data.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace duet::test {

std::filesystem::path golden_directory() { return std::filesystem::path(DUET_SOURCE_DIR) / "tests/golden/data"; }

std::optional<std::filesystem::path> shared_data_directory() {
  if (const char* named = std::getenv("DUET_SHARED_DATA")) return std::filesystem::path(named);
  const auto beside = std::filesystem::path(DUET_SOURCE_DIR).parent_path() / "shared/data";
  if (std::filesystem::is_directory(beside)) return beside;
  return std::nullopt;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "duet-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace duet::test
