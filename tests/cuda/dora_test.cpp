// DoRA's row scales against the plain ones in float64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/launch.h"
#include "engine/host/host_math.h"
#include "engine/quant_blocks.h"
#include "tests/cuda/random_matrix.h"
#include "tests/cuda/tiles_on_host.h"
#include "tests/support/compare.h"
#include "tests/support/gpu.h"

namespace duet::test {
namespace {

struct Case {
  std::int64_t rows, columns;
  StorageSpec spec;
};

/// |W + s B A| by row (or of the embedding by column), divided into the magnitudes, against the same in float64.
void expect_scales(const Case& one, int rank, Storage storage, bool by_column, std::uint32_t seed) {
  SCOPED_TRACE(fmt::format("{} x {} {}, rank {}, {}", one.rows, one.columns, name_of(one.spec.storage), rank,
                           by_column ? "columns" : "rows"));
  std::mt19937 random(seed);
  constexpr float kScale = 0.75F;
  const std::vector<std::byte> region = random_matrix(one.rows, one.columns, one.spec, random);
  const Matrix w = view_of(one.rows, one.columns, one.spec, region.data());
  const std::int64_t in = by_column ? one.rows : one.columns, out = by_column ? one.columns : one.rows;
  const std::vector<std::byte> a = random_matrix(rank, in, {.storage = storage}, random);
  const std::vector<std::byte> b = random_matrix(out, rank, {.storage = storage}, random);
  const Matrix host_a = view_of(rank, in, {.storage = storage}, a.data());
  const Matrix host_b = view_of(out, rank, {.storage = storage}, b.data());
  std::vector<float> magnitude;
  for (std::int64_t o = 0; o < out; ++o) magnitude.push_back(1.0F + static_cast<float>(random() % 1000) / 500.0F);

  // By column: the rows of the transpose [hidden, vocabulary].
  std::vector<float> numbers(static_cast<std::size_t>(one.rows * one.columns)), turned(numbers.size());
  dequantise(w, 0, numbers);
  for (std::int64_t r = 0; r < one.rows; ++r)
    for (std::int64_t c = 0; c < one.columns; ++c)
      turned[static_cast<std::size_t>(by_column ? c * one.rows + r : r * one.columns + c)] =
          numbers[static_cast<std::size_t>(r * one.columns + c)];
  const Matrix plain_w = view_of(out, in, {.storage = Storage::f32}, reinterpret_cast<const std::byte*>(turned.data()));
  std::vector<float> want(magnitude.size());
  plain::dora_row_scales(plain_w, host_a, host_b, kScale, magnitude, want);

  cuda::DeviceMatrix device;
  device.arrangement = cuda::arrangement_of(one.rows, one.columns, one.spec);
  const PoisonedBuffer card_w =
      on_card(device.arrangement == cuda::Arrangement::tiles ? tiles_of(w, region.data()) : region);
  device.matrix = view_of(one.rows, one.columns, one.spec, card_w.data());
  const PoisonedBuffer card_a = on_card(a), card_b = on_card(b), scales = on_card(magnitude);
  cuda::AdapterPart part{};
  part.a = card_a.data();
  part.b = card_b.data();
  part.rank = rank;
  part.a_storage = part.b_storage = static_cast<std::uint8_t>(storage);
  cuda::dora_row_scales(device, part, kScale, by_column, as<float>(scales), nullptr);
  const std::vector<float> got = from_card<float>(scales);
  EXPECT_TRUE(scales.guards_intact());
  // Elements are made in float32 (rank + 2 roundings), squares summed in float64.
  std::vector<double> bounds;
  for (const float value : want) bounds.push_back(double{std::abs(value)} * (rank + 4) * 0x1p-22);
  EXPECT_TRUE(all_within(got, want, bounds));
}

TEST(CudaDora, RowScalesAgreeWithFloat64) {  // O-04
  DUET_NEEDS_GPU();
  std::uint32_t seed = 900;
  for (const Case& one : {Case{64, 128, {Storage::nf4, 64, false}}, Case{48, 192, {Storage::fp4, 64, true}},
                          Case{33, 70, {Storage::nf4, 32, false}}, Case{32, 96, {Storage::int8, 32, false}},
                          Case{80, 64, {.storage = Storage::f16}}, Case{17, 300, {.storage = Storage::f32}}})
    for (const int rank : {1, 4, 17}) {
      expect_scales(one, rank, Storage::f16, false, ++seed);
      expect_scales(one, rank, Storage::f32, true, ++seed);
      expect_scales(one, rank, Storage::bf16, true, ++seed);
    }
}

}  // namespace
}  // namespace duet::test
