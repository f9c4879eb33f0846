// SIMD kernels against host_math, on every instruction set of this machine.
#include <gtest/gtest.h>

#define HWY_DISABLED_TARGETS HWY_SSSE3  // As in the kernels.
#include <hwy/targets.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/host/host_kernels.h"
#include "engine/host/host_math.h"
#include "loaders/quantise.h"
#include "tests/host/array_source.h"
#include "tests/support/compare.h"

namespace duet::test {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

/// Runs `body` once with every instruction set that was compiled and that this machine has.
template <class Body>
void on_every_instruction_set(Body&& body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(host::instruction_set_name());
    EXPECT_STREQ(host::instruction_set_name(), hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

struct StoredMatrix {
  std::vector<std::byte> memory;  // Exactly the region: a read past its end is one past the allocation.
  Matrix view;
};

StoredMatrix stored(std::int64_t rows, std::int64_t columns, StorageSpec spec, std::uint32_t seed) {
  const std::vector<float> values = random_floats(static_cast<std::size_t>(rows * columns), 0.1F, seed);
  StoredMatrix m;
  m.memory.resize(layout_of(rows, columns, spec).bytes);
  loaders::store_matrix(
      [&](std::int64_t first, std::span<float> destination) {
        std::copy_n(values.begin() + first, destination.size(), destination.begin());
      },
      rows, columns, spec, m.memory, "test", 1);
  m.view = view_of(rows, columns, spec, m.memory.data());
  return m;
}

std::vector<float> packed(const Matrix& w, std::span<const float> x, std::int64_t tokens) {
  const std::int64_t stride = host::packed_columns(w.columns);
  std::vector<float> result(static_cast<std::size_t>(tokens * stride), std::nanf(""));
  for (std::int64_t t = 0; t < tokens; ++t)
    host::pack(host::packing_of(w), x.data() + t * w.columns, w.columns, result.data() + t * stride);
  return result;
}

std::vector<float> multiplied(const Matrix& w, std::span<const float> x, std::int64_t tokens) {
  std::vector<float> y(static_cast<std::size_t>(tokens * w.rows), std::nanf(""));
  const std::vector<float> p = packed(w, x, tokens);
  host::matmul(w, p.data(), tokens, 0, w.rows, y.data(), w.rows);
  return y;
}

std::vector<StorageSpec> every_storage() {
  std::vector<StorageSpec> specs{{.storage = Storage::f32}, {.storage = Storage::f16}, {.storage = Storage::bf16}};
  for (const int block : {32, 64}) specs.push_back({.storage = Storage::int8, .block_size = block});
  for (const Storage storage : {Storage::nf4, Storage::fp4}) {
    for (const int block : {32, 64, 128, 256, 4096}) {
      for (const bool nested : {false, true}) specs.push_back({storage, block, nested});
    }
  }
  return specs;
}

std::string text_of(const StorageSpec& spec, std::int64_t rows, std::int64_t columns) {
  return std::string(name_of(spec.storage)) + " block " + std::to_string(spec.block_size) +
         (spec.nested ? " nested " : " ") + std::to_string(rows) + " x " + std::to_string(columns);
}

TEST(HostMatmul, StaysWithinTheBoundForEveryStorageShapeAndInstructionSet) {
  // Columns: whole blocks, blocks that cross row ends, odd counts, one column, more than one slab of scales.
  constexpr std::int64_t kShapes[][2] = {{5, 64},  {7, 172}, {3, 1},    {9, 96},   {6, 320},
                                         {4, 100}, {2, 33},  {11, 128}, {3, 4160}, {2, 8192}};
  on_every_instruction_set([&] {
    for (const StorageSpec& spec : every_storage()) {
      for (const auto& [rows, columns] : kShapes) {
        SCOPED_TRACE(text_of(spec, rows, columns));
        const StoredMatrix w = stored(rows, columns, spec, 11);
        constexpr std::int64_t kTokens = 3;
        const std::vector<float> x = random_floats(static_cast<std::size_t>(kTokens * columns), 1.0F, 12);
        const std::vector<float> y = multiplied(w.view, x, kTokens);
        for (std::int64_t t = 0; t < kTokens; ++t) {
          std::vector<float> want(static_cast<std::size_t>(rows));
          std::vector<double> bounds(want.size());
          plain::matvec(w.view,
                        std::span(x).subspan(static_cast<std::size_t>(t * columns), static_cast<std::size_t>(columns)),
                        want, bounds);
          for (double& bound : bounds) bound *= static_cast<double>(columns + 8) * kEps;
          ASSERT_TRUE(all_within(std::span(y).subspan(static_cast<std::size_t>(t * rows), want.size()), want, bounds));
        }
      }
    }
  });
}

TEST(HostMatmul, GivesEachTokenTheSameBitsAloneAndInABatchOfAnySize) {
  on_every_instruction_set([&] {
    for (const StorageSpec& spec : every_storage()) {
      SCOPED_TRACE(text_of(spec, 13, 192));
      const StoredMatrix w = stored(13, 192, spec, 21);
      constexpr std::int64_t kMostTokens = 37;
      const std::vector<float> x = random_floats(kMostTokens * 192, 1.0F, 22);
      std::vector<float> alone;
      for (std::size_t t = 0; t < kMostTokens; ++t) {
        const std::vector<float> y = multiplied(w.view, std::span(x).subspan(t * 192, 192), 1);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (const std::int64_t tokens : {2, 16, 17, 37}) {
        const std::vector<float> y = multiplied(w.view, x, tokens);
        ASSERT_TRUE(same_bits(y, std::span(alone).first(y.size()))) << tokens << " tokens";
      }
    }
  });
}

TEST(HostMatmul, GivesEachRowTheSameBitsInAnyRangeOfRows) {
  on_every_instruction_set([&] {
    for (const StorageSpec& spec : every_storage()) {
      const StoredMatrix w = stored(11, 160, spec, 31);
      for (const std::int64_t tokens : {1, 5}) {
        const std::vector<float> x = random_floats(static_cast<std::size_t>(tokens) * 160, 1.0F, 32);
        const std::vector<float> whole = multiplied(w.view, x, tokens);
        const std::vector<float> p = packed(w.view, x, tokens);
        std::vector<float> pieces(whole.size(), std::nanf(""));
        for (const auto& [first, last] : {std::pair{0, 1}, {1, 6}, {6, 9}, {9, 11}})
          host::matmul(w.view, p.data(), tokens, first, last, pieces.data(), 11);
        ASSERT_TRUE(same_bits(pieces, whole)) << text_of(spec, 11, 160);
      }
    }
  });
}

TEST(HostMatmul, IsExactWhereEverySumIsExact) {
  // Weights and activations are small multiples of a power of two: every partial sum is a binary32 number.
  on_every_instruction_set([&] {
    std::vector<float> values(6 * 200), x(200);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<int>(i * 7 % 17) - 8) / 16;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 5 % 9) - 4) / 4;
    for (const Storage storage : {Storage::f32, Storage::f16, Storage::bf16}) {
      std::vector<std::byte> memory(layout_of(6, 200, {.storage = storage}).bytes);
      loaders::store_matrix(
          [&](std::int64_t first, std::span<float> d) { std::copy_n(values.begin() + first, d.size(), d.begin()); }, 6,
          200, {.storage = storage}, memory, "test", 1);
      const Matrix w = view_of(6, 200, {.storage = storage}, memory.data());
      std::vector<float> want(6);
      plain::matvec(w, x, want);
      EXPECT_TRUE(same_bits(multiplied(w, x, 1), want)) << name_of(storage);
    }
  });
}

TEST(HostLora, AddsScaleTimesBUPlusC) {
  on_every_instruction_set([&] {
    for (const Storage storage : {Storage::f32, Storage::f16, Storage::bf16}) {
      for (const std::int64_t rank : {1, 3, 4, 8, 16, 21, 64}) {
        const StoredMatrix b = stored(9, rank, {.storage = storage}, 41);
        const std::vector<float> u = random_floats(static_cast<std::size_t>(rank), 1.0F, 42);
        const std::vector<float> c = random_floats(9, 1.0F, 43);
        std::vector<float> y = random_floats(9, 1.0F, 44), want(9);
        std::vector<double> bounds(9);
        plain::matvec(b.view, u, want, bounds);
        for (std::size_t i = 0; i < 9; ++i) {
          bounds[i] = (bounds[i] + std::abs(c[i]) + std::abs(y[i])) * static_cast<double>(rank + 8) * kEps;
          want[i] = static_cast<float>(y[i] + 0.5 * (double{want[i]} + c[i]));
        }
        host::add_lora(b.view, u.data(), c.data(), 0.5F, 0, 9, y.data());
        ASSERT_TRUE(all_within(y, want, bounds)) << name_of(storage) << " rank " << rank;
      }
    }
  });
}

TEST(HostRmsNorm, MatchesPlainMathsAtEverySize) {
  on_every_instruction_set([&] {
    for (const std::size_t size : {1U, 3U, 16U, 31U, 64U, 97U, 896U}) {
      const std::vector<float> x = random_floats(size, 2.0F, 51), gamma = random_floats(size, 1.0F, 52);
      std::vector<float> y(size), want(size);
      EXPECT_TRUE(host::rms_norm(x.data(), gamma.data(), static_cast<std::int64_t>(size), 1e-6F, y.data()));
      plain::rms_norm(x, gamma, 1e-6, want);
      ASSERT_TRUE(all_within_relative(y, want, 1e-6)) << size;
    }
  });
}

TEST(HostRmsNorm, TakesFiniteNumbersWhoseSquaresOverflowAndReportsOthers) {
  on_every_instruction_set([&] {
    std::vector<float> x(40, 1e30F), gamma(40, 2.0F), y(40);
    EXPECT_TRUE(host::rms_norm(x.data(), gamma.data(), 40, 1e-6F, y.data()));
    EXPECT_TRUE(all_within(y, std::vector<float>(40, 2.0F), 1e-6));
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (const std::size_t place : {0U, 17U, 39U}) {
        std::vector<float> z(40, 1.0F);
        z[place] = bad;
        EXPECT_FALSE(host::rms_norm(z.data(), gamma.data(), 40, 1e-6F, y.data())) << place;
        EXPECT_FALSE(host::all_finite(y.data(), 40)) << "what is not finite must stay so";
      }
    }
  });
}

