#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cuda/launch.h"
#include "engine/half.h"
#include "tests/support/gpu.h"

namespace duet::test {
namespace {

constexpr std::int64_t kRows = 80;

struct Tiled {
  std::vector<std::byte> source;  ///< The region arranged in rows.
  std::vector<std::byte> tiles;   ///< The region the card made.
};

/// Tiles a matrix of random bytes in two pieces, the second one first. `factor` divides bf16 and f32.
Tiled tile_on_card(const std::vector<std::byte>& region, std::int64_t columns, const StorageSpec& from,
                   const StorageSpec& to, float factor) {
  const MatrixLayout layout = layout_of(kRows, columns, to);
  const PoisonedBuffer target(layout.bytes);
  const cuda::DeviceMatrix matrix{view_of(kRows, columns, to, target.data()), cuda::Arrangement::tiles, factor};
  const Matrix whole = view_of(kRows, columns, from, region.data());
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{48, 32}, {0, 48}}) {
    // The rows of a piece alone, laid out as their own matrix.
    const MatrixLayout piece_layout = layout_of(count, columns, from);
    std::vector<std::byte> piece(piece_layout.bytes);
    const std::size_t row_bytes = piece_layout.data_bytes / static_cast<std::size_t>(count);
    std::memcpy(piece.data(), whole.data + static_cast<std::size_t>(first) * row_bytes, piece_layout.data_bytes);
    if (is_quantised(from.storage)) {
      const auto* scales = from.nested ? reinterpret_cast<const std::byte*>(whole.scale_codes)
                                       : reinterpret_cast<const std::byte*>(whole.scales);
      const std::size_t row_scales = piece_layout.scales_bytes / static_cast<std::size_t>(count);
      std::memcpy(piece.data() + piece_layout.scales_offset, scales + static_cast<std::size_t>(first) * row_scales,
                  piece_layout.scales_bytes);
    }
    const PoisonedBuffer source(piece.size());
    source.upload(piece.data());
    cuda::tile(view_of(count, columns, from, source.data()), matrix, first, nullptr);
    DUET_CUDA(cudaDeviceSynchronize());
  }
  EXPECT_TRUE(target.guards_intact());
  Tiled result{region, std::vector<std::byte>(layout.bytes)};
  target.download(result.tiles.data());
  return result;
}

/// Where cuda/matrix.h says element (row, column) of `bits` bits begins, in bits.
std::int64_t bit_place(std::int64_t row, std::int64_t column, std::int64_t columns, std::int64_t width, int bits) {
  const std::int64_t tile = row / 16 * (columns / width) + column / width;
  const std::int64_t g = row % 8;
  const std::int64_t t = column % width / (width / 4);
  const std::int64_t inside = column % (width / 4);
  const std::int64_t byte = tile * 512 + 16 * (4 * g + t) + row % 16 / 8 * 8;
  if (bits == 4) return 8 * (byte + inside / 2) + (inside % 2 == 0 ? 4 : 0);
  return 8 * byte + inside * bits;
}

std::uint32_t bits_at(const std::byte* data, std::int64_t place, int bits) {
  std::uint32_t value = 0;
  for (int i = 0; i < (bits + 7) / 8; ++i) value |= static_cast<std::uint32_t>(data[place / 8 + i]) << (8 * i);
  return bits == 4 ? value >> (place % 8) & 0xFU : value;
}

TEST(CudaTile, MovesCodesAndScalesToWhereTheLayoutSays) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261202);
  for (const StorageSpec& spec : {StorageSpec{Storage::nf4, 64, false}, StorageSpec{Storage::nf4, 64, true},
                                  StorageSpec{Storage::fp4, 128, false}, StorageSpec{Storage::int8, 32, false},
                                  StorageSpec{Storage::int8, 64, false}, StorageSpec{Storage::f16, 0, false}})
    for (const std::int64_t columns : {128, 384}) {
      ASSERT_EQ(cuda::arrangement_of(kRows, columns, spec), cuda::Arrangement::tiles);
      std::vector<std::byte> region(layout_of(kRows, columns, spec).bytes);
      for (std::byte& byte : region) byte = static_cast<std::byte>(random() & 0xFFU);
      const Tiled tiled = tile_on_card(region, columns, spec, spec, 1.0F);
      const Matrix rows = view_of(kRows, columns, spec, tiled.source.data());
      const Matrix tiles = view_of(kRows, columns, spec, tiled.tiles.data());
      const int bits = spec.storage == Storage::int8 ? 8 : is_quantised(spec.storage) ? 4 : 16;
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          const std::int64_t index = r * columns + c;
          const std::int64_t from = bits == 4 ? index / 2 * 8 + (index % 2 == 0 ? 4 : 0) : index * bits;
          const std::int64_t to = bit_place(r, c, columns, cuda::tile_columns(spec.storage), bits);
          ASSERT_EQ(bits_at(tiles.data, to, bits), bits_at(rows.data, from, bits)) << r << ' ' << c;
        }
      if (!is_quantised(spec.storage)) continue;
      const std::int64_t per_row = columns / spec.block_size;
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t b = 0; b < per_row; ++b) {
          const std::int64_t from = r * per_row + b;
          const std::int64_t to = (r / 16 * per_row + b) * 16 + r % 16;
          if (spec.nested) {
            ASSERT_EQ(tiles.scale_codes[to], rows.scale_codes[from]);
          } else {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(tiles.scales[to]), std::bit_cast<std::uint32_t>(rows.scales[from]));
          }
        }
    }
}

