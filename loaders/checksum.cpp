#include "loaders/checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace duet::loaders {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                        kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;

template <typename T>
T load(const std::byte* bytes) {
  static_assert(std::endian::native == std::endian::little, "checksums are defined over little-endian words");
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::uint64_t round_of(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

void add_stripe(std::array<std::uint64_t, 4>& lanes, const std::byte* stripe) {
  for (std::size_t i = 0; i < 4; ++i) lanes[i] = round_of(lanes[i], load<std::uint64_t>(stripe + 8 * i));
}

/// The bytes after the last whole stripe, then the final mixing.
std::uint64_t finish(std::uint64_t hash, std::span<const std::byte> rest) {
  for (; rest.size() >= 8; rest = rest.subspan(8))
    hash = std::rotl(hash ^ round_of(0, load<std::uint64_t>(rest.data())), 27) * kPrime1 + kPrime4;
  for (; rest.size() >= 4; rest = rest.subspan(4))
    hash = std::rotl(hash ^ (load<std::uint32_t>(rest.data()) * kPrime1), 23) * kPrime2 + kPrime3;
  for (const std::byte byte : rest)
    hash = std::rotl(hash ^ (std::to_integer<std::uint64_t>(byte) * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

void Checksum::add(std::span<const std::byte> bytes) {
  const std::size_t held = total_ % rest_.size();
  total_ += bytes.size();
  if (held > 0) {
    const std::size_t taken = std::min(rest_.size() - held, bytes.size());
    std::copy_n(bytes.begin(), taken, rest_.begin() + static_cast<std::ptrdiff_t>(held));
    bytes = bytes.subspan(taken);
    if (held + taken < rest_.size()) return;
    add_stripe(lanes_, rest_.data());
  }
  for (; bytes.size() >= rest_.size(); bytes = bytes.subspan(rest_.size())) add_stripe(lanes_, bytes.data());
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
}

std::uint64_t Checksum::value() const {
  std::uint64_t hash = kPrime5;
  if (total_ >= rest_.size()) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ round_of(0, lane)) * kPrime1 + kPrime4;
  }
  return finish(hash + total_, std::span(rest_).first(total_ % rest_.size()));
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  Checksum checksum;
  checksum.add(bytes);
  return checksum.value();
}

std::string hex_of(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace duet::loaders
