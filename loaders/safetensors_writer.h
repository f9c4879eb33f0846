#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace duet::loaders {

struct TensorToWrite {
  std::string name;
  std::string_view dtype;  ///< As files spell it: "F16".
  std::vector<std::int64_t> shape;
  std::size_t element_bytes = 2;

  std::uint64_t bytes() const;
};

/// One safetensors file, a tensor in memory at a time; `content` gives its bytes. It appears when it is complete.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::function<std::vector<std::byte>(const TensorToWrite&)>& content);

}  // namespace duet::loaders
