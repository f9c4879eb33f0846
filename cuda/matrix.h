#pragma once

#include <cstdint>

#include "engine/weights.h"

/// How matrices lie on the card: the region has the size and the parts of `layout_of`, the order inside may differ.
///
/// In tiles, one 16-byte load a lane is at once a fragment of the tensor cores' left operand (mma m16n8k16, rows are
/// outputs) and part of one quantisation block, so that a warp reads 512 contiguous bytes and scales its sums late.
///   tile (i, j)   rows [16 i, 16 i + 16), columns [T j, T j + T), T = tile_columns; at byte (i * columns / T + j) *
///   512 lane 4 g + t  bytes [16 lane, 16 lane + 16): row g, then row g + 8, columns [T/4 t, T/4 t + T/4) of the tile
///   each,
///                 in order; 4 bits: the earlier column in the high half
///   scales        of row r and block column b (C = columns / block_size of them): at ((r / 16) * C + b) * 16 + r % 16;
///                 nested_scales stay in the order of rows: (r * C + b) / 256
namespace duet::cuda {

enum class Arrangement : std::uint8_t { rows, tiles };  ///< rows: as engine/weights.h says.

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileBytes = 512;

/// Columns of a tile: 64 of 4 bits, 32 of 8, 16 of 16; 0 for storages that are never tiled (f32).
constexpr std::int64_t tile_columns(Storage storage) {
  switch (storage) {
    case Storage::nf4:
    case Storage::fp4:
      return 64;
    case Storage::int8:
      return 32;
    case Storage::f16:
    case Storage::bf16:
      return 16;
    case Storage::f32:
      break;
  }
  return 0;
}

/// Tiles where whole tiles and whole blocks fill the matrix, rows elsewhere.
constexpr Arrangement arrangement_of(std::int64_t rows, std::int64_t columns, const StorageSpec& spec) {
  const std::int64_t width = tile_columns(spec.storage);
  if (width == 0 || rows % kTileRows != 0 || columns % width != 0) return Arrangement::rows;
  if (is_quantised(spec.storage) && (spec.block_size % width != 0 || columns % spec.block_size != 0))
    return Arrangement::rows;
  return Arrangement::tiles;
}

/// A weight on the card: every pointer of `matrix` is the device's. bf16 tiles are held as f16 (matrix.spec says f16)
/// times a power of two, which loses nothing that float32 sums would keep.
struct DeviceMatrix {
  Matrix matrix;
  Arrangement arrangement = Arrangement::rows;
  float factor = 1.0F;  ///< Weight = stored value * factor.

  explicit operator bool() const { return static_cast<bool>(matrix); }
};

}  // namespace duet::cuda
