#include "loaders/quantise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "duet/error.h"
#include "engine/half.h"
#include "engine/quant_blocks.h"
#include "tests/support/compare.h"

namespace duet::loaders {
namespace {

using test::all_within;
using test::same_bits;

ElementReader reader_of(const std::vector<float>& values) {
  return [&values](std::int64_t first, std::span<float> out) {
    std::copy_n(values.begin() + first, out.size(), out.begin());
  };
}

std::vector<std::byte> stored(const std::vector<float>& values, std::int64_t rows, std::int64_t columns,
                              const StorageSpec& spec, int threads = 1) {
  std::vector<std::byte> region(layout_of(rows, columns, spec).bytes, std::byte{0xA5});
  store_matrix(reader_of(values), rows, columns, spec, region, "w", threads);
  return region;
}

std::vector<float> decoded(const std::vector<std::byte>& region, std::int64_t rows, std::int64_t columns,
                           const StorageSpec& spec) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns), std::numeric_limits<float>::quiet_NaN());
  dequantise(view_of(rows, columns, spec, region.data()), 0, values);
  return values;
}

std::vector<float> gaussian(std::size_t count, unsigned seed, float deviation = 0.05F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

std::vector<float> decode_bytes(Storage storage, std::vector<std::uint8_t> bytes, float scale) {
  Matrix matrix;
  matrix.rows = 1;
  matrix.columns = static_cast<std::int64_t>(bytes.size() * 2);
  matrix.spec = {storage, 64, false};
  matrix.data = reinterpret_cast<const std::byte*>(bytes.data());
  matrix.scales = &scale;
  std::vector<float> values(bytes.size() * 2);
  dequantise(matrix, 0, values);
  return values;
}

// ---- decoding (cases O-07, O-08) ----

TEST(QuantBlocks, DecodesTheEarlierElementFromTheHighHalf) {
  EXPECT_TRUE(same_bits(decode_bytes(Storage::nf4, {0xF0, 0x7F}, 2.0F), std::vector<float>{2, -2, 0, 2}));
  EXPECT_TRUE(same_bits(decode_bytes(Storage::fp4, {0x3B}, 2.0F), std::vector<float>{2, -2}));
  EXPECT_TRUE(same_bits(decode_bytes(Storage::fp4, {0x12}, 2.0F), std::vector<float>{0.0104166669771F, 1.3333333731F}));
}

TEST(QuantBlocks, Fp4MagnitudesStandInTheirOddOrder) {
  const std::vector<float> want{0, 1 / 192.0F, 2 / 3.0F, 1, 1 / 3.0F, 1 / 2.0F, 1 / 6.0F, 1 / 4.0F};
  EXPECT_TRUE(same_bits(std::span(kFp4Codes).first(8), want));
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(kFp4Codes[i + 8], -want[i]) << i;
}

TEST(QuantBlocks, NestedScaleAddsTheOffset) {
  // map 0.5, second-level scale 0.2, offset 0.05: 0.15; a decoder that forgets the offset gives 0.10.
  std::vector<float> map(257, 9.0F), nested_scales{7.0F, 0.2F};
  map[3] = 0.5F;
  map[256] = 0.05F;
  std::vector<std::uint8_t> codes(257, 0);
  codes[256] = 3;
  Matrix matrix;
  matrix.spec = {Storage::nf4, 64, true};
  matrix.scale_codes = codes.data();
  matrix.nested_scales = nested_scales.data();
  matrix.nested_map = map.data();
  matrix.nested_offset = &map[256];
  EXPECT_EQ(scale_of(matrix, 256), 0.5F * 0.2F + 0.05F);
  EXPECT_NEAR(scale_of(matrix, 256), 0.15F, 1e-8);
}

TEST(QuantBlocks, OnlyTheDocumentedBlockSizesAreLegal) {
  for (const int size : {32, 64, 128, 256, 512, 1024, 2048, 4096}) EXPECT_TRUE(is_legal_block_size(Storage::nf4, size));
  for (const int size : {-64, 0, 1, 16, 48, 65, 8192}) EXPECT_FALSE(is_legal_block_size(Storage::fp4, size)) << size;
  EXPECT_TRUE(is_legal_block_size(Storage::int8, 32));
  EXPECT_FALSE(is_legal_block_size(Storage::int8, 128));
  EXPECT_FALSE(is_legal_block_size(Storage::f16, 64));
}

/// Scalar loops over the flattened matrix, written from the format page alone.
std::vector<float> decoded_by_hand(const std::vector<std::byte>& region, std::int64_t elements,
                                   const StorageSpec& spec) {
  const std::int64_t bytes = spec.storage == Storage::int8 ? elements : (elements + 1) / 2;
  const std::int64_t scales_at = (bytes + 63) / 64 * 64;
  std::vector<float> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    float scale = 0;
    std::memcpy(&scale, region.data() + scales_at + i / spec.block_size * 4, 4);
    if (spec.storage == Storage::int8) {
      values.push_back(static_cast<float>(static_cast<std::int8_t>(region[static_cast<std::size_t>(i)])) * scale);
      continue;
    }
    const auto both = static_cast<unsigned>(region[static_cast<std::size_t>(i / 2)]);
    const unsigned code = i % 2 == 0 ? both / 16 : both % 16;
    values.push_back((spec.storage == Storage::nf4 ? kNf4Codes : kFp4Codes)[code] * scale);
  }
  return values;
}

