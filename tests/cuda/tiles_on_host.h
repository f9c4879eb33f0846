#pragma once

#include <cstring>
#include <vector>

#include "cuda/matrix.h"
#include "engine/weights.h"

/// cuda/matrix.h's arrangement in tiles, made plainly from a region in rows.
namespace duet::test {

inline std::vector<std::byte> tiles_of(const Matrix& rows, const std::byte* region) {
  const MatrixLayout layout = layout_of(rows.rows, rows.columns, rows.spec);
  std::vector<std::byte> tiles(region, region + layout.bytes);
  const std::int64_t width = cuda::tile_columns(rows.spec.storage);
  if (width == 0) return tiles;
  const std::int64_t piece_columns = width / 4;  // 8 bytes.
  const std::int64_t row_bytes = rows.columns * 8 / piece_columns;
  for (std::int64_t r = 0; r < rows.rows; ++r)
    for (std::int64_t c = 0; c < rows.columns; c += piece_columns) {
      const std::int64_t tile = r / 16 * (rows.columns / width) + c / width;
      const std::int64_t lane = r % 8 * 4 + c % width / piece_columns;
      std::memcpy(tiles.data() + tile * cuda::kTileBytes + lane * 16 + r % 16 / 8 * 8,
                  region + r * row_bytes + c / piece_columns * 8, 8);
    }
  if (!is_quantised(rows.spec.storage)) return tiles;
  const std::int64_t blocks = rows.columns / rows.spec.block_size;
  const std::size_t each = rows.spec.nested ? 1 : sizeof(float);
  for (std::int64_t r = 0; r < rows.rows; ++r)
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto to = static_cast<std::size_t>((r / 16 * blocks + b) * 16 + r % 16);
      const auto from = static_cast<std::size_t>(r * blocks + b);
      std::memcpy(tiles.data() + layout.scales_offset + to * each, region + layout.scales_offset + from * each, each);
    }
  return tiles;
}

}  // namespace duet::test
