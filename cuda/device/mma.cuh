#pragma once

// Tensor-core products of one warp, D += A B. Lane = 4 g + t. Sources: PTX ISA, "Matrix fragments for mma".
//   mma_half  A [16, 16] f16, B [16, 8] f16, D [16, 8] float32
//     a[0], a[1], a[2], a[3]: rows g, g + 8, g, g + 8; two k each: of the first half of k (a[0], a[1]), of the second
//     b[0], b[1]: column g, likewise            d[0], d[1]: row g, columns 2t, 2t + 1; d[2], d[3]: row g + 8
//   mma_bfloat16  likewise in bf16
//   mma_exact A [16, 8], B [8, 8] float32 of at most 11 significant bits (f16, bf16, parts of f32), D as above
//     a[0..3]: rows g, g + 8, g, g + 8, k t, t, t + 4, t + 4; b[0], b[1]: column g, k t, t + 4
// Sums over k may be taken in any order, so callers choose which k a lane holds, the same for A and B.

#include <cuda_fp16.h>

#include <cstdint>

namespace duet::cuda {

__device__ inline void mma_half(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#pragma unroll
  for (int half = 0; half < 2; ++half)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ inline void mma_exact(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  // No tf32 here: the same product by shuffles and float32 maths, for the small products of adapters.
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float low = __shfl_sync(~0U, a[k / 4 * 2], 4 * g + k % 4);
    const float high = __shfl_sync(~0U, a[k / 4 * 2 + 1], 4 * g + k % 4);
    const float first = __shfl_sync(~0U, b[k / 4], 8 * t + k % 4);
    const float second = __shfl_sync(~0U, b[k / 4], 8 * t + 4 + k % 4);
    d[0] = fmaf(low, first, d[0]);
    d[1] = fmaf(low, second, d[1]);
    d[2] = fmaf(high, first, d[2]);
    d[3] = fmaf(high, second, d[3]);
  }
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#endif
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
constexpr bool kHasBfloat16Mma = true;
#else
constexpr bool kHasBfloat16Mma = false;
#endif

/// mma_half in bf16; only where kHasBfloat16Mma.
__device__ inline void mma_bfloat16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

/// The 11 leading bits of a float32, for mma_exact; value - leading_bits(value) is exact and holds the others.
__device__ inline float leading_bits(float value) { return __uint_as_float(__float_as_uint(value) & 0xFFFFE000U); }

}  // namespace duet::cuda
