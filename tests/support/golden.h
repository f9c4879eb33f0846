#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

/// Reader of the golden arrays (tests/golden/README.md): an index X.json and the numbers in X.bin beside it. It throws
/// std::runtime_error with file and array named; it shares no code with what it judges.
namespace duet::test {

class GoldenArrays {
 public:
  /// `index` is relative to tests/golden/data: "models/qwen2/expected.json".
  explicit GoldenArrays(const std::filesystem::path& index);

  const nlohmann::json& index() const { return index_; }
  bool has(std::string_view name) const;
  std::vector<std::int64_t> shape(std::string_view name) const;

  std::vector<float> floats(std::string_view name) const;              ///< F32
  std::vector<std::int32_t> integers(std::string_view name) const;     ///< I32
  std::vector<std::uint8_t> bytes(std::string_view name) const;        ///< U8, and I8 as its bit pattern
  std::vector<std::uint16_t> half_words(std::string_view name) const;  ///< U16: bit patterns of 16-bit floats

 private:
  template <typename T>
  std::vector<T> read(std::string_view name, std::initializer_list<std::string_view> dtypes) const;

  std::string path_;
  nlohmann::json index_;
  std::string data_;
};

/// One entry of "prompts" in an expected.json.
struct GoldenPrompt {
  std::string name;
  std::string text;  ///< Empty: the ids were drawn at random.
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> positions;  ///< Positions that have logits.
  std::vector<std::int32_t> greedy;     ///< Empty: not recorded.
};

std::vector<GoldenPrompt> golden_prompts(const nlohmann::json& index);

/// Names of the folders in tests/golden/data/<part>, sorted.
std::vector<std::string> golden_names(std::string_view part);

}  // namespace duet::test
