#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/launch.h"
#include "duet/error.h"
#include "engine/quant_blocks.h"
#include "tests/cuda/random_matrix.h"
#include "tests/cuda/tiles_on_host.h"
#include "tests/support/compare.h"
#include "tests/support/gpu.h"
#include "tests/support/gpu_time.h"

namespace duet::test {
namespace {

constexpr unsigned kSeed = 20261202;
constexpr int kPlaces = 2;
constexpr int kPlace = 1;

cuda::StepRow row_with(std::int32_t token, std::int32_t slot = -1, float scale = 1) {
  return {1, token, 0, 0, slot, scale};
}

/// Residual rows of `step`, from poisoned memory; marks are checked.
std::vector<float> run(const cuda::DeviceMatrix& embedding, const std::vector<cuda::StepRow>& step,
                       const cuda::AdapterTable& adapters) {
  const PoisonedBuffer rows = on_card(step);
  const PoisonedBuffer residual(step.size() * static_cast<std::size_t>(embedding.matrix.columns) * sizeof(float));
  const PoisonedBuffer marks(step.size() * sizeof(std::int32_t));
  cuda::embed(embedding, as<cuda::StepRow>(rows), static_cast<int>(step.size()), adapters, kPlace, as<float>(residual),
              as<std::int32_t>(marks), nullptr);
  EXPECT_EQ(from_card<std::int32_t>(marks), std::vector<std::int32_t>(step.size(), cuda::kNoBadLayer));
  EXPECT_TRUE(residual.guards_intact() && marks.guards_intact());
  return from_card<float>(residual);
}

std::vector<float> row_on_host(const Matrix& matrix, std::int64_t token) {
  std::vector<float> row(static_cast<std::size_t>(matrix.columns));
  dequantise(matrix, token * matrix.columns, row);
  return row;
}

TEST(CudaEmbed, IsBitEqualToTheHostForEveryStorageInRowsInTilesAndInHostMemory) {
  DUET_NEEDS_GPU();
  std::mt19937 random(kSeed);
  const std::vector<StorageSpec> specs = {
      {Storage::f32, 0, false},   {Storage::f16, 0, false},   {Storage::bf16, 0, false},  {Storage::nf4, 64, false},
      {Storage::fp4, 64, false},  {Storage::nf4, 32, true},   {Storage::nf4, 128, true},  {Storage::fp4, 256, true},
      {Storage::int8, 32, false}, {Storage::int8, 64, false}, {Storage::nf4, 4096, true},
  };
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {{1, 1}, {37, 13}, {48, 256}, {64, 896}, {33, 768}};
  int tiled = 0;
  for (const StorageSpec& spec : specs)
    for (const auto& [vocabulary, hidden] : shapes) {
      const std::vector<std::byte> region = random_matrix(vocabulary, hidden, spec, random);
      const Matrix on_host = view_of(vocabulary, hidden, spec, region.data());
      std::vector<cuda::StepRow> step;
      step.reserve(9);
      for (int i = 0; i < 9; ++i)
        step.push_back(row_with(static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary))));
      step.front().token = 0;
      step.back().token = static_cast<std::int32_t>(vocabulary - 1);
      std::vector<float> want;
      for (const cuda::StepRow& row : step)
        for (const float value : row_on_host(on_host, row.token)) want.push_back(value);
      const std::string what = fmt::format("{} block {} nested {} {}x{}", name_of(spec.storage), spec.block_size,
                                           spec.nested, vocabulary, hidden);

      const PoisonedBuffer card = on_card(region);
      const cuda::DeviceMatrix in_rows{view_of(vocabulary, hidden, spec, card.data())};
      const std::vector<float> got = run(in_rows, step, {});
      EXPECT_TRUE(same_bits(got, want)) << what;
      EXPECT_TRUE(same_bits(run(in_rows, step, {}), got)) << "the same call gave other bits: " << what;

      void* raw = nullptr;
      DUET_CUDA(cudaHostAlloc(&raw, region.size(), cudaHostAllocMapped));
      const cuda::Handle<void*, cudaFreeHost> pinned(raw);
      std::memcpy(raw, region.data(), region.size());
      const auto* bytes = static_cast<const std::byte*>(raw);
      EXPECT_TRUE(same_bits(run({view_of(vocabulary, hidden, spec, bytes)}, step, {}), want)) << "pinned, " << what;

      if (cuda::arrangement_of(vocabulary, hidden, spec) != cuda::Arrangement::tiles) continue;
      ++tiled;
      const PoisonedBuffer tiles = on_card(tiles_of(on_host, region.data()));
      const float factor = is_quantised(spec.storage) ? 1.0F : 0.25F;
      const cuda::DeviceMatrix in_tiles{view_of(vocabulary, hidden, spec, tiles.data()), cuda::Arrangement::tiles,
                                        factor};
      for (float& value : want) value *= factor;
      EXPECT_TRUE(same_bits(run(in_tiles, step, {}), want)) << "tiles, " << what;
    }
  EXPECT_EQ(tiled, 2 * 2 + 3 * 2 + 1 + 2 * 2);  // 16 bits, 4 bits (896 is no multiple of 256), 8 bits
}