TEST(QuantBlocks, BlocksRunOverTheFlattenedMatrix) {
  struct Shape {
    std::int64_t rows, columns;
    int block;
  };
  for (const Storage storage : {Storage::nf4, Storage::fp4, Storage::int8})
    for (const Shape& shape : {Shape{3, 50, 64}, {5, 13, 64}, {64, 96, 32}, {64, 96, 128}, {64, 96, 256}, {1, 1, 64}}) {
      const StorageSpec spec{storage, storage == Storage::int8 ? std::min(shape.block, 64) : shape.block, false};
      const auto values = gaussian(static_cast<std::size_t>(shape.rows * shape.columns), 7);
      const auto region = stored(values, shape.rows, shape.columns, spec);
      const auto got = decoded(region, shape.rows, shape.columns, spec);
      EXPECT_TRUE(same_bits(got, decoded_by_hand(region, shape.rows * shape.columns, spec)));
      // A window that starts inside a block and inside a byte sees the same values.
      if (got.size() > 40) {
        std::vector<float> window(33);
        dequantise(view_of(shape.rows, shape.columns, spec, region.data()), 7, window);
        EXPECT_TRUE(same_bits(window, std::span(got).subspan(7, 33)));
      }
    }
}

// ---- quantising ----

TEST(Quantise, EveryCodeIsAFixedPoint) {
  // A block that holds each code times a power of two, and so its own absmax, comes back bit for bit.
  for (const Storage storage : {Storage::nf4, Storage::fp4}) {
    std::vector<float> values(64);
    for (std::size_t i = 0; i < 64; ++i) values[i] = (storage == Storage::nf4 ? kNf4Codes : kFp4Codes)[i % 16] * 0.25F;
    const StorageSpec spec{storage, 64, false};
    EXPECT_TRUE(same_bits(decoded(stored(values, 4, 16, spec), 4, 16, spec), values)) << name_of(storage);
  }
}

TEST(Quantise, AValueOnTheMidpointGoesToTheLowerCode) {
  const float midpoint = (kNf4Codes[8] + kNf4Codes[9]) / 2;
  std::vector<float> values(64, 0.0F);
  values[0] = 1.0F;
  values[1] = midpoint;
  values[2] = std::nextafter(midpoint, 1.0F);
  const StorageSpec spec{Storage::nf4, 64, false};
  const auto got = decoded(stored(values, 1, 64, spec), 1, 64, spec);
  EXPECT_EQ(got[1], kNf4Codes[8]);
  EXPECT_EQ(got[2], kNf4Codes[9]);
}

TEST(Quantise, ZeroBlocksDecodeToZeros) {
  for (const Storage storage : {Storage::nf4, Storage::fp4, Storage::int8})
    for (const bool nested : {false, true}) {
      if (nested && storage == Storage::int8) continue;
      const StorageSpec spec{storage, 64, nested};
      const std::vector<float> values(150, 0.0F);  // Two whole blocks and a short one.
      const auto got = decoded(stored(values, 3, 50, spec), 3, 50, spec);
      EXPECT_TRUE(all_within(got, values, 0)) << name_of(storage) << nested;
    }
}

TEST(Quantise, SubnormalBlocksStayFinite) {
  for (const Storage storage : {Storage::nf4, Storage::fp4, Storage::int8}) {
    const StorageSpec spec{storage, 64, false};
    const auto values = gaussian(150, 3, 1e-41F);
    EXPECT_TRUE(all_within(decoded(stored(values, 3, 50, spec), 3, 50, spec), values,
                           6e-41));  // Scales under 1e-38 lose precision, never sense
  }
}

TEST(Quantise, Int8ScaleIsAbsmaxOver127AndCodesRoundHalfToEven) {
  std::vector<float> values(32, 0.0F);
  values[0] = -127.0F;
  values[1] = 2.5F;
  values[2] = 3.5F;
  values[3] = 126.4F;
  const StorageSpec spec{Storage::int8, 32, false};
  const auto got = decoded(stored(values, 1, 32, spec), 1, 32, spec);
  EXPECT_EQ(got[0], -127.0F);
  EXPECT_EQ(got[1], 2.0F);
  EXPECT_EQ(got[2], 4.0F);
  EXPECT_EQ(got[3], 126.0F);
}

