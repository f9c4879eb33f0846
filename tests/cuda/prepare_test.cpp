#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cuda/launch.h"
#include "engine/half.h"
#include "engine/host/host_math.h"
#include "tests/support/compare.h"
#include "tests/support/gpu.h"
#include "tests/support/gpu_time.h"

namespace duet::test {
namespace {

constexpr unsigned kSeed = 20261201;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int32_t kLayer = 5;
const std::vector<std::int64_t> kColumns = {1, 7, 8, 64, 100, 896, 1536, 3071, 4096, 8960, 32768, 40001};

struct Prepared {
  std::vector<std::uint16_t> x;  // [rows, stride]
  std::vector<float> factors;
  std::vector<std::int32_t> bad_layer;
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  std::uint16_t bits(std::int64_t row, std::int64_t column) const {
    return x[static_cast<std::size_t>(row * cuda::prepared_stride(columns) + column)];
  }
  float stored(std::int64_t row, std::int64_t column) const { return to_float(static_cast<Half>(bits(row, column))); }
  std::vector<float> values(std::int64_t row) const {
    std::vector<float> result;
    for (std::int64_t c = 0; c < columns; ++c)
      result.push_back(stored(row, c) * factors[static_cast<std::size_t>(row)]);
    return result;
  }
  bool operator==(const Prepared&) const = default;
};

/// Runs `launch(out, marks)` into poisoned memory.
Prepared run(std::int64_t rows, std::int64_t columns,
             const std::function<void(const cuda::PreparedRows&, const cuda::Marks&)>& launch) {
  const auto count = static_cast<std::size_t>(rows);
  const PoisonedBuffer x(count * static_cast<std::size_t>(cuda::prepared_stride(columns)) * 2);
  const PoisonedBuffer factors(count * sizeof(float));
  const PoisonedBuffer marks = on_card(std::vector<std::int32_t>(count, cuda::kNoBadLayer));
  launch({as<std::uint16_t>(x), as<float>(factors)}, {as<std::int32_t>(marks), kLayer, kLayer});
  Prepared result{from_card<std::uint16_t>(x), from_card<float>(factors), from_card<std::int32_t>(marks), rows,
                  columns};
  EXPECT_TRUE(x.guards_intact() && factors.guards_intact() && marks.guards_intact());
  return result;
}

/// What PreparedRows promises of a finite row whose largest magnitude is above 2^-100.
void expect_shape(const Prepared& got, std::int64_t row) {
  const float factor = got.factors[static_cast<std::size_t>(row)];
  int exponent = 0;
  ASSERT_EQ(std::frexp(factor, &exponent), 0.5F) << "no power of two: " << factor;
  float largest = 0;
  for (std::int64_t c = 0; c < got.columns; ++c) largest = std::max(largest, std::abs(got.stored(row, c)));
  EXPECT_GE(largest, 0x1p14F);
  EXPECT_LE(largest, 0x1p15F);  // Rounding to f16 may reach the end.
  for (std::int64_t c = got.columns; c < cuda::prepared_stride(got.columns); ++c) EXPECT_EQ(got.bits(row, c), 0);
}

/// Error `relative` of float32 arithmetic, then one rounding to f16 (2^-11, or half of the smallest f16 step).
std::vector<double> bounds_of(const std::vector<float>& want, double relative, float factor) {
  std::vector<double> bounds;
  for (const float value : want) {
    const double own = std::abs(double{value});
    bounds.push_back(own * relative + std::max(own * (1 + relative) * 0x1p-11, 0x1p-25 * double{factor}) + 0x1p-149);
  }
  return bounds;
}

std::vector<float> normal_values(std::size_t count, std::mt19937& random, float size = 1) {
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> row_of(const std::vector<float>& values, std::int64_t row, std::int64_t columns) {
  return {values.begin() + row * columns, values.begin() + (row + 1) * columns};
}

// ---- prepare ----

TEST(CudaPrepare, IsOneRoundingToAPowerOfTwoOfTheRow) {
  DUET_NEEDS_GPU();
  std::mt19937 random(kSeed);
  const std::vector<float> sizes = {1, 1e-38F, 3e37F, 1e-20F, 1e4F};
  for (const std::int64_t columns : kColumns) {
    const auto rows = static_cast<std::int64_t>(sizes.size());
    std::vector<float> x;
    for (const float size : sizes)
      for (const float value : normal_values(static_cast<std::size_t>(columns), random, size)) x.push_back(value);
    const PoisonedBuffer source = on_card(x);
    const auto launch = [&](const cuda::PreparedRows& out, const cuda::Marks& marks) {
      cuda::prepare(as<float>(source), static_cast<int>(rows), columns, out, marks, nullptr);
    };
    const Prepared got = run(rows, columns, launch);
    EXPECT_EQ(got, run(rows, columns, launch)) << "the same call gave other bits";
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::vector<float> values = row_of(x, row, columns);
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(value));
      int exponent = 0;
      (void)std::frexp(largest, &exponent);  // largest in [2^(exponent - 1), 2^exponent)
      const int power = std::max(exponent - 15, -126);
      ASSERT_EQ(got.factors[static_cast<std::size_t>(row)], std::ldexp(1.0F, power)) << columns << " row " << row;
      for (std::int64_t c = 0; c < columns; ++c) {
        const float scaled = std::ldexp(values[static_cast<std::size_t>(c)], -power);
        ASSERT_EQ(got.bits(row, c), static_cast<std::uint16_t>(to_half(scaled)))
            << columns << " row " << row << " " << c;
      }
      for (std::int64_t c = columns; c < cuda::prepared_stride(columns); ++c) ASSERT_EQ(got.bits(row, c), 0);
      EXPECT_EQ(got.bad_layer[static_cast<std::size_t>(row)], cuda::kNoBadLayer);
    }
  }
}

TEST(CudaPrepare, AZeroRowHasFactorOneAndTheSmallestNumbersSurvive) {
  DUET_NEEDS_GPU();
  const std::int64_t columns = 12;
  std::vector<float> x(24, 0.0F);
  x[12] = std::numeric_limits<float>::denorm_min();
  const PoisonedBuffer source = on_card(x);
  const Prepared got = run(2, columns, [&](const cuda::PreparedRows& out, const cuda::Marks& marks) {
    cuda::prepare(as<float>(source), 2, columns, out, marks, nullptr);
  });
  EXPECT_EQ(got.factors, (std::vector<float>{1.0F, 0x1p-126F}));
  EXPECT_TRUE(same_bits(got.values(0), std::vector<float>(12, 0.0F)));
  EXPECT_EQ(got.stored(1, 0), 0x1p-23F);
}

// ---- O-31, first half: what is not finite is marked where it is first seen, and harms no other row ----

TEST(CudaPrepare, ARowThatIsNotFiniteLowersItsMarkAloneAndBecomesZeros) {
  DUET_NEEDS_GPU();
  for (const std::int64_t columns : {1, 9, 1536, 40001}) {
    const std::vector<std::int64_t> places = {0, columns / 2, columns - 1};
    const std::vector<float> bad = {kNan, kInf, -kInf};
    const std::int64_t rows = 10;  // Row 9 is finite.
    const auto size = static_cast<std::size_t>(rows * columns);
    std::vector<float> x(size, 0.5F);
    for (std::int64_t row = 0; row < 9; ++row)
      x[static_cast<std::size_t>(row * columns + places[static_cast<std::size_t>(row / 3)])] =
          bad[static_cast<std::size_t>(row % 3)];
    const PoisonedBuffer source = on_card(x);
    const PoisonedBuffer ones = on_card(std::vector<float>(size, 1.0F));
    const auto check = [&](const Prepared& got, const char* what) {
      for (std::int64_t row = 0; row < 9; ++row) {
        EXPECT_EQ(got.bad_layer[static_cast<std::size_t>(row)], kLayer) << what << " row " << row;
        EXPECT_EQ(got.factors[static_cast<std::size_t>(row)], 1.0F);
        EXPECT_TRUE(same_bits(got.values(row), std::vector<float>(static_cast<std::size_t>(columns), 0.0F))) << what;
      }
      EXPECT_EQ(got.bad_layer[9], cuda::kNoBadLayer) << what;
      EXPECT_GT(got.values(9)[0], 0.0F) << what;
    };
    check(run(rows, columns,
              [&](const cuda::PreparedRows& out, const cuda::Marks& marks) {
                cuda::prepare(as<float>(source), rows, columns, out, marks, nullptr);
              }),
          "prepare");
    check(run(rows, columns,
              [&](const cuda::PreparedRows& out, const cuda::Marks& marks) {
                cuda::normalise(as<float>(source), as<float>(ones), 1e-6, false, nullptr, rows, columns, {}, 0, out,
                                marks, nullptr);
              }),
          "normalise");
    check(run(rows, columns,
              [&](const cuda::PreparedRows& out, const cuda::Marks& marks) {
                cuda::swiglu(as<float>(source), as<float>(ones), rows, columns, out, marks, nullptr);
              }),
          "swiglu, gate");
    check(run(rows, columns,
              [&](const cuda::PreparedRows& out, const cuda::Marks& marks) {
                cuda::swiglu(as<float>(ones), as<float>(source), rows, columns, out, marks, nullptr);
              }),
          "swiglu, up");
  }
}

TEST(CudaPrepare, AMarkOnlyEverFallsAndAProductBeyondFloatIsMarked) {
  DUET_NEEDS_GPU();
  const PoisonedBuffer gate = on_card(std::vector<float>{1e30F, 1e30F, 1});
  const PoisonedBuffer up = on_card(std::vector<float>{1e30F, 1e30F, 1});
  const PoisonedBuffer marks = on_card(std::vector<std::int32_t>{2, 9, cuda::kNoBadLayer});
  const PoisonedBuffer x(3 * 8 * 2);
  const PoisonedBuffer factors(3 * 4);
  cuda::swiglu(as<float>(gate), as<float>(up), 3, 1, {as<std::uint16_t>(x), as<float>(factors)},
               {as<std::int32_t>(marks), kLayer, kLayer}, nullptr);
  EXPECT_EQ(from_card<std::int32_t>(marks), (std::vector<std::int32_t>{2, kLayer, cuda::kNoBadLayer}));
}

// ---- normalise ----

struct NormCase {
  std::int64_t columns;
  bool zero_centred;
  double epsilon;
};

TEST(CudaNormalise, EqualsTheOracleWithAdaptersAndEverySizeOfRow) {
  DUET_NEEDS_GPU();
  std::mt19937 random(kSeed);
  for (const std::int64_t columns : kColumns) {
    for (const bool zero_centred : {false, true}) {
      const double epsilon = zero_centred ? 1e-5 : 1e-6;
      // Squares of the fourth and fifth rows are beyond float32; the second row lies below epsilon.
      const std::vector<float> sizes = {1, 1e-5F, 300, 1e22F, 2e37F, 1, 1};
      const auto rows = static_cast<std::int64_t>(sizes.size());
      const auto width = static_cast<std::size_t>(columns);
      std::vector<float> x;
      for (const float size : sizes)
        for (const float value : normal_values(width, random, size)) x.push_back(value);
      const std::vector<float> gamma = normal_values(width, random, 0.5F);
      const std::vector<float> replaced = normal_values(width, random, 0.5F);

      constexpr int kPlaces = 3;
      constexpr int kPlace = 1;
      const PoisonedBuffer replacement = on_card(replaced);
      std::vector<cuda::AdapterPart> parts(2 * kPlaces);  // Slot 0 replaces nothing, slot 1 gamma.
      parts[kPlaces + kPlace].replacement = replacement.data();
      std::vector<cuda::StepRow> step(sizes.size(), {1, 0, 0, 0, -1, 1});
      step[5].adapter_slot = 0;
      step[6].adapter_slot = 1;
      const PoisonedBuffer source = on_card(x);
      const PoisonedBuffer weight = on_card(gamma);
      const PoisonedBuffer table = on_card(parts);
      const PoisonedBuffer step_rows = on_card(step);
      const auto launch = [&](std::int64_t first, std::int64_t count) {
        return run(count, columns, [&](const cuda::PreparedRows& out, const cuda::Marks& marks) {
          cuda::normalise(as<float>(source) + first * columns, as<float>(weight), epsilon, zero_centred,
                          as<cuda::StepRow>(step_rows) + first, static_cast<int>(count), columns,
                          {as<cuda::AdapterPart>(table), kPlaces}, kPlace, out, marks, nullptr);
        });
      };
      const Prepared got = launch(0, rows);
      EXPECT_EQ(got, launch(0, rows)) << "the same call gave other bits";
      const double relative = (14 + (columns > 32768 ? 20 : 8) / 2.0) * 0x1p-24;  // cuda/prepare.cu
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::vector<float> own = row_of(x, row, columns);
        const std::vector<float>& g = row == 6 ? replaced : gamma;
        double squares = 0;
        for (const float value : own) squares += double{value} * value;
        const double inverse = 1 / std::sqrt(squares / static_cast<double>(columns) + epsilon);
        std::vector<float> want;
        for (std::size_t c = 0; c < width; ++c)
          want.push_back(static_cast<float>((double{g[c]} + (zero_centred ? 1 : 0)) * (own[c] * inverse)));
        const std::string what = fmt::format("{} columns, row {}, zero-centred {}", columns, row, zero_centred);
        EXPECT_TRUE(
            all_within(got.values(row), want, bounds_of(want, relative, got.factors[static_cast<std::size_t>(row)])))
            << what;
        expect_shape(got, row);
        EXPECT_EQ(got.bad_layer[static_cast<std::size_t>(row)], cuda::kNoBadLayer) << what;
        const Prepared alone = launch(row, 1);
        EXPECT_TRUE(same_bits(alone.values(0), got.values(row))) << "alone is not as in the batch: " << what;
      }
    }
  }
}

