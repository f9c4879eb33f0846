#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace duet::loaders {

/// 64-bit checksum of bytes that come in pieces: XXH64 with seed 0 (the xxHash specification, algorithm of Yann
/// Collet). It finds damage, not malice.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  ///< Of everything added so far.

 private:
  std::array<std::uint64_t, 4> lanes_ = {0x60EA27EEADC0B5D6, 0xC2B2AE3D27D4EB4F, 0, 0x61C8864E7A143579};
  std::array<std::byte, 32> rest_{};  ///< Bytes that do not fill a stripe yet: the last total_ % 32.
  std::uint64_t total_ = 0;
};

std::uint64_t checksum_of(std::span<const std::byte> bytes);

std::string hex_of(std::uint64_t value);  ///< 16 lower-case digits.

}  // namespace duet::loaders
