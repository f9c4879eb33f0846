#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "cuda/launch.h"
#include "engine/half.h"
#include "loaders/quantise.h"
#include "tests/support/gpu.h"

namespace duet::test {
namespace {

std::vector<std::byte> encode(const std::vector<float>& values, Storage type) {
  const std::size_t element = type == Storage::f32 ? 4 : 2;
  std::vector<std::byte> bytes(values.size() * element);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = type == Storage::f32   ? std::bit_cast<std::uint32_t>(values[i])
                               : type == Storage::f16 ? static_cast<std::uint32_t>(to_half(values[i]))
                                                      : static_cast<std::uint32_t>(to_bfloat16(values[i]));
    std::memcpy(bytes.data() + i * element, &bits, element);
  }
  return bytes;
}

float rounded_to(float value, Storage type) {
  if (type == Storage::f16) return to_float(to_half(value));
  if (type == Storage::bf16) return to_float(to_bfloat16(value));
  return value;
}

/// Normal values with outliers, and now and then zeros, exact midpoints and numbers near the smallest.
std::vector<float> awkward_values(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, 0.05F);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto kind = (i / 64) % 8;
    if (kind == 3)
      values[i] = 0.0F;
    else if (kind == 4)
      values[i] = static_cast<float>(static_cast<int>(random() % 17) - 8) / 8.0F;
    else if (kind == 5)
      values[i] = std::numeric_limits<float>::denorm_min() * static_cast<float>(random() % 5);
    else
      values[i] = normal(random) * (random() % 97 == 0 ? 40.0F : 1.0F);
  }
  return values;
}

TEST(CudaQuantise, IsBitEqualToTheHostForEveryStorageAndOddShape) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261202);
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {{1, 1},   {3, 50},   {5, 13},
                                                                     {64, 96}, {1, 4097}, {257, 1023}};
  int compared = 0;
  for (const Storage storage : {Storage::nf4, Storage::fp4, Storage::int8})
    for (int block = 32; block <= (storage == Storage::int8 ? 64 : 4096); block *= 2)
      for (const Storage source : {Storage::f32, Storage::f16, Storage::bf16})
        for (const auto& [rows, columns] : shapes) {
          const StorageSpec spec{storage, block, false};
          std::vector<float> values = awkward_values(static_cast<std::size_t>(rows * columns), random);
          for (float& value : values) value = rounded_to(value, source);
          const MatrixLayout layout = layout_of(rows, columns, spec);

          std::vector<std::byte> want(layout.bytes);
          loaders::store_matrix(
              [&](std::int64_t first, std::span<float> destination) {
                std::copy_n(values.begin() + first, destination.size(), destination.begin());
              },
              rows, columns, spec, want, "test", 1);

          const std::vector<std::byte> bytes = encode(values, source);
          const PoisonedBuffer input(bytes.size()), region(layout.bytes), first_bad(sizeof(std::int64_t));
          input.upload(bytes.data());  // PoisonedBuffer's 0xFF is the -1 that first_bad starts from
          cuda::quantise(input.data(), source, rows, columns, spec, region.data(),
                         reinterpret_cast<std::int64_t*>(first_bad.data()), nullptr);
          DUET_CUDA(cudaDeviceSynchronize());
          std::vector<std::byte> got(layout.bytes);
          region.download(got.data());
          std::int64_t bad = 0;
          first_bad.download(&bad);

          const std::string which =
              fmt::format("{} block {} {}x{} from {}", name_of(storage), block, rows, columns, name_of(source));
          ASSERT_EQ(bad, -1) << which;
          ASSERT_TRUE(region.guards_intact()) << which;
          ASSERT_EQ(std::vector(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(layout.data_bytes)),
                    std::vector(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(layout.data_bytes)))
              << which;
          ASSERT_EQ(
              std::memcmp(got.data() + layout.scales_offset, want.data() + layout.scales_offset, layout.scales_bytes),
              0)
              << which;
          ++compared;
        }
  EXPECT_EQ(compared, (2 * 8 + 2) * 3 * 6);
}

TEST(CudaQuantise, ReportsTheFirstNonFiniteElement) {
  DUET_NEEDS_GPU();
  for (const float planted : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(1000, 0.25F);
    values[901] = planted;
    values[777] = planted;
    const StorageSpec spec{Storage::nf4, 64, false};
    const PoisonedBuffer input(values.size() * 4), region(layout_of(10, 100, spec).bytes),
        first_bad(sizeof(std::int64_t));
    input.upload(values.data());
    cuda::quantise(input.data(), Storage::f32, 10, 100, spec, region.data(),
                   reinterpret_cast<std::int64_t*>(first_bad.data()), nullptr);
    DUET_CUDA(cudaDeviceSynchronize());
    std::int64_t bad = 0;
    first_bad.download(&bad);
    EXPECT_EQ(bad, 777);
  }
}

TEST(CudaQuantise, RefusesWhatItHasNoKernelFor) {
  EXPECT_FALSE(cuda::quantise_supports(Storage::f16, {Storage::nf4, 64, true}));
  EXPECT_FALSE(cuda::quantise_supports(Storage::int8, {Storage::nf4, 64, false}));
  EXPECT_FALSE(cuda::quantise_supports(Storage::f16, {Storage::int8, 128, false}));
}

}  // namespace
}  // namespace duet::test
