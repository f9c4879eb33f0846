#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "engine/weight_source.h"

namespace duet::test {

/// Takes a stored tensor in rooms of one size.
class Pieces final : public StoredSink {
 public:
  explicit Pieces(std::size_t room) : room_(room) {}
  std::span<std::byte> room(std::size_t offset) override {
    EXPECT_EQ(offset, bytes.size());
    return room_;
  }
  void filled(std::size_t count) override {
    bytes.insert(bytes.end(), room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  std::vector<std::byte> bytes;

 private:
  std::vector<std::byte> room_;
};

}  // namespace duet::test
