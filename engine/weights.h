#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

/// How a matrix is held in memory, in files of ours and on the device: one layout, defined here (docs/formats.md).
namespace duet {

enum class Storage : std::uint8_t { f32 = 0, f16 = 1, bf16 = 2, nf4 = 3, fp4 = 4, int8 = 5 };

std::string_view name_of(Storage storage);

struct StorageSpec {
  Storage storage = Storage::f32;
  int block_size = 0;  ///< Quantised only: elements of the *flattened* row-major matrix that share a scale.
  bool nested =
      false;  ///< 4-bit only: the scales are 8-bit codes with scales of their own, one per 256 ("double quant").

  friend bool operator==(const StorageSpec&, const StorageSpec&) = default;
};

constexpr bool is_quantised(Storage storage) { return storage >= Storage::nf4; }
constexpr std::int64_t kNestedBlockSize = 256;
constexpr std::size_t kPartAlignment = 64;  ///< Every part of a matrix starts at a multiple of this inside its region.

/// A weight W [rows, columns], y = W x. Views into a region laid out by `layout_of`.
///   f32/f16/bf16  data: rows * columns elements, row-major.
///   nf4/fp4       data: ceil(n / 2) bytes, the earlier element in the high half; value = code_table[code] * scale of
///   its block. int8          data: n signed bytes; value = code * scale, scale = absmax / 127.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  StorageSpec spec;
  const std::byte* data = nullptr;
  const float* scales = nullptr;  ///< [blocks]; null when nested.
  const std::uint8_t* scale_codes =
      nullptr;  ///< [blocks], nested: scale = nested_map[code] * nested_scales[block / 256] + nested_offset.
  const float* nested_scales = nullptr;  ///< [ceil(blocks / 256)]
  const float* nested_map = nullptr;     ///< [256]
  const float* nested_offset = nullptr;  ///< [1], beside the map.

  explicit operator bool() const { return data != nullptr; }
};

/// Where the parts of one matrix lie inside its region, and how long the region is.
struct MatrixLayout {
  std::int64_t blocks = 0;
  std::size_t data_bytes = 0;
  std::size_t scales_offset = 0;  ///< scales, or scale_codes when nested.
  std::size_t scales_bytes = 0;
  std::size_t nested_scales_offset = 0;  ///< nested only.
  std::size_t nested_scales_bytes = 0;
  std::size_t nested_map_offset = 0;  ///< nested only: 256 floats of the map, then the offset.
  std::size_t bytes = 0;              ///< The whole region.
};

/// Throws Error(unsupported) for an illegal block size and Error(no_room) when sizes overflow.
MatrixLayout layout_of(std::int64_t rows, std::int64_t columns, const StorageSpec& spec);
Matrix view_of(std::int64_t rows, std::int64_t columns, const StorageSpec& spec, const std::byte* region);

}  // namespace duet
