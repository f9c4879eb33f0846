#pragma once

// Selection by radix: numbers as unsigned keys of the same order, and the digit of a threshold found from a histogram
// of 256 bins. Thread t of 256 stands for bin 255 - t, so that a scan over threads runs from the largest down.

#include <cstdint>

#include "cuda/device/reduce.cuh"

namespace duet::cuda {

constexpr int kDigitBits = 8;
constexpr int kBins = 1 << kDigitBits;
constexpr int kDigits = 32 / kDigitBits;

/// Orders as the float does; -0 and 0 have one key. No NaN. Key 0 belongs to no number.
__device__ inline std::uint32_t key_of(float value) {
  const std::uint32_t bits = value == 0 ? 0U : __float_as_uint(value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float value_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

/// Larger values first, among equal ones the lower id.
__device__ inline std::uint64_t ranked_key(float value, std::uint32_t id) {
  return std::uint64_t{key_of(value)} << 32 | ~id;
}
__device__ inline float value_of_ranked(std::uint64_t key) { return value_of(static_cast<std::uint32_t>(key >> 32)); }
__device__ inline std::uint32_t id_of_ranked(std::uint64_t key) { return ~static_cast<std::uint32_t>(key); }

/// The leading digits of a threshold, as far as they are known.
struct Prefix {
  std::uint32_t bits = 0;
  int digits = 0;
  __device__ int shift() const { return 32 - kDigitBits * digits; }
  __device__ bool matches(std::uint32_t key) const { return digits == 0 || key >> shift() == bits; }
  __device__ int next_digit(std::uint32_t key) const {
    return static_cast<int>(key >> (shift() - kDigitBits)) & (kBins - 1);
  }
  __device__ Prefix with(int digit) const {
    return {bits << kDigitBits | static_cast<std::uint32_t>(digit), digits + 1};
  }
  __device__ std::uint32_t lowest_key() const { return digits == kDigits ? bits : bits << shift(); }
};

/// Bin of thread t, and the thread of a bin.
__device__ inline int bin_of_thread() { return kBins - 1 - static_cast<int>(threadIdx.x); }

}  // namespace duet::cuda
