#pragma once

// Decoding of 4-bit and 8-bit blocks in device code. The code tables are passed in by the launcher (CodeTable), so that
// the host's tables are the only ones.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace duet::cuda {

/// The 16 values of a 4-bit format, handed to a kernel by value.
struct CodeTable {
  float value[16];
};

/// The scales of a matrix, plain or nested (engine/weights.h).
struct Scales {
  const float* plain;          // [blocks], or null when nested
  const std::uint8_t* codes;   // [blocks]
  const float* nested_scales;  // [ceil(blocks / 256)]
  const float* nested_map;     // [256]
  const float* nested_offset;  // [1]
};

__device__ inline float scale_of(const Scales& scales, std::int64_t block) {
  if (scales.plain != nullptr) return scales.plain[block];
  // Two roundings, product then sum, as bitsandbytes does it; never a fused multiply-add.
  return __fadd_rn(__fmul_rn(scales.nested_map[scales.codes[block]], scales.nested_scales[block / 256]),
                   *scales.nested_offset);
}

__device__ inline void store(float* destination, float value) { *destination = value; }
__device__ inline void store(__half* destination, float value) { *destination = __float2half_rn(value); }
__device__ inline void store(__nv_bfloat16* destination, float value) { *destination = __float2bfloat16_rn(value); }

}  // namespace duet::cuda
