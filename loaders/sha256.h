#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace duet::loaders {

/// SHA-256 (FIPS 180-4), for identities of content.
class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  template <typename Value>
  void add_value(const Value& value) {
    add(std::as_bytes(std::span(&value, 1)));
  }
  /// 64 hexadecimal digits of everything added so far. Ends this hash: add nothing after it.
  std::string hex();

 private:
  void compress(const std::byte* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::uint64_t bytes_ = 0;
};

}  // namespace duet::loaders
