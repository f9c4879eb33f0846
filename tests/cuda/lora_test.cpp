#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cuda/projection_case.h"
#include "tests/support/compare.h"

namespace duet::test {
namespace {

const StorageSpec kF16{Storage::f16, 0, false};

/// Splits z into what must have been written and what must not, and compares the former.
void compare(const std::vector<float>& got, const ProjectionCase::Expected& expected) {
  std::vector<float> written, wanted;
  std::vector<double> bounds;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected.y[i])) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), 0xFFFFFFFFU) << "written at " << i << " where no adapter is";
      continue;
    }
    written.push_back(got[i]);
    wanted.push_back(expected.y[i]);
    bounds.push_back(expected.bounds[i]);
  }
  if (wanted.empty()) return;
  ASSERT_TRUE(all_within(written, wanted, bounds));
}

TEST(CudaLoraShrink, AgreesWithFloat64ForEveryRankStorageAndWidth) {
  DUET_NEEDS_GPU();
  std::uint32_t seed = 800;
  for (const std::int64_t columns : {7, 64, 101, 1536, 4864})
    for (const int rank : {1, 3, 8, 16, 64, 256})
      for (const Storage storage : {Storage::f16, Storage::bf16, Storage::f32}) {
        const AdapterPlan own{.rank = rank, .a_storage = storage};
        const AdapterPlan other{.rank = (rank + 2) / 2, .a_storage = Storage::bf16};
        const ProjectionCase subject(
            columns, {{3, kF16, cuda::Arrangement::rows, false}, {2, kF16, cuda::Arrangement::rows, false}}, 49,
            {{own, other}, {{}, own}}, ++seed);
        const auto expected = subject.expected_z(49);
        for (const int count : {1, 5, 32, 33, 49}) {
          SCOPED_TRACE(fmt::format("{} columns, rank {}, {}, {} rows", columns, rank, name_of(storage), count));
          const auto got = subject.shrink(0, count);
          compare(got, expected);
          ASSERT_TRUE(std::memcmp(got.data(), subject.shrink(0, count).data(), got.size() * sizeof(float)) == 0);
        }
      }
}

TEST(CudaLoraShrink, ARowsBitsDoNotDependOnTheOthers) {
  DUET_NEEDS_GPU();
  const ProjectionCase subject(1536, {{3, kF16, cuda::Arrangement::rows, false}}, 64, {{{.rank = 16}}, {{.rank = 5}}},
                               900);
  const std::size_t row_size = static_cast<std::size_t>(cuda::kMostProjectionParts * subject.max_rank());
  const auto few = subject.shrink(0, 32);
  for (int row = 0; row < 32; ++row) {
    const auto alone = subject.shrink(row, 1);
    ASSERT_EQ(
        std::memcmp(alone.data(), few.data() + static_cast<std::size_t>(row) * row_size, row_size * sizeof(float)), 0);
  }
  const auto many = subject.shrink(0, 64);
  const auto later = subject.shrink(9, 55);
  EXPECT_EQ(std::memcmp(many.data() + 9 * row_size, later.data(), later.size() * sizeof(float)), 0);
}

TEST(CudaLoraShrink, LaunchesNothingWithoutAdapters) {
  DUET_NEEDS_GPU();
  cuda::Projection projection;
  projection.row_count = 4;
  EXPECT_NO_THROW(cuda::lora_shrink(projection, nullptr));
  DUET_CUDA(cudaDeviceSynchronize());
}

}  // namespace
}  // namespace duet::test
