#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/weights.h"

/// Code tables of the block formats and their plain, exact decoding: what "right" means for every kernel.
/// Source: bitsandbytes functional.py / csrc (formats nf4 and fp4), QLoRA, arXiv:2305.14314.
namespace duet {

extern const std::array<float, 16> kNf4Codes;  ///< Ascending; code 7 is zero.
extern const std::array<float, 16> kFp4Codes;  ///< Bit 3 is the sign; the order of magnitudes is not monotonic.

/// Legal block sizes: 4-bit 32, 64, ..., 4096; int8 32 or 64.
bool is_legal_block_size(Storage storage, int block_size);

/// bitsandbytes divides by no scale below this one, so that 1 / absmax is finite.
constexpr float kSmallestBlockScale = 1e-38F;

/// The codes of a 4-bit format in ascending order of value, and the midpoints between neighbours: a value takes the
/// code after the last midpoint that it strictly exceeds, so a tie goes to the lower value.
struct CodeLadder {
  std::array<float, 15> midpoints{};
  std::array<std::uint8_t, 16> codes{};
};
const CodeLadder& ladder_of(Storage storage);

/// Scale of block `block`, whatever way scales are held.
float scale_of(const Matrix& matrix, std::int64_t block);

/// Elements [first, first + destination.size()) of the flattened matrix, in float32: code * scale in one rounding.
void dequantise(const Matrix& matrix, std::int64_t first, std::span<float> destination);

}  // namespace duet
