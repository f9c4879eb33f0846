#pragma once

// Numbers of an adapter's tensors: row-major, f16, bf16 or f32.

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device/tiles.cuh"

namespace duet::cuda {

/// The number at index `i` of `source`; `held` is f32, f16 or bf16.
__device__ inline float number_at(const void* source, Held held, std::int64_t i) {
  if (held == Held::f32) return static_cast<const float*>(source)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(source)[i];
  if (held == Held::bf16) return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
  return __half2float(__ushort_as_half(bits));
}

}  // namespace duet::cuda