TEST(CudaNormalise, AZeroRowStaysZero) {
  DUET_NEEDS_GPU();
  const PoisonedBuffer x = on_card(std::vector<float>(100, 0.0F));
  const PoisonedBuffer gamma = on_card(std::vector<float>(100, 2.0F));
  const Prepared got = run(1, 100, [&](const cuda::PreparedRows& out, const cuda::Marks& marks) {
    cuda::normalise(as<float>(x), as<float>(gamma), 1e-6, false, nullptr, 1, 100, {}, 0, out, marks, nullptr);
  });
  EXPECT_TRUE(same_bits(got.values(0), std::vector<float>(100, 0.0F)));
  EXPECT_EQ(got.factors[0], 1.0F);
  EXPECT_EQ(got.bad_layer[0], cuda::kNoBadLayer);
}

// ---- swiglu ----

TEST(CudaSwiglu, EqualsTheOracle) {
  DUET_NEEDS_GPU();
  std::mt19937 random(kSeed);
  constexpr double kRelative = 0x1p-21;  // cuda/prepare.cu
  for (const std::int64_t columns : kColumns) {
    const std::int64_t rows = 4;
    const auto width = static_cast<std::size_t>(columns);
    std::vector<float> gate;
    for (const float size : {1.0F, 30.0F, 200.0F, 0.01F})
      for (const float value : normal_values(width, random, size)) gate.push_back(value);
    const std::vector<float> up = normal_values(gate.size(), random, 3);
    const PoisonedBuffer gates = on_card(gate);
    const PoisonedBuffer ups = on_card(up);
    const auto launch = [&](const cuda::PreparedRows& out, const cuda::Marks& marks) {
      cuda::swiglu(as<float>(gates), as<float>(ups), rows, columns, out, marks, nullptr);
    };
    const Prepared got = run(rows, columns, launch);
    EXPECT_EQ(got, run(rows, columns, launch)) << "the same call gave other bits";
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<float> want(width);
      plain::swiglu(row_of(gate, row, columns), row_of(up, row, columns), want);
      const float factor = got.factors[static_cast<std::size_t>(row)];
      std::vector<double> bounds = bounds_of(want, kRelative, factor);
      for (double& bound : bounds) bound += 0x1p-118;  // exp overflows where gate * exp(gate) is smaller than this.
      EXPECT_TRUE(all_within(got.values(row), want, bounds)) << columns << " columns, row " << row;
      EXPECT_EQ(got.bad_layer[static_cast<std::size_t>(row)], cuda::kNoBadLayer);
      if (columns > 64) expect_shape(got, row);
    }
  }
}

