#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "cuda/launch.h"
#include "engine/half.h"
#include "engine/quant_blocks.h"
#include "tests/support/gpu.h"

namespace duet::test {
namespace {

/// A region of random codes and scales: every byte is a legal code, scales are positive and negative and some are zero.
std::vector<std::byte> random_region(std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
                                     std::mt19937& random) {
  const MatrixLayout layout = layout_of(rows, columns, spec);
  std::vector<std::byte> region(layout.bytes);
  for (std::byte& byte : region) byte = static_cast<std::byte>(random() & 0xFFU);
  std::normal_distribution<float> normal(0.0F, 0.5F);
  const auto fill = [&](std::size_t offset, std::size_t count) {
    auto* values = reinterpret_cast<float*>(region.data() + offset);
    for (std::size_t i = 0; i < count; ++i) values[i] = random() % 50 == 0 ? 0.0F : normal(random);
  };
  if (spec.nested) {
    fill(layout.nested_scales_offset, layout.nested_scales_bytes / sizeof(float));
    fill(layout.nested_map_offset, 257);
  } else {
    fill(layout.scales_offset, layout.scales_bytes / sizeof(float));
  }
  return region;
}

std::vector<std::uint32_t> bits_on_host(const std::vector<std::byte>& region, std::int64_t rows, std::int64_t columns,
                                        const StorageSpec& spec, Storage output) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  dequantise(view_of(rows, columns, spec, region.data()), 0, values);
  std::vector<std::uint32_t> bits;
  for (const float value : values) {
    if (output == Storage::f32) bits.push_back(std::bit_cast<std::uint32_t>(value));
    if (output == Storage::f16) bits.push_back(static_cast<std::uint32_t>(to_half(value)));
    if (output == Storage::bf16) bits.push_back(static_cast<std::uint32_t>(to_bfloat16(value)));
  }
  return bits;
}

std::vector<std::uint32_t> bits_on_card(const std::vector<std::byte>& region, std::int64_t rows, std::int64_t columns,
                                        const StorageSpec& spec, Storage output) {
  const PoisonedBuffer source(region.size());
  source.upload(region.data());
  const std::size_t element = output == Storage::f32 ? 4 : 2;
  const PoisonedBuffer destination(static_cast<std::size_t>(rows * columns) * element);
  cuda::dequantise(view_of(rows, columns, spec, source.data()), output, destination.data(), nullptr);
  DUET_CUDA(cudaDeviceSynchronize());
  EXPECT_TRUE(destination.guards_intact());
  EXPECT_TRUE(source.guards_intact());
  std::vector<std::byte> bytes(destination.size());
  destination.download(bytes.data());
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(rows * columns), 0);
  for (std::size_t i = 0; i < bits.size(); ++i) std::memcpy(&bits[i], bytes.data() + i * element, element);
  return bits;
}

TEST(CudaDequantise, IsBitEqualToTheHostForEveryStorageAndOddShape) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261201);
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {{1, 1},   {3, 50},   {5, 13},
                                                                     {64, 96}, {1, 4097}, {257, 1023}};
  int compared = 0;
  for (const Storage storage : {Storage::nf4, Storage::fp4, Storage::int8})
    for (int block = 32; block <= (storage == Storage::int8 ? 64 : 4096); block *= 2)
      for (const bool nested : {false, true}) {
        if (nested && storage == Storage::int8) continue;
        for (const auto& [rows, columns] : shapes) {
          const StorageSpec spec{storage, block, nested};
          const auto region = random_region(rows, columns, spec, random);
          for (const Storage output : {Storage::f32, Storage::f16, Storage::bf16}) {
            ASSERT_TRUE(cuda::dequantise_supports(spec, output));
            ASSERT_EQ(bits_on_card(region, rows, columns, spec, output),
                      bits_on_host(region, rows, columns, spec, output))
                << fmt::format("{} block {} nested {} {}x{} to {}", name_of(storage), block, nested, rows, columns,
                               name_of(output));
            ++compared;
          }
        }
      }
  EXPECT_EQ(compared, (2 * 8 * 2 + 2) * 6 * 3);
}

TEST(CudaDequantise, RefusesWhatItHasNoKernelFor) {
  EXPECT_FALSE(cuda::dequantise_supports({Storage::f16, 0, false}, Storage::f32));
  EXPECT_FALSE(cuda::dequantise_supports({Storage::nf4, 48, false}, Storage::f16));
  EXPECT_FALSE(cuda::dequantise_supports({Storage::nf4, 64, false}, Storage::int8));
}

}  // namespace
}  // namespace duet::test
