#pragma once

// Keys and values in pages (cuda/step_types.h: KvPool), and how the attention kernels hand them to the tensor cores.
//
// Numbers go in as 16-bit operands: f16 as it is; int8 codes as f16, exact, their scales applied to scores and weights
// in float32; bf16 as it is where the card multiplies bf16, else as f16, where a value beyond 65,504 becomes infinite
// and makes its row's result NaN, which the next kernel reports.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "cuda/device/mma.cuh"
#include "cuda/step_types.h"

namespace duet::cuda {

enum class Plane : int { key, value };

__host__ __device__ constexpr int bytes_of(KvType type) { return type == KvType::int8 ? 1 : 2; }

// ---- addresses ----

/// The page that holds `position` of a row; `pages` are the step's page lists.
__device__ inline std::byte* page_of(const KvPool& kv, const std::int32_t* pages, const StepRow& row, int position) {
  const std::int32_t page = pages[row.first_page + position / kv.tokens_per_page];
  return kv.pool + static_cast<std::size_t>(page) * kv.page_bytes;
}

/// Number of a head's vector inside its page; `token` counts from the page's first.
__device__ inline std::int64_t vector_in_page(const KvPool& kv, int layer, Plane plane, int kv_head, int token) {
  return (std::int64_t{2 * layer + static_cast<int>(plane)} * kv.kv_heads + kv_head) * kv.tokens_per_page + token;
}

/// Bytes from a page's begin to its int8 scales.
__host__ __device__ inline std::int64_t offset_of_scales(const KvPool& kv) {
  return (std::int64_t{2} * kv.layers * kv.kv_heads * kv.tokens_per_page * kv.head_size + 15) / 16 * 16;
}

/// Where one token's key and value lie, seen from the pool's begin.
struct TokenPlace {
  std::int64_t key;  // Bytes; kNotSeen: neither is read.
  float key_scale;   // int8, else unused.
  float value_scale;
};
constexpr std::int64_t kNotSeen = -1;

template <KvType kType>
__device__ inline TokenPlace place_of_token(const KvPool& kv, const std::int32_t* pages, const StepRow& row, int layer,
                                            int kv_head, int position) {
  const std::byte* page = page_of(kv, pages, row, position);
  const std::int64_t vector = vector_in_page(kv, layer, Plane::key, kv_head, position % kv.tokens_per_page);
  TokenPlace place{(page - kv.pool) + vector * kv.head_size * bytes_of(kType), 0.0F, 0.0F};
  if constexpr (kType == KvType::int8) {
    const float* scales = reinterpret_cast<const float*>(page + offset_of_scales(kv)) + vector;
    place.key_scale = scales[0];
    place.value_scale = scales[std::int64_t{kv.kv_heads} * kv.tokens_per_page];
  }
  return place;
}

/// Bytes from a token's key to its value.
__device__ inline std::int64_t key_to_value(const KvPool& kv, KvType type) {
  return std::int64_t{kv.kv_heads} * kv.tokens_per_page * kv.head_size * bytes_of(type);
}

// ---- operands ----

/// True where bf16 goes into the tensor cores as it is.
template <KvType kType>
__device__ constexpr bool multiplies_bf16() {
  return kType == KvType::bf16 && kHasBfloat16Mma;
}

/// Two numbers packed, the first in the low half: high + low is the number to 22 bits (f16) or 16 (bf16).
struct SplitPair {
  std::uint32_t high;
  std::uint32_t low;
};

template <bool kBf16>
__device__ inline std::uint32_t pack(float first, float second) {
  if constexpr (kBf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

template <bool kBf16>
__device__ inline SplitPair split(float first, float second) {
  const std::uint32_t high = pack<kBf16>(first, second);
  float2 rounded;
  if constexpr (kBf16) {
    rounded = make_float2(__uint_as_float(high << 16), __uint_as_float(high & 0xFFFF0000U));
  } else {
    rounded = __half22float2(*reinterpret_cast<const __half2*>(&high));
  }
  return {high, pack<kBf16>(first - rounded.x, second - rounded.y)};
}

/// c += a b (mma.cuh) with operands in bf16 or f16.
template <bool kBf16>
__device__ inline void multiply_add(float (&c)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
  const std::uint32_t left[4] = {a.x, a.y, a.z, a.w};
  const std::uint32_t right[2] = {b0, b1};
  if constexpr (kBf16) {
    mma_bfloat16(c, left, right);
  } else {
    mma_half(c, left, right);
  }
}

/// 4 signed bytes to 4 numbers in f16.
__device__ inline uint2 halves_of_codes(std::uint32_t codes) {
  // 0x6400 | u is 1024 + u in f16; u = code + 128.
  const std::uint32_t biased = codes ^ 0x80808080U;
  const __half2 offset = __float2half2_rn(1152.0F);
  const auto convert = [&](std::uint32_t selector) {
    const std::uint32_t bits = __byte_perm(biased, 0x64646464U, selector);
    const __half2 value = __hsub2(*reinterpret_cast<const __half2*>(&bits), offset);
    return *reinterpret_cast<const std::uint32_t*>(&value);
  };
  return make_uint2(convert(0x4140), convert(0x4342));
}

__device__ inline std::uint32_t halves_of_bf16(std::uint32_t pair) {
  return pack<false>(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000U));
}

/// 8 neighbours of a key or value, as they lie in the page.
template <KvType kType>
struct Eighth {
  using Raw = uint4;
};
template <>
struct Eighth<KvType::int8> {
  using Raw = uint2;
};
template <KvType kType>
using RawEight = typename Eighth<kType>::Raw;

/// From memory that an earlier kernel may have written while this one began (device/dependent.cuh). Zeros where
/// `wanted` is false; then nothing is read. Volatile, so that loads stay where they are issued, ahead of the maths.
__device__ inline void load_eight(const std::byte* source, bool wanted, uint4& eight) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
      "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(eight.x), "=&r"(eight.y), "=&r"(eight.z), "=&r"(eight.w)
      : "l"(source), "r"(static_cast<int>(wanted)));
}
__device__ inline void load_eight(const std::byte* source, bool wanted, uint2& eight) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;\n"
      "@p ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
      : "=&r"(eight.x), "=&r"(eight.y)
      : "l"(source), "r"(static_cast<int>(wanted)));
}

/// As 4 packed pairs of operands.
template <KvType kType>
__device__ inline uint4 operands_of(const RawEight<kType>& raw) {
  if constexpr (kType == KvType::int8) {
    const uint2 first = halves_of_codes(raw.x);
    const uint2 second = halves_of_codes(raw.y);
    return make_uint4(first.x, first.y, second.x, second.y);
  } else if constexpr (kType == KvType::bf16 && !multiplies_bf16<kType>()) {
    return make_uint4(halves_of_bf16(raw.x), halves_of_bf16(raw.y), halves_of_bf16(raw.z), halves_of_bf16(raw.w));
  } else {
    return raw;
  }
}

// ---- ranges ----

/// e such that largest * 2^e lies in [2^14, 2^15); 0 for zero, infinity and NaN, at most 100.
__device__ inline int exponent_to_fill_f16(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23 & 0xFFU);
  if (largest == 0.0F || exponent == 255) return 0;
  return min(141 - exponent, 100);
}

/// -126 <= e <= 127.
__device__ inline float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

/// 2^x, relative error 2^-22 (PTX ISA, ex2.approx); 0 for -infinity.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Softmax weights are held times 2^14: f16 then loses only what is below 2^-38 of the largest.
constexpr float kWeightShift = 14.0F;
constexpr float kLog2OfE = 1.4426950408889634F;

}  // namespace duet::cuda