TEST(HostSwiglu, MatchesPlainMathsIntoTheTails) {
  on_every_instruction_set([&] {
    std::vector<float> gate = random_floats(75, 4.0F, 61);
    gate[0] = 90.0F, gate[1] = -90.0F, gate[2] = 0.0F, gate[70] = -104.0F, gate[71] = 1e4F, gate[72] = -1e4F;
    const std::vector<float> up = random_floats(75, 1.0F, 62);
    std::vector<float> want(75);
    plain::swiglu(gate, up, want);
    std::vector<double> bounds;
    for (std::size_t i = 0; i < 75; ++i) bounds.push_back(8 * kEps * std::abs(want[i]) + 1e-34);
    host::swiglu(gate.data(), up.data(), 75);
    EXPECT_TRUE(all_within(gate, want, bounds));
    std::vector<float> bad(20, std::nanf("")), one(20, 1.0F);
    host::swiglu(bad.data(), one.data(), 20);
    for (const float value : bad) EXPECT_TRUE(std::isnan(value));
  });
}

TEST(HostRotate, MatchesPlainMaths) {
  on_every_instruction_set([&] {
    for (const std::size_t size : {2U, 8U, 24U, 64U, 128U}) {
      std::vector<float> x = random_floats(size, 1.0F, 71), want = x, cosine(size / 2), sine(size / 2);
      plain::rotary(inverse_frequencies(RopeSpec{}, static_cast<int>(size)), 1234, 1.0, cosine, sine);
      plain::rotate(want, cosine, sine);
      host::rotate(x.data(), cosine.data(), sine.data(), static_cast<std::int64_t>(size));
      EXPECT_TRUE(all_within(x, want, 4 * kEps * 4)) << size;
    }
  });
}

