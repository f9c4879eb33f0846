// Quantising against bitsandbytes itself: tests/golden/README.md, part quant.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "engine/half.h"
#include "engine/quant_blocks.h"
#include "loaders/quantise.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"

namespace duet::loaders {
namespace {

using nlohmann::json;
using test::GoldenArrays;
using test::same_bits;

std::vector<float> values_of(const GoldenArrays& arrays, const json& input) {
  const auto name = input["values"].get<std::string>();
  const auto type = input["value_type"].get<std::string>();
  if (type == "float32") return arrays.floats(name);
  std::vector<float> values;
  for (const std::uint16_t word : arrays.half_words(name))
    values.push_back(type == "float16" ? to_float(Half{word}) : to_float(Bfloat16{word}));
  return values;
}

struct Quantised {
  std::int64_t rows = 0, columns = 0;
  StorageSpec spec;
  MatrixLayout layout;
  std::vector<std::byte> region;

  Quantised(const json& input, const std::vector<float>& values, const StorageSpec& wanted)
      : rows(input["shape"][0]), columns(input["shape"][1]), spec(wanted), layout(layout_of(rows, columns, wanted)) {
    region.resize(layout.bytes);
    store_matrix(
        [&](std::int64_t first, std::span<float> out) { std::copy_n(values.begin() + first, out.size(), out.begin()); },
        rows, columns, spec, region, "golden");
  }

