#pragma once

// Reading weights in either arrangement and every storage (cuda/matrix.h) from any kernel: by element, by four, and,
// for the matrix kernels, codes of tiles as half2.

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device/arch.cuh"
#include "cuda/device/blocks.cuh"

namespace duet::cuda {

struct DeviceMatrix;

/// As engine/weights.h's Storage (tile.cu checks that).
enum class Held : std::uint8_t { f32, f16, bf16, nf4, fp4, int8 };

/// A DeviceMatrix as kernels take it, by value.
struct WeightView {
  const std::uint8_t* data;
  Scales scales;
  CodeTable table;  // of nf4 and fp4
  std::int64_t rows;
  std::int64_t columns;
  float factor;
  std::int32_t block_shift;  // log2 of the block size
  Held held;
  bool tiled;
};

/// Host code, tile.cu.
WeightView view_of(const DeviceMatrix& matrix);

// ---- places ----

__device__ inline bool is_four_bit(Held held) { return held == Held::nf4 || held == Held::fp4; }
__device__ inline int bits_of(Held held) {
  return is_four_bit(held) ? 4 : held == Held::int8 ? 8 : held == Held::f32 ? 32 : 16;
}

/// Index of (row, column) in units of the storage's bits, from `data`.
__device__ inline std::int64_t index_of(const WeightView& w, std::int64_t row, std::int64_t column) {
  if (!w.tiled) return row * w.columns + column;
  const int bits = bits_of(w.held);
  const int width = 256 / bits;  // columns of a tile; a lane holds width / 4 of a row
  const std::int64_t tile = row / 16 * (w.columns / width) + column / width;
  const int lane = static_cast<int>(row % 8) * 4 + static_cast<int>(column % width) / (width / 4);
  const int half = static_cast<int>(row / 8 % 2);
  return (tile * 512 + lane * 16 + half * 8) * 8 / bits + column % (width / 4);
}

/// Scale of the block that holds (row, column); quantised storages only.
__device__ inline float scale_at(const WeightView& w, std::int64_t row, std::int64_t column) {
  const std::int64_t block = (row * w.columns + column) >> w.block_shift;
  if (!w.tiled) return scale_of(w.scales, block);
  const std::int64_t per_row = w.columns >> w.block_shift;
  const std::int64_t place = (row / 16 * per_row + (column >> w.block_shift)) * 16 + row % 16;
  if (w.scales.plain != nullptr) return w.scales.plain[place];
  return __fadd_rn(__fmul_rn(w.scales.nested_map[w.scales.codes[place]], w.scales.nested_scales[block / 256]),
                   *w.scales.nested_offset);
}

// ---- values ----

/// The number at `index` (index_of), without block scale and factor.
__device__ inline float code_at(const WeightView& w, std::int64_t index) {
  switch (w.held) {
    case Held::f32:
      return reinterpret_cast<const float*>(w.data)[index];
    case Held::f16:
      return __half2float(reinterpret_cast<const __half*>(w.data)[index]);
    case Held::bf16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(w.data)[index]);
    case Held::int8:
      return static_cast<float>(static_cast<std::int8_t>(w.data[index]));
    case Held::nf4:
    case Held::fp4:
      break;
  }
  const std::uint32_t byte = w.data[index / 2];
  return w.table.value[(index % 2 == 0 ? byte >> 4 : byte) & 0xFU];
}

/// W[row, column], bit for bit as the host's dequantise gives it (bf16 held as f16 times a power of two included,
/// where nothing was lost).
__device__ inline float element_of(const WeightView& w, std::int64_t row, std::int64_t column) {
  const float code = code_at(w, index_of(w, row, column));
  return __fmul_rn(w.held >= Held::nf4 ? __fmul_rn(code, scale_at(w, row, column)) : code, w.factor);
}

/// W[row, column .. column + 3], `column` a multiple of 4; zero at and beyond the last column. In tiles one load of all
/// four: neighbouring lanes that take neighbouring fours read a row as fast as it can be read.
__device__ inline float4 four_of(const WeightView& w, std::int64_t row, std::int64_t column) {
  float values[4] = {0, 0, 0, 0};
  if (!w.tiled) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < w.columns) values[i] = element_of(w, row, column + i);
    return {values[0], values[1], values[2], values[3]};
  }
  const std::int64_t index = index_of(w, row, column);
  if (is_four_bit(w.held)) {
    const std::uint32_t two = *reinterpret_cast<const std::uint16_t*>(w.data + index / 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = w.table.value[(two >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0))) & 0xFU];
  } else if (w.held == Held::int8) {
    const std::uint32_t four = *reinterpret_cast<const std::uint32_t*>(w.data + index);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = static_cast<float>(static_cast<std::int8_t>(four >> (8 * i)));
  } else {
    const uint2 four = *reinterpret_cast<const uint2*>(w.data + index * 2);
    const __half2 low = reinterpret_cast<const __half2&>(four.x);
    const __half2 high = reinterpret_cast<const __half2&>(four.y);
    values[0] = __low2float(low);
    values[1] = __high2float(low);
    values[2] = __low2float(high);
    values[3] = __high2float(high);
  }
  const float scale = w.held >= Held::nf4 ? scale_at(w, row, column) : 1.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = __fmul_rn(__fmul_rn(values[i], scale), w.factor);
  return {values[0], values[1], values[2], values[3]};
}

// ---- bytes to half2, for the tensor cores ----

/// Shared memory for the values of every byte of 4-bit codes, one copy a lane (modulo kTableCopies), so that lanes that
/// look up different bytes do not meet in a bank.
struct alignas(16) ByteTable {
  std::uint32_t pair[256][kTableCopies];
};

/// Called by all threads of a block; a barrier must follow. Codes are rounded to f16 (at most 2^-11 of each).
__device__ inline void fill(ByteTable& bytes, const CodeTable& table) {
  constexpr int kPieces = kTableCopies / 4;
  for (int i = static_cast<int>(threadIdx.x); i < 256 * kPieces; i += static_cast<int>(blockDim.x)) {
    const int byte = i / kPieces;
    const __half2 pair = __floats2half2_rn(table.value[byte >> 4], table.value[byte & 0xF]);
    const std::uint32_t bits = reinterpret_cast<const std::uint32_t&>(pair);
    reinterpret_cast<uint4*>(bytes.pair[byte])[i % kPieces] = uint4{bits, bits, bits, bits};
  }
}

/// The earlier column of byte `kByte` of `word` in the low half.
template <int kByte>
__device__ inline std::uint32_t pair_of(const ByteTable& bytes, std::uint32_t word) {
  return bytes.pair[(word >> (8 * kByte)) & 0xFFU][threadIdx.x % kTableCopies];
}

/// Bytes 2 * kPair and 2 * kPair + 1 of `word`, signed, as two f16: exact.
template <int kPair>
__device__ inline std::uint32_t halves_of(std::uint32_t word) {
  // A byte b + 128 under the exponent 0x64 is the f16 number 1024 + b + 128.
  const std::uint32_t biased = __byte_perm(word ^ 0x80808080U, 0x64646464U, kPair == 0 ? 0x4140 : 0x4342);
  const __half2 value = __hsub2(reinterpret_cast<const __half2&>(biased), __float2half2_rn(1152.0F));
  return reinterpret_cast<const std::uint32_t&>(value);
}

}  // namespace duet::cuda