// ---- attention ----

/// A pool of pages in reverse order, everything outside the sequence's positions NaN.
struct Pool {
  std::vector<float> memory;
  std::vector<std::int32_t> pages;
  KvView view;

  Pool(int kv_heads, int head_size, std::int64_t tokens_per_page, std::int64_t tokens, std::uint32_t seed) {
    const auto page_count = static_cast<std::size_t>((tokens + tokens_per_page - 1) / tokens_per_page);
    const auto page_floats = static_cast<std::size_t>(2 * kv_heads * head_size * tokens_per_page);
    memory.assign((page_count + 1) * page_floats, std::nanf(""));
    for (std::size_t i = 0; i < page_count; ++i) pages.push_back(static_cast<std::int32_t>(page_count - i));
    view = {reinterpret_cast<std::byte*>(memory.data()),
            page_floats * sizeof(float),
            tokens_per_page,
            kv_heads,
            head_size,
            pages};
    for (std::int64_t p = 0; p < tokens; ++p) {
      for (int head = 0; head < kv_heads; ++head) {
        const std::vector<float> values = random_floats(static_cast<std::size_t>(2 * head_size), 1.0F, seed++);
        std::copy_n(values.begin(), head_size, view.key(0, head, p));
        std::copy_n(values.begin() + head_size, head_size, view.value(0, head, p));
      }
    }
  }
};