struct Lora {
  Storage a, b, replacement;
  int rank;
  bool bias, dora;
};

/// Every combination in one batch: slot s is kinds[s], the last rows are bare.
TEST(CudaEmbed, AppliesReplacementLoraBiasAndDoraInTheHostsOrder) {
  DUET_NEEDS_GPU();
  std::mt19937 random(kSeed);
  const std::int64_t vocabulary = 48;
  const std::int64_t hidden = 328;
  const StorageSpec spec{Storage::f16, 0, false};
  const Storage none = Storage::int8;
  const std::vector<Lora> kinds = {
      {Storage::f16, Storage::f16, none, 1, false, false},
      {Storage::bf16, Storage::bf16, none, 16, false, true},
      {Storage::f32, Storage::f32, Storage::f32, 3, true, false},
      {Storage::f16, Storage::bf16, none, 256, true, true},
      {Storage::f32, Storage::f16, Storage::bf16, 300, true, true},
      {none, none, Storage::f16, 0, false, false},
      {none, none, none, 0, false, false},
  };
  const std::vector<std::byte> region = random_matrix(vocabulary, hidden, spec, random);
  const PoisonedBuffer card = on_card(region);
  const Matrix base = view_of(vocabulary, hidden, spec, region.data());

  std::vector<PoisonedBuffer> kept;
  const auto keep = [&](const auto& values) {
    return static_cast<const void*>(kept.emplace_back(on_card(values)).data());
  };
  std::vector<cuda::AdapterPart> parts(kinds.size() * kPlaces);
  std::vector<cuda::StepRow> step;
  std::vector<std::vector<float>> want;
  std::vector<std::vector<double>> bounds;
  for (std::size_t slot = 0; slot < kinds.size(); ++slot) {
    const Lora& kind = kinds[slot];
    cuda::AdapterPart& part = parts[slot * kPlaces + kPlace];
    Matrix table = base;
    std::vector<std::byte> replacement, a, b;
    if (kind.replacement != none) {
      replacement = random_matrix(vocabulary, hidden, {kind.replacement, 0, false}, random);
      table = view_of(vocabulary, hidden, {kind.replacement, 0, false}, replacement.data());
      part.replacement = keep(replacement);
      part.replacement_storage = static_cast<std::uint8_t>(kind.replacement);
    }
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> bias(static_cast<std::size_t>(hidden), 0.0F);
    std::vector<float> scales(static_cast<std::size_t>(hidden), 1.0F);
    if (kind.rank > 0) {
      a = random_matrix(kind.rank, vocabulary, {kind.a, 0, false}, random);
      b = random_matrix(hidden, kind.rank, {kind.b, 0, false}, random);
      part.a = keep(a);
      part.b = keep(b);
      part.a_storage = static_cast<std::uint8_t>(kind.a);
      part.b_storage = static_cast<std::uint8_t>(kind.b);
      part.rank = kind.rank;
      part.scale = 0.75F;
    }
    if (kind.bias) {
      for (float& value : bias) value = normal(random);
      part.lora_bias = static_cast<const float*>(keep(bias));
    }
    if (kind.dora) {
      for (float& value : scales) value = normal(random);
      part.row_scale = static_cast<const float*>(keep(scales));
    }
    for (const std::int32_t token : {0, 17, 47}) {
      const float request = 0.5F + static_cast<float>(token % 3);
      step.push_back(row_with(token, static_cast<std::int32_t>(slot), request));
      const std::vector<float> row = row_on_host(table, token);
      std::vector<float>& values = want.emplace_back();
      std::vector<double>& own = bounds.emplace_back();
      for (std::int64_t h = 0; h < hidden; ++h) {
        const auto at = static_cast<std::size_t>(h);
        double sum = bias[at];
        double magnitude = std::abs(sum);
        for (std::int64_t r = 0; r < kind.rank; ++r) {
          float left = 0;
          float right = 0;
          dequantise(view_of(kind.rank, vocabulary, {kind.a, 0, false}, a.data()), r * vocabulary + token, {&left, 1});
          dequantise(view_of(hidden, kind.rank, {kind.b, 0, false}, b.data()), h * kind.rank + r, {&right, 1});
          sum += double{left} * right;
          magnitude += std::abs(double{left} * right);
        }
        const double scale = kind.rank > 0 ? double{part.scale} * request : 0.0;
        values.push_back(static_cast<float>((row[at] + scale * sum) * scales[at]));
        // rank + 1 sums, scale twice, the last sum, the row scale: each one rounding of something no larger than this.
        const double largest = (std::abs(double{row[at]}) + scale * magnitude) * std::abs(double{scales[at]});
        own.push_back(kind.rank > 0 ? (kind.rank + 6) * 0x1p-24 * largest : 0.0);
      }
    }
  }
  const PoisonedBuffer table = on_card(parts);
  const cuda::AdapterTable adapters{as<cuda::AdapterPart>(table), kPlaces};
  const cuda::DeviceMatrix embedding{view_of(vocabulary, hidden, spec, card.data())};
  const std::vector<float> got = run(embedding, step, adapters);
  EXPECT_TRUE(same_bits(got, run(embedding, step, adapters))) << "the same call gave other bits";
  for (std::size_t i = 0; i < step.size(); ++i) {
    const std::vector<float> own(got.begin() + static_cast<std::ptrdiff_t>(i) * hidden,
                                 got.begin() + static_cast<std::ptrdiff_t>(i + 1) * hidden);
    EXPECT_TRUE(all_within(own, want[i], bounds[i])) << "slot " << step[i].adapter_slot << " token " << step[i].token;
    EXPECT_TRUE(same_bits(run(embedding, {step[i]}, adapters), own)) << "alone is not as in the batch";
  }
}

