#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda/projection_case.h"
#include "tests/support/compare.h"

namespace duet::test {
namespace {

using cuda::Arrangement;
using PartShape = ProjectionCase::PartShape;

constexpr int kMostRows = 257;
constexpr int kRowCounts[] = {1, 2, 3, 5, 8, 9, 17, 32, 33, 100, 257};

/// The projection of the first `count` rows, for every count, against float64; twice the same bits.
void check(const ProjectionCase& subject, const std::string& what, bool add = false) {
  const auto expected = subject.expected(kMostRows, add);
  for (const int count : kRowCounts) {
    SCOPED_TRACE(fmt::format("{}, {} rows", what, count));
    const auto got = subject.run(0, count, add);
    const auto again = subject.run(0, count, add);
    for (std::size_t p = 0; p < got.size(); ++p) {
      const std::size_t size = got[p].size();
      ASSERT_TRUE(all_within(got[p], std::span(expected[p].y).first(size), std::span(expected[p].bounds).first(size)))
          << "part " << p;
      ASSERT_TRUE(same_bits(got[p], again[p])) << "part " << p;
    }
  }
}

/// Every one of up to 32 rows has the bits that it has alone.
void check_alone(const ProjectionCase& subject, const std::string& what) {
  std::vector<std::vector<std::vector<float>>> alone;
  for (int row = 0; row < 32; ++row) alone.push_back(subject.run(row, 1));
  for (const int count : {2, 7, 8, 9, 16, 17, 32}) {
    const auto batch = subject.run(0, count);
    for (int row = 0; row < count; ++row)
      for (std::size_t p = 0; p < batch.size(); ++p) {
        const auto& own = alone[static_cast<std::size_t>(row)][p];
        const auto in_batch = std::span(batch[p]).subspan(static_cast<std::size_t>(row) * own.size(), own.size());
        ASSERT_TRUE(same_bits(in_batch, own)) << fmt::format("{}, row {} of {}, part {}", what, row, count, p);
      }
  }
}

std::string text_of(const StorageSpec& spec) {
  return fmt::format("{} {}{}", name_of(spec.storage), spec.block_size, spec.nested ? " nested" : "");
}

const std::vector<StorageSpec> kTiled = {
    {Storage::nf4, 64, false},  {Storage::nf4, 64, true},   {Storage::nf4, 128, true},
    {Storage::fp4, 64, false},  {Storage::fp4, 128, false}, {Storage::int8, 32, false},
    {Storage::int8, 64, false}, {Storage::f16, 0, false},   {Storage::bf16, 0, false}};

TEST(CudaProject, TilesOfEveryStorageAgreeWithFloat64) {
  DUET_NEEDS_GPU();
  std::uint32_t seed = 100;
  for (const StorageSpec& spec : kTiled)
    for (const auto& [out, columns] : {std::pair<std::int64_t, std::int64_t>{16, 128}, {272, 384}, {48, 896}}) {
      const ProjectionCase subject(columns, {{out, spec, Arrangement::tiles, true}}, kMostRows, {}, ++seed);
      check(subject, fmt::format("{} tiles {}x{}", text_of(spec), out, columns));
      check_alone(subject, text_of(spec));
    }
}

TEST(CudaProject, RowsOfEveryStorageAgreeWithFloat64) {
  DUET_NEEDS_GPU();
  std::vector<StorageSpec> specs = kTiled;
  specs.insert(
      specs.end(),
      {{Storage::nf4, 32, false}, {Storage::nf4, 4096, false}, {Storage::fp4, 32, true}, {Storage::f32, 0, false}});
  std::uint32_t seed = 200;
  for (const StorageSpec& spec : specs)
    for (const auto& [out, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {37, 101}, {24, 264}, {5, 530}}) {
      const ProjectionCase subject(columns, {{out, spec, Arrangement::rows, false}}, kMostRows, {}, ++seed);
      check(subject, fmt::format("{} rows {}x{}", text_of(spec), out, columns));
      check_alone(subject, text_of(spec));
    }
}

TEST(CudaProject, SumsSplitOverBlocksAgreeAndLeaveCountersZero) {
  DUET_NEEDS_GPU();
  std::uint32_t seed = 300;
  for (const StorageSpec& spec : {StorageSpec{Storage::nf4, 64, false}, StorageSpec{Storage::int8, 64, false},
                                  StorageSpec{Storage::f16, 0, false}}) {
    const ProjectionCase subject(6144, {{32, spec, Arrangement::tiles, true}}, kMostRows, {}, ++seed);
    check(subject, text_of(spec) + " split", true);
    check_alone(subject, text_of(spec) + " split");
  }
}

TEST(CudaProject, ManyRowsOfTilesAreSharedByFewerWarps) {
  DUET_NEEDS_GPU();
  for (const std::int64_t out : {25344, 30032}) {
    const ProjectionCase subject(128, {{out, {Storage::nf4, 64, false}, Arrangement::tiles, false}}, 9, {{{.rank = 4}}},
                                 400);
    const auto expected = subject.expected(9);
    const auto got = subject.run(0, 9);
    EXPECT_TRUE(all_within(got[0], expected[0].y, expected[0].bounds));
    const auto alone = subject.run(4, 1);
    EXPECT_TRUE(same_bits(alone[0],
                          std::span(got[0]).subspan(static_cast<std::size_t>(4 * out), static_cast<std::size_t>(out))));
  }
}

TEST(CudaProject, SeveralPartsShareALaunchAndMayBeHeldDifferently) {
  DUET_NEEDS_GPU();
  const StorageSpec nf4{Storage::nf4, 64, false};
  const ProjectionCase alike(
      256,
      {{160, nf4, Arrangement::tiles, true}, {32, nf4, Arrangement::tiles, false}, {48, nf4, Arrangement::tiles, true}},
      kMostRows, {}, 500);
  check(alike, "alike");
  check(alike, "alike, added", true);
  check_alone(alike, "alike");
  const ProjectionCase mixed(256,
                             {{160, nf4, Arrangement::tiles, true},
                              {33, {Storage::f32, 0, false}, Arrangement::rows, false},
                              {48, {Storage::int8, 32, false}, Arrangement::tiles, true}},
                             kMostRows, {{{.rank = 8}, {.rank = 3}, {.rank = 16}}}, 501);
  check(mixed, "mixed");
  check_alone(mixed, "mixed");
}

/// One row in three has no adapter; the two adapters differ in all they can.
std::vector<std::vector<AdapterPlan>> two_adapters(int rank) {
  AdapterPlan first{.rank = rank, .a_storage = Storage::f16, .b_storage = Storage::f16};
  AdapterPlan second{.rank = std::max(1, rank / 2),
                     .a_storage = Storage::bf16,
                     .b_storage = Storage::f32,
                     .scale = 0.5F,
                     .dora = true,
                     .lora_bias = true,
                     .replaced_bias = true};
  return {{first, second}, {second, first}};
}

TEST(CudaProject, AdaptersOfEveryRankAndStorageAgreeWithFloat64) {
  DUET_NEEDS_GPU();
  std::uint32_t seed = 600;
  for (const Arrangement arrangement : {Arrangement::tiles, Arrangement::rows})
    for (const int rank : {1, 3, 8, 16, 64, 256}) {
      const StorageSpec spec{rank == 8 ? Storage::int8 : Storage::nf4, 64, false};
      const std::int64_t odd = arrangement == Arrangement::rows ? 5 : 0;
      const ProjectionCase subject(192 + odd, {{80 + odd, spec, arrangement, true}, {48, spec, arrangement, false}},
                                   kMostRows, two_adapters(rank), ++seed);
      check(subject, fmt::format("rank {}", rank));
      check_alone(subject, fmt::format("rank {}", rank));
    }
}

TEST(CudaProject, EveryFeatureOfAnAdapterWorksAlone) {
  DUET_NEEDS_GPU();
  const std::vector<std::pair<const char*, AdapterPlan>> plans = {
      {"nothing", {}},
      {"f16", {.rank = 16}},
      {"bf16", {.rank = 16, .a_storage = Storage::bf16, .b_storage = Storage::bf16}},
      {"f32", {.rank = 16, .a_storage = Storage::f32, .b_storage = Storage::f32}},
      {"DoRA", {.rank = 8, .dora = true}},
      {"LoRA bias", {.rank = 8, .lora_bias = true}},
      {"replaced bias", {.replaced_bias = true}},
      {"replaced matrix f16", {.replaced_weight = true}},
      {"replaced matrix bf16 and bias", {.a_storage = Storage::bf16, .replaced_bias = true, .replaced_weight = true}}};
  std::uint32_t seed = 700;
  for (const auto& [name, plan] : plans)
    for (const Arrangement arrangement : {Arrangement::tiles, Arrangement::rows})
      for (const bool bias : {false, true}) {
        const ProjectionCase subject(128, {{96, {Storage::nf4, 64, true}, arrangement, bias}}, kMostRows, {{plan}},
                                     ++seed);
        check(subject, name, bias);
        check_alone(subject, name);
      }
  const ProjectionCase split(6144, {{32, {Storage::nf4, 64, false}, Arrangement::tiles, true}}, kMostRows,
                             {{{.rank = 16, .dora = true}}, {{.replaced_weight = true}}}, ++seed);
  check(split, "split with adapters");
  check_alone(split, "split with adapters");
}

TEST(CudaProject, RefusesWhatItHasNoKernelFor) {
  DUET_NEEDS_GPU();
  std::mt19937 random(1);
  TestWeight weight = random_weight(16, 64, {Storage::nf4, 64, false}, Arrangement::tiles, random);
  EXPECT_TRUE(cuda::project_supports(weight.device));
  cuda::Projection projection;
  projection.row_count = 1;
  projection.columns = 128;
  EXPECT_ANY_THROW(cuda::project(projection, nullptr));  // no parts
  projection.part_count = 1;
  projection.parts[0].weight = weight.device;
  EXPECT_ANY_THROW(cuda::project(projection, nullptr));  // another width
  weight.device.matrix.rows = 15;
  EXPECT_FALSE(cuda::project_supports(weight.device));
}

}  // namespace
}  // namespace duet::test
