#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

/// What the fuzz entries share.
namespace duet::test {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// The input cut at bytes 0xFF, which no JSON text holds; the last of at most `most` pieces keeps the rest.
inline std::vector<std::string_view> pieces_of(std::string_view input, std::size_t most) {
  std::vector<std::string_view> pieces;
  while (pieces.size() + 1 < most) {
    const std::size_t cut = input.find('\xFF');
    pieces.push_back(input.substr(0, cut));
    if (cut == std::string_view::npos) return pieces;
    input.remove_prefix(cut + 1);
  }
  pieces.push_back(input);
  return pieces;
}

}  // namespace duet::test