TEST(HostAttention, MatchesPlainMathsOverPagesOfAnySize) {
  on_every_instruction_set([&] {
    for (const int head_size : {8, 24, 64, 128}) {
      for (const std::int64_t tokens_per_page : {1, 7, 16, 300}) {
        const Pool pool(2, head_size, tokens_per_page, 200, 81);
        for (const auto& [first, last] :
             {std::pair<std::int64_t, std::int64_t>{0, 1}, {0, 64}, {0, 65}, {0, 200}, {37, 170}, {199, 200}}) {
          const std::vector<float> q = random_floats(static_cast<std::size_t>(3 * head_size), 1.0F, 82);
          std::vector<float> out(q.size()), want(q.size());
          const float scale = 1.0F / std::sqrt(static_cast<float>(head_size));
          host::attend(q.data(), 3, pool.view, 0, 1, first, last, scale, out.data());
          for (std::size_t h = 0; h < 3; ++h) {
            const auto size = static_cast<std::size_t>(head_size);
            plain::attend(std::span(q).subspan(h * size, size), pool.view, 0, 1, first, last, scale,
                          std::span(want).subspan(h * size, size));
          }
          ASSERT_TRUE(all_within(out, want, 1e-5))
              << head_size << " " << tokens_per_page << " " << first << " " << last;
        }
      }
    }
  });
}

TEST(HostAttention, GivesTheSameBitsWhateverThePageSize) {
  on_every_instruction_set([&] {
    const std::vector<float> q = random_floats(2 * 24, 1.0F, 91);
    std::vector<float> want;
    for (const std::int64_t tokens_per_page : {1000, 1, 16, 33}) {
      const Pool pool(1, 24, tokens_per_page, 150, 92);
      std::vector<float> out(q.size());
      host::attend(q.data(), 2, pool.view, 0, 0, 3, 150, 0.2F, out.data());
      if (want.empty()) want = out;
      EXPECT_TRUE(same_bits(out, want)) << tokens_per_page;
    }
  });
}

TEST(HostAttention, KeepsRawProductsBeyondHalfPrecisionFinite) {
  // O-10: q = k1 = 80 everywhere, k2 = 0; 102,400 before the scale, 25,600 after it; softmax is (1, 0).
  on_every_instruction_set([&] {
    Pool pool(1, 16, 4, 2, 0);
    std::vector<float> q(16, 80.0F), out(16);
    for (int i = 0; i < 16; ++i) {
      pool.view.key(0, 0, 0)[i] = 80.0F, pool.view.key(0, 0, 1)[i] = 0.0F;
      pool.view.value(0, 0, 0)[i] = 3.0F, pool.view.value(0, 0, 1)[i] = -7.0F;
    }
    host::attend(q.data(), 1, pool.view, 0, 0, 0, 2, 0.25F, out.data());
    EXPECT_TRUE(same_bits(out, std::vector<float>(16, 3.0F)));
  });
}

TEST(HostAttention, LetsNaNThrough) {
  on_every_instruction_set([&] {
    for (const std::int64_t place : {0, 70, 99}) {
      const Pool pool(1, 16, 16, 100, 95);
      pool.view.key(0, 0, place)[3] = std::nanf("");
      std::vector<float> q(16, 1.0F), out(16);
      host::attend(q.data(), 1, pool.view, 0, 0, 0, 100, 0.25F, out.data());
      for (const float value : out) EXPECT_TRUE(std::isnan(value)) << place;
    }
  });
}

}  // namespace
}  // namespace duet::test