TEST(Quantise, Int8ErrorIsAtMostHalfAStep) {
  const auto values = gaussian(64 * 100, 11);
  const StorageSpec spec{Storage::int8, 64, false};
  const auto region = stored(values, 64, 100, spec);
  const auto got = decoded(region, 64, 100, spec);
  const Matrix matrix = view_of(64, 100, spec, region.data());
  std::vector<double> bounds;
  for (std::size_t i = 0; i < values.size(); ++i)
    bounds.push_back(double{scale_of(matrix, static_cast<std::int64_t>(i / 64))} * 0.50001);
  EXPECT_TRUE(all_within(got, values, bounds));
}

TEST(Quantise, ThreadsDoNotChangeAByte) {
  const auto values = gaussian(std::size_t{700} * 333, 5);
  for (const StorageSpec& spec : {StorageSpec{Storage::nf4, 64, true}, StorageSpec{Storage::fp4, 4096, false},
                                  StorageSpec{Storage::int8, 32, false}, StorageSpec{Storage::bf16, 0, false}})
    EXPECT_EQ(stored(values, 700, 333, spec, 1), stored(values, 700, 333, spec, 5)) << name_of(spec.storage);
}

TEST(Quantise, DoubleQuantKeepsScalesWithinItsStep) {
  const auto values = gaussian(std::size_t{64} * 3000, 9);
  const auto plain_region = stored(values, 64, 3000, {Storage::nf4, 64, false});
  const auto nested_region = stored(values, 64, 3000, {Storage::nf4, 64, true});
  const Matrix plain = view_of(64, 3000, {Storage::nf4, 64, false}, plain_region.data());
  const Matrix nested = view_of(64, 3000, {Storage::nf4, 64, true}, nested_region.data());
  for (std::int64_t block = 0; block < 3000; ++block) {
    const double spread = double{nested.nested_scales[block / 256]};  // Widest gap of the map: 0.0141 up to 1.
    EXPECT_NEAR(scale_of(nested, block), scale_of(plain, block), spread * 0.0072) << block;
  }
}

TEST(Quantise, NestedOffsetIsTheMean) {
  EXPECT_EQ(nested_offset_of(std::vector<float>{1.0F, 2.0F, 6.0F}), 3.0F);
  EXPECT_EQ(nested_offset_of(std::vector<float>(100'000, 0.1F)), 0.1F);
}

TEST(Quantise, DynamicMapHasItsKnownEntries) {
  const auto& map = dynamic_map();
  // Values printed by bitsandbytes 0.50.2, create_dynamic_map().
  EXPECT_EQ(map[0], -0.992968738079071F);
  EXPECT_EQ(map[1], -0.9789062738418579F);
  EXPECT_EQ(map[126], -5.500000384017767e-07F);
  EXPECT_EQ(map[127], 0.0F);
  EXPECT_EQ(map[129], 3.250000190746505e-06F);
  EXPECT_EQ(map[131], 2.1249998098937795e-05F);
  EXPECT_EQ(map[254], 0.992968738079071F);
  EXPECT_EQ(map[255], 1.0F);
}

// ---- refusals ----

std::string refusal(const std::vector<float>& values, std::int64_t columns, const StorageSpec& spec) {
  try {
    stored(values, static_cast<std::int64_t>(values.size()) / columns, columns, spec);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::non_finite);
    return error.what();
  }
  return "accepted";
}

TEST(Quantise, NonFiniteValuesAreRefusedByTensorAndPlace) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (const StorageSpec& spec : {StorageSpec{Storage::f32, 0, false}, StorageSpec{Storage::bf16, 0, false},
                                    StorageSpec{Storage::nf4, 64, true}, StorageSpec{Storage::int8, 64, false}}) {
      std::vector<float> values(128, 0.5F);
      values[77] = bad;
      EXPECT_NE(refusal(values, 32, spec).find("w holds"), std::string::npos);
      EXPECT_NE(refusal(values, 32, spec).find("row 2, column 13"), std::string::npos);
    }
}

TEST(Quantise, ValuesThatSixteenBitsCannotHoldAreRefused) {
  EXPECT_NE(refusal({1.0F, 70000.0F}, 2, {Storage::f16, 0, false}).find("65504"), std::string::npos);
  EXPECT_NE(refusal({1.0F, 3.4e38F}, 2, {Storage::bf16, 0, false}).find("bfloat16"), std::string::npos);
  EXPECT_EQ(refusal({1.0F, 65504.0F}, 2, {Storage::f16, 0, false}), "accepted");
  EXPECT_EQ(refusal({1.0F, 65519.0F}, 2, {Storage::f16, 0, false}), "accepted");  // Rounds to 65504.
}

}  // namespace
}  // namespace duet::loaders
