#include "engine/half.h"

namespace duet {

float to_float(Half value) {
  const auto bits = static_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in binary32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

Half to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<Half>(sign | 0x7E00U);   // NaN
  if (magnitude >= 0x477FF000U) return static_cast<Half>(sign | 0x7C00U);  // rounds past 65,504
  if (magnitude < 0x38800000U) {
    // Subnormal or zero: adding 0.5 puts the wanted bits, already rounded to even, at the bottom of the mantissa.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<Half>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<Half>(sign | ((rounded - 0x38000000U) >> 13));
}

Bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<Bfloat16>((bits >> 16) | 0x40U);
  return static_cast<Bfloat16>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace duet