TEST(CudaEmbed, RowsThatOnlyFillAGraphReadNothing) {
  DUET_NEEDS_GPU();
  const PoisonedBuffer card = on_card(std::vector<float>(4 * 20, 3.0F));
  const cuda::DeviceMatrix embedding{view_of(4, 20, {Storage::f32, 0, false}, card.data())};
  std::vector<cuda::StepRow> step = {row_with(1), row_with(0x7FFFFFFF), row_with(-1), row_with(2)};
  step[0].active = 0;
  std::vector<float> want(60, 0.0F);
  want.resize(80, 3.0F);
  EXPECT_TRUE(same_bits(run(embedding, step, {}), want));
}

TEST(CudaEmbed, RefusesTilesThatDoNotFitTheShape) {
  const cuda::DeviceMatrix embedding{{5, 20, {Storage::f16, 0, false}}, cuda::Arrangement::tiles};
  EXPECT_THROW(cuda::embed(embedding, nullptr, 1, {}, 0, nullptr, nullptr, nullptr), Error);
}

TEST(CudaEmbed, Times) {
  DUET_NEEDS_GPU();
  std::mt19937 random(kSeed);
  const std::int64_t vocabulary = 8192;
  const std::int64_t hidden = 1536;
  const StorageSpec spec{Storage::nf4, 64, false};
  const std::vector<std::byte> region = random_matrix(vocabulary, hidden, spec, random);
  const PoisonedBuffer card = on_card(tiles_of(view_of(vocabulary, hidden, spec, region.data()), region.data()));
  const cuda::DeviceMatrix embedding{view_of(vocabulary, hidden, spec, card.data()), cuda::Arrangement::tiles};
  void* raw = nullptr;
  DUET_CUDA(cudaHostAlloc(&raw, region.size(), cudaHostAllocMapped));
  const cuda::Handle<void*, cudaFreeHost> pinned(raw);
  std::memcpy(raw, region.data(), region.size());
  const cuda::DeviceMatrix in_host_memory{view_of(vocabulary, hidden, spec, static_cast<const std::byte*>(raw))};

  const PoisonedBuffer a = on_card(random_matrix(16, vocabulary, {Storage::f16, 0, false}, random));
  const PoisonedBuffer b = on_card(random_matrix(hidden, 16, {Storage::f16, 0, false}, random));
  std::vector<cuda::AdapterPart> parts(kPlaces);
  parts[kPlace].a = a.data();
  parts[kPlace].b = b.data();
  parts[kPlace].a_storage = parts[kPlace].b_storage = static_cast<std::uint8_t>(Storage::f16);
  parts[kPlace].rank = 16;
  parts[kPlace].scale = 1;
  const PoisonedBuffer table = on_card(parts);
  const cuda::AdapterTable adapters{as<cuda::AdapterPart>(table), kPlaces};
  std::vector<cuda::StepRow> step;
  step.reserve(512);
  for (int i = 0; i < 512; ++i) step.push_back(row_with(static_cast<std::int32_t>(random() % 8192), 0));
  const PoisonedBuffer rows = on_card(step);
  const PoisonedBuffer residual(512 * static_cast<std::size_t>(hidden) * 4);
  const PoisonedBuffer marks(512 * 4);
  for (const int n : {1, 512}) {
    const auto time = [&](const char* what, const cuda::DeviceMatrix& matrix, const cuda::AdapterTable& own) {
      print_time(fmt::format("embed {} x 1536 nf4, {}", n, what), microseconds_of([&](cuda::Stream stream) {
                   cuda::embed(matrix, as<cuda::StepRow>(rows), n, own, kPlace, as<float>(residual),
                               as<std::int32_t>(marks), stream);
                 }));
    };
    time("tiles", embedding, {});
    time("tiles, LoRA rank 16", embedding, adapters);
    time("rows in host memory", in_host_memory, {});
  }
}

}  // namespace
}  // namespace duet::test