  std::vector<std::uint8_t> bytes(std::size_t offset, std::size_t count) const {
    std::vector<std::uint8_t> result(count);
    std::memcpy(result.data(), region.data() + offset, count);
    return result;
  }
  std::vector<float> floats(std::size_t offset, std::size_t count) const {
    std::vector<float> result(count);
    std::memcpy(result.data(), region.data() + offset, count * sizeof(float));
    return result;
  }
  std::vector<float> decoded() const {
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    dequantise(view_of(rows, columns, spec, region.data()), 0, values);
    return values;
  }
};

Storage storage_of(const json& test_case) {
  return test_case["quant_type"].get<std::string>() == "nf4" ? Storage::nf4 : Storage::fp4;
}

template <typename Check>
int for_each_case(const GoldenArrays& arrays, Check check) {
  int cases = 0;
  for (const json& input : arrays.index()["inputs"]) {
    const std::vector<float> values = values_of(arrays, input);
    for (const json& test_case : input["cases"]) {
      SCOPED_TRACE(input["name"].get<std::string>() + " " + test_case["codes"].get<std::string>());
      check(input, values, test_case);
      ++cases;
    }
  }
  return cases;
}

TEST(QuantiseGolden, TablesAreThoseOfBitsandbytes) {
  const GoldenArrays arrays("quant/four_bit.json");
  EXPECT_TRUE(same_bits(kNf4Codes, arrays.floats("nf4_codes")));
  EXPECT_TRUE(same_bits(kFp4Codes, arrays.floats("fp4_codes")));
  EXPECT_TRUE(same_bits(dynamic_map(), arrays.floats("nested_map")));
}

TEST(QuantiseGolden, FourBitCodesAndScalesAreEqualToTheLastBit) {
  const GoldenArrays arrays("quant/four_bit.json");
  const int cases = for_each_case(arrays, [&](const json& input, const std::vector<float>& values, const json& c) {
    const Quantised got(input, values, {storage_of(c), c["block_size"], false});
    EXPECT_EQ(got.bytes(0, got.layout.data_bytes), arrays.bytes(c["codes"].get<std::string>()));
    EXPECT_TRUE(same_bits(got.floats(got.layout.scales_offset, static_cast<std::size_t>(got.layout.blocks)),
                          arrays.floats(c["absmax"].get<std::string>())));
  });
  EXPECT_GE(cases, 20);
}

TEST(QuantiseGolden, NestedScalesAreEqualGivenTheOffset) {
  const GoldenArrays arrays("quant/four_bit.json");
  int nested_cases = 0;
  for_each_case(arrays, [&](const json&, const std::vector<float>&, const json& c) {
    if (!c.contains("nested")) return;
    ++nested_cases;
    const json& want = c["nested"];
    const std::vector<float> absmax = arrays.floats(c["absmax"].get<std::string>());
    const float offset = arrays.floats(want["offset"].get<std::string>()).at(0);
    std::vector<std::uint8_t> codes(absmax.size());
    std::vector<float> nested((absmax.size() + 255) / 256);
    quantise_scales(absmax, offset, codes, nested);
    EXPECT_EQ(codes, arrays.bytes(want["scale_codes"].get<std::string>()));
    EXPECT_TRUE(same_bits(nested, arrays.floats(want["nested_absmax"].get<std::string>())));
    // Our own offset is the mean in float64: PyTorch's float32 sum stays within rounding of it.
    double sum = 0;
    for (const float scale : absmax) sum += std::abs(double{scale});
    const double bound =
        sum / static_cast<double>(absmax.size()) * 0x1p-23 * std::log2(2.0 + static_cast<double>(absmax.size()));
    EXPECT_NEAR(nested_offset_of(absmax), offset, bound);
  });
  EXPECT_GE(nested_cases, 4);
}

TEST(QuantiseGolden, NestedScalesDecodeToTheSameFloats) {
  const GoldenArrays arrays("quant/four_bit.json");
  for_each_case(arrays, [&](const json&, const std::vector<float>&, const json& c) {
    if (!c.contains("nested")) return;
    const json& parts = c["nested"];
    const auto codes = arrays.bytes(parts["scale_codes"].get<std::string>());
    const auto nested = arrays.floats(parts["nested_absmax"].get<std::string>());
    const auto map = arrays.floats("nested_map");
    const auto offset = arrays.floats(parts["offset"].get<std::string>());
    Matrix matrix;
    matrix.spec = {Storage::nf4, 64, true};
    matrix.scale_codes = codes.data();
    matrix.nested_scales = nested.data();
    matrix.nested_map = map.data();
    matrix.nested_offset = offset.data();
    std::vector<float> scales;
    for (std::size_t block = 0; block < codes.size(); ++block)
      scales.push_back(scale_of(matrix, static_cast<std::int64_t>(block)));
    EXPECT_TRUE(same_bits(scales, arrays.floats(parts["absmax_restored"].get<std::string>())));
  });
}

TEST(QuantiseGolden, DecodedValuesAreEqualInAllThreeTypes) {
  const GoldenArrays arrays("quant/four_bit.json");
  int decoded_cases = 0;
  for_each_case(arrays, [&](const json& input, const std::vector<float>& values, const json& c) {
    if (!c.contains("decoded")) return;
    ++decoded_cases;
    const std::vector<float> got = Quantised(input, values, {storage_of(c), c["block_size"], false}).decoded();
    // +0 and -0 are one value here: bitsandbytes has both in FP4.
    EXPECT_TRUE(test::all_within(got, arrays.floats(c["decoded"]["float32"].get<std::string>()), 0));
    std::vector<float> half, brain, want_half, want_brain;
    for (const float value : got) half.push_back(to_float(to_half(value)));
    for (const float value : got) brain.push_back(to_float(to_bfloat16(value)));
    for (const auto word : arrays.half_words(c["decoded"]["float16"].get<std::string>()))
      want_half.push_back(to_float(Half{word}));
    for (const auto word : arrays.half_words(c["decoded"]["bfloat16"].get<std::string>()))
      want_brain.push_back(to_float(Bfloat16{word}));
    EXPECT_TRUE(test::all_within(half, want_half, 0));
    EXPECT_TRUE(test::all_within(brain, want_brain, 0));
  });
  EXPECT_GE(decoded_cases, 2);
}

TEST(QuantiseGolden, Int8BlocksAreEqualToTheLastBit) {
  const GoldenArrays arrays("quant/eight_bit.json");
  const int cases = for_each_case(arrays, [&](const json& input, const std::vector<float>& values, const json& c) {
    const Quantised got(input, values, {Storage::int8, c["block_size"], false});
    EXPECT_EQ(got.bytes(0, got.layout.data_bytes), arrays.bytes(c["codes"].get<std::string>()));
    EXPECT_TRUE(same_bits(got.floats(got.layout.scales_offset, static_cast<std::size_t>(got.layout.blocks)),
                          arrays.floats(c["scales"].get<std::string>())));
  });
  EXPECT_GE(cases, 6);
}

}  // namespace
}  // namespace duet::loaders