TEST(CudaTile, RoundsWiderNumbersOnceAfterDividingByTheFactor) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261203);
  std::normal_distribution<float> normal(0.0F, 300.0F);
  constexpr std::int64_t kColumns = 48;
  for (const Storage from : {Storage::bf16, Storage::f32}) {
    const StorageSpec source_spec{from, 0, false};
    std::vector<std::byte> region(layout_of(kRows, kColumns, source_spec).bytes);
    std::vector<float> values;
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
      const float value = normal(random);
      const Bfloat16 rounded = to_bfloat16(value);
      values.push_back(from == Storage::bf16 ? to_float(rounded) : value);
      if (from == Storage::bf16) std::memcpy(region.data() + i * 2, &rounded, 2);
      if (from == Storage::f32) std::memcpy(region.data() + i * 4, &value, 4);
    }
    const StorageSpec spec{Storage::f16, 0, false};
    const Tiled tiled = tile_on_card(region, kColumns, source_spec, spec, 0.125F);
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t c = 0; c < kColumns; ++c)
        ASSERT_EQ(bits_at(tiled.tiles.data(), bit_place(r, c, kColumns, 16, 16), 16),
                  static_cast<std::uint32_t>(to_half(values[static_cast<std::size_t>(r * kColumns + c)] * 8.0F)));
  }
}

TEST(CudaTile, FindsTheLargestMagnitudeAndWhatIsNotFinite) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261204);
  std::normal_distribution<float> normal;
  for (const std::size_t count : {std::size_t{1}, std::size_t{777}, std::size_t{700001}}) {
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    values[count / 2] = -7.5F;
    const PoisonedBuffer source(count * 4);
    const PoisonedBuffer largest(4);
    const auto found = [&](float before) {
      source.upload(values.data());
      largest.upload(&before);
      cuda::largest_magnitude(source.data(), Storage::f32, static_cast<std::int64_t>(count),
                              reinterpret_cast<float*>(largest.data()), nullptr);
      float after = 0;
      largest.download(&after);
      return after;
    };
    EXPECT_EQ(found(0.0F), 7.5F);
    EXPECT_EQ(found(9.0F), 9.0F);
    values[count - 1] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(found(0.0F), std::numeric_limits<float>::infinity());
  }
  for (const Storage type : {Storage::f16, Storage::bf16}) {
    const std::vector<std::uint16_t> values = {0x8000, 0xBC00, 0x3800};  // -0, and numbers of either type
    const PoisonedBuffer source(values.size() * 2);
    source.upload(values.data());
    const PoisonedBuffer largest(4);
    const float zero = 0;
    largest.upload(&zero);
    cuda::largest_magnitude(source.data(), type, 3, reinterpret_cast<float*>(largest.data()), nullptr);
    float after = 0;
    largest.download(&after);
    EXPECT_EQ(after, type == Storage::f16 ? 1.0F : to_float(Bfloat16{0x3C00}));
  }
}

TEST(CudaTile, RefusesWhatDoesNotFitTiles) {
  DUET_NEEDS_GPU();
  const StorageSpec spec{Storage::nf4, 64, false};
  const PoisonedBuffer region(layout_of(32, 128, spec).bytes);
  const cuda::DeviceMatrix target{view_of(32, 128, spec, region.data()), cuda::Arrangement::tiles, 1.0F};
  const auto source = [&](std::int64_t rows, const StorageSpec& of) { return view_of(rows, 128, of, region.data()); };
  EXPECT_ANY_THROW(cuda::tile(source(24, spec), target, 0, nullptr));
  EXPECT_ANY_THROW(cuda::tile(source(16, spec), target, 8, nullptr));
  EXPECT_ANY_THROW(cuda::tile(source(32, spec), target, 16, nullptr));
  EXPECT_ANY_THROW(cuda::tile(source(16, {Storage::f16, 0, false}), target, 0, nullptr));
  EXPECT_ANY_THROW(cuda::tile(source(16, spec), {target.matrix, cuda::Arrangement::rows, 1.0F}, 0, nullptr));
}

}  // namespace
}  // namespace duet::test
