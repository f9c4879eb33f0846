#include "tests/support/golden.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tests/support/test_data.h"

namespace duet::test {

GoldenArrays::GoldenArrays(const std::filesystem::path& index) : path_((golden_directory() / index).string()) {
  index_ = nlohmann::json::parse(read_file(path_));
  data_ = read_file(std::filesystem::path(path_).replace_filename(index_.at("bin").get<std::string>()));
}

bool GoldenArrays::has(std::string_view name) const { return index_.at("arrays").contains(std::string(name)); }

std::vector<std::int64_t> GoldenArrays::shape(std::string_view name) const {
  if (!has(name)) throw std::runtime_error(path_ + ": no array " + std::string(name));
  return index_["arrays"][std::string(name)].at("shape").get<std::vector<std::int64_t>>();
}

template <typename T>
std::vector<T> GoldenArrays::read(std::string_view name, std::initializer_list<std::string_view> dtypes) const {
  if (!has(name)) throw std::runtime_error(path_ + ": no array " + std::string(name));
  const nlohmann::json& entry = index_["arrays"][std::string(name)];
  const auto dtype = entry.at("dtype").get<std::string>();
  const auto offset = entry.at("offset").get<std::size_t>();
  const auto size = entry.at("bytes").get<std::size_t>();
  if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end())
    throw std::runtime_error(path_ + ": array " + std::string(name) + " is " + dtype);
  if (offset > data_.size() || size > data_.size() - offset || size % sizeof(T) != 0)
    throw std::runtime_error(path_ + ": array " + std::string(name) + " does not lie in the data");
  std::vector<T> values(size / sizeof(T));
  if (size > 0) std::memcpy(values.data(), data_.data() + offset, size);
  return values;
}

std::vector<float> GoldenArrays::floats(std::string_view name) const { return read<float>(name, {"F32"}); }

std::vector<std::int32_t> GoldenArrays::integers(std::string_view name) const {
  return read<std::int32_t>(name, {"I32"});
}

std::vector<std::uint8_t> GoldenArrays::bytes(std::string_view name) const {
  return read<std::uint8_t>(name, {"U8", "I8"});
}

std::vector<std::uint16_t> GoldenArrays::half_words(std::string_view name) const {
  return read<std::uint16_t>(name, {"U16"});
}

std::vector<GoldenPrompt> golden_prompts(const nlohmann::json& index) {
  using Ids = std::vector<std::int32_t>;
  std::vector<GoldenPrompt> prompts;
  for (const nlohmann::json& entry : index.at("prompts"))
    prompts.push_back({entry.at("name").get<std::string>(), entry.value("text", std::string()),
                       entry.at("ids").get<Ids>(), entry.at("positions").get<Ids>(), entry.value("greedy", Ids())});
  return prompts;
}

std::vector<std::string> golden_names(std::string_view part) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_directory() / part))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace duet::test