// ---- figures ----

TEST(CudaPrepare, Times) {
  DUET_NEEDS_GPU();
  std::mt19937 random(kSeed);
  const std::size_t count = std::size_t{512} * 8960;
  const PoisonedBuffer a = on_card(normal_values(count, random));
  const PoisonedBuffer b = on_card(normal_values(count, random));
  const PoisonedBuffer out(count * 2);
  const PoisonedBuffer factors(512 * 4);
  const PoisonedBuffer marks = on_card(std::vector<std::int32_t>(512, cuda::kNoBadLayer));
  const cuda::PreparedRows rows{as<std::uint16_t>(out), as<float>(factors)};
  const cuda::Marks at{as<std::int32_t>(marks), 0};
  for (const int n : {1, 512}) {
    print_time(fmt::format("normalise {} x 1536", n), microseconds_of([&](cuda::Stream stream) {
                 cuda::normalise(as<float>(a), as<float>(b), 1e-6, false, nullptr, n, 1536, {}, 0, rows, at, stream);
               }));
    print_time(fmt::format("swiglu {} x 8960", n), microseconds_of([&](cuda::Stream stream) {
                 cuda::swiglu(as<float>(a), as<float>(b), n, 8960, rows, at, stream);
               }));
  }
}

}  // namespace
}  // namespace duet::test
