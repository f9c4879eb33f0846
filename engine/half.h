#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

/// 16-bit floats as bit patterns, converted exactly as IEEE 754 (round to nearest, ties to even) says.
namespace duet {

enum class Half : std::uint16_t {};      ///< IEEE binary16.
enum class Bfloat16 : std::uint16_t {};  ///< The upper half of a binary32.

inline float to_float(Bfloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

float to_float(Half value);
/// Values beyond 65,504 (after rounding) become infinity: callers that must not lose them check first.
Half to_half(float value);
/// NaN stays NaN; values beyond the largest bfloat16 become infinity.
Bfloat16 to_bfloat16(float value);

}  // namespace duet
