#include "engine/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "duet/error.h"

namespace duet {
namespace {

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 50;

std::size_t scratch_of_test(const ModelSpec& spec, const StepLimits& limits) {
  return static_cast<std::size_t>(spec.hidden) * 4 * static_cast<std::size_t>(limits.prefill_chunk_tokens) +
         static_cast<std::size_t>(spec.vocabulary) * 4 * static_cast<std::size_t>(limits.max_batch_sequences);
}

ModelSpec spec_of(int layers, int hidden, int kv_heads, int head_size, int positions) {
  ModelSpec spec;
  spec.architecture = "Qwen2ForCausalLM";
  spec.layers = layers;
  spec.hidden = hidden;
  spec.query_heads = kv_heads;
  spec.kv_heads = kv_heads;
  spec.head_size = head_size;
  spec.mlp = 2 * hidden;
  spec.vocabulary = 1000;
  spec.max_position_tokens = positions;
  return spec;
}

WeightTensor tensor_of(std::string name, int layer, TensorRole role, std::int64_t rows, std::int64_t columns) {
  WeightTensor tensor;
  tensor.row = {
      .name = std::move(name), .part = Part::query, .layer = layer, .role = role, .rows = rows, .columns = columns};
  tensor.storage.storage = Storage::f16;
  tensor.bytes = static_cast<std::size_t>(rows * columns) * 2;
  return tensor;
}

PlanModel model_of(std::string name, const ModelSpec& spec) {
  PlanModel model;
  model.base_identity = "base of " + name;
  model.base_path = "/models/" + name;
  model.name = std::move(name);
  model.spec = spec;
  model.tensors.push_back(
      tensor_of("model.embed_tokens.weight", -1, TensorRole::embedding, spec.vocabulary, spec.hidden));
  for (int layer = 0; layer < spec.layers; ++layer)
    model.tensors.push_back(tensor_of("model.layers." + std::to_string(layer) + ".self_attn.q_proj.weight", layer,
                                      TensorRole::linear, spec.hidden, spec.hidden));
  return model;
}

PlanRequest two_models() {
  PlanRequest request;
  request.backend = {
      .name = "test", .kv_storage = KvStorage::f16, .context_bytes = 0, .scratch_bytes = &scratch_of_test};
  request.models.push_back(model_of("laya", spec_of(24, 896, 2, 64, 32768)));
  request.models.push_back(model_of("kev", spec_of(28, 1536, 2, 128, 32768)));
  request.budget = kPlenty;
  return request;
}

std::vector<Region> regions_of(const Plan& plan) {
  std::vector<Region> regions;
  for (const PlannedBase& base : plan.bases) regions.insert(regions.end(), base.regions.begin(), base.regions.end());
  for (const PlannedModel& model : plan.models)
    regions.insert(regions.end(), model.adapter_slots.begin(), model.adapter_slots.end());
  regions.push_back(plan.pages);
  regions.push_back(plan.scratch);
  return regions;
}

std::string refusal_of(const PlanRequest& request, Code code = Code::no_room) {
  try {
    make_plan(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "the plan was accepted";
  return {};
}

/// The number behind `flag` in `text`; 0 when it is not there.
std::uint64_t number_after(const std::string& text, const std::string& flag) {
  const std::size_t at = text.find(flag + " ");
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + flag.size() + 1));
}

TEST(Carver, CountsAndPlacesAlike) {
  std::mt19937_64 random(11);
  alignas(kRegionAlignment) static std::array<std::byte, 1 << 20> block;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::size_t> sizes(1 + random() % 40);
    for (std::size_t& size : sizes) size = random() % 3000;
    Carver counter;
    for (std::size_t size : sizes) EXPECT_TRUE(counter.take_array<std::uint32_t>("x", size).empty());
    Carver placer(counter.used(), block.data());
    std::byte* end = block.data();
    for (std::size_t size : sizes) {
      const auto array = placer.take_array<std::uint32_t>("x", size);
      ASSERT_EQ(array.size(), size);
      auto* start = reinterpret_cast<std::byte*>(array.data());
      ASSERT_GE(start, end);
      ASSERT_EQ(static_cast<std::size_t>(start - block.data()) % kRegionAlignment, 0U);
      end = start + size * sizeof(std::uint32_t);
    }
    ASSERT_EQ(counter.used(), placer.used());
    ASSERT_EQ(static_cast<std::size_t>(end - block.data()), placer.used());
  }
}

TEST(Carver, OneByteLessThrowsAndNamesTheRegion) {
  Carver enough(256 + 100);
  enough.take("first", 1);
  EXPECT_EQ(enough.take("second", 100).offset, 256U);
  Carver short_by_one(256 + 99);
  short_by_one.take("first", 1);
  try {
    short_by_one.take("second", 100);
    FAIL() << "100 bytes were taken from 99";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::no_room);
    EXPECT_STREQ(error.what(), "Region \"second\" needs 100 bytes and 99 of 355 are left.");
  }
}

TEST(Carver, NothingOverflows) {
  Carver carver;
  carver.take("first", 1);
  EXPECT_THROW(carver.take("huge", Carver::kUnlimited), Error);
  EXPECT_THROW(carver.take("nearly", Carver::kUnlimited - 255), Error);
  EXPECT_THROW(carver.take_array<double>("array", Carver::kUnlimited / 4), Error);
  EXPECT_EQ(carver.used(), 1U);
}

TEST(Carver, RefusesAMisalignedBase) {
  alignas(kRegionAlignment) std::array<std::byte, 512> block{};
  EXPECT_NO_THROW(Carver(512, block.data()));
  EXPECT_THROW(Carver(256, block.data() + 64), Error);
}

TEST(Plan, RandomRequestsNeverOverlapAndOneByteLessThrows) {
  std::mt19937_64 random(20261201);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (int round = 0; round < 500; ++round) {
    PlanRequest request;
    request.backend = {.name = "test",
                       .kv_storage = static_cast<KvStorage>(between(0, 3)),
                       .context_bytes = random() % 1000,
                       .scratch_bytes = &scratch_of_test};
    request.budget = kPlenty;
    request.kv_tokens = between(0, 3) == 0 ? 0 : between(1, 10000);
    request.max_sequences = between(1, 16);
    request.prefill_chunk_tokens = between(1, 512);
    for (int i = between(1, 4); i > 0; --i) {
      const ModelSpec spec = spec_of(between(1, 6), between(1, 70), between(1, 5), between(1, 40), between(1, 20000));
      PlanModel model = model_of("m" + std::to_string(i), spec);
      model.adapter_slots = between(0, 3);
      model.adapter_slot_bytes = static_cast<std::size_t>(between(1, 5000));
      model.largest_adapter_rank = between(1, 64);
      request.models.push_back(std::move(model));
    }
    if (between(0, 1) == 1) {
      PlanModel twin = request.models.front();
      twin.name = "twin";
      request.models.push_back(std::move(twin));
    }
    const Plan plan = make_plan(request);

    std::vector<Region> regions = regions_of(plan);
    std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) {
      return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
    });
    std::size_t end = 0;
    for (const Region& region : regions) {
      ASSERT_EQ(region.offset % kRegionAlignment, 0U) << region.name;
      ASSERT_GE(region.offset, end) << region.name;
      ASSERT_LT(region.offset - end, kRegionAlignment) << "a hole before " << region.name;
      end = region.offset + region.bytes;
    }
    ASSERT_EQ(end, plan.arena_bytes);
    ASSERT_EQ(plan.pages.bytes, plan.page_bytes * static_cast<std::size_t>(plan.page_count));
    for (std::size_t i = 0; i < plan.models.size(); ++i) {
      const PlannedModel& model = plan.models[i];
      ASSERT_GE(model.tokens_per_page, kFewestTokensPerPage);
      ASSERT_LE(static_cast<std::size_t>(model.tokens_per_page * model.kv_bytes_per_token), plan.page_bytes);
      ASSERT_LE(model.max_context_tokens, request.models[i].spec.max_position_tokens);
      ASSERT_LE(model.max_context_tokens, model.tokens_per_page * plan.page_count);
      const std::int64_t wanted =
          request.kv_tokens > 0 ? request.kv_tokens : std::min(4096, request.models[i].spec.max_position_tokens);
      ASSERT_GE(model.tokens_per_page * plan.page_count, wanted);
      ASSERT_GE(plan.scratch.bytes, scratch_of_test(request.models[i].spec, plan.limits));
    }
    ASSERT_LE(plan.limits.prefill_chunk_tokens, plan.limits.max_context_tokens);

    request.budget = plan.total_bytes();
    ASSERT_EQ(make_plan(request).arena_bytes, plan.arena_bytes);
    --request.budget;
    ASSERT_THROW(make_plan(request), Error);
  }
}

TEST(Plan, SharesABaseNamedTwice) {
  PlanRequest request = two_models();
  const std::size_t apart = make_plan(request).arena_bytes;
  request.models[1] = request.models[0];
  request.models[1].name = "kev";
  const Plan plan = make_plan(request);
  ASSERT_EQ(plan.bases.size(), 1U);
  EXPECT_EQ(plan.models[0].base, 0);
  EXPECT_EQ(plan.models[1].base, 0);
  EXPECT_LT(plan.arena_bytes, apart);
  const std::string table = table_of(plan);
  EXPECT_NE(table.find("laya, kev: /models/laya (Qwen2ForCausalLM, weights shared by 2 models)"), std::string::npos)
      << table;

  request.models[1].tensors[0].bytes += 1;  // Same identity, other content: our own mistake, never silently shared.
  EXPECT_THROW(make_plan(request), Error);
}

TEST(Plan, KvSizesOfKnownShapes) {
  // 2 * layers * kv_heads * head_size * 2 bytes: 2 * 24 * 2 * 64 * 2 = 12,288 and 2 * 28 * 2 * 128 * 2 = 28,672.
  const Plan plan = make_plan(two_models());
  EXPECT_EQ(plan.models[0].kv_bytes_per_token, 12288);
  EXPECT_EQ(plan.models[1].kv_bytes_per_token, 28672);
  EXPECT_EQ(plan.page_bytes, 16U * 28672U);
  EXPECT_EQ(plan.models[0].tokens_per_page, 37);
  EXPECT_EQ(plan.models[1].tokens_per_page, 16);
  EXPECT_EQ(plan.page_count, 256);  // 4,096 tokens of kev.
  EXPECT_EQ(plan.models[0].max_context_tokens, 256 * 37);
  EXPECT_EQ(plan.models[1].max_context_tokens, 4096);
  const std::string table = table_of(plan);
  EXPECT_NE(table.find("laya: 12,288,000 B per 1,000 tokens (11.7 MiB), 37 tokens a page"), std::string::npos) << table;
  EXPECT_NE(table.find("model.layers.*.self_attn.q_proj.weight"), std::string::npos) << table;
  EXPECT_NE(table.find("24 x       1,605,632 =       38,535,168"), std::string::npos) << table;
}

TEST(Plan, RefusalNamesSumBudgetAndWhatFits) {
  PlanRequest request = two_models();
  const Plan whole = make_plan(request);
  request.budget = whole.total_bytes() - whole.pages.bytes / 2;
  const std::string text = refusal_of(request);
  EXPECT_NE(text.find(grouped_digits(whole.total_bytes())), std::string::npos) << text;
  EXPECT_NE(text.find(grouped_digits(request.budget)), std::string::npos) << text;

  PlanRequest shorter = request;
  shorter.kv_tokens = static_cast<std::int64_t>(number_after(text, "--kv-tokens"));
  ASSERT_GE(shorter.kv_tokens, 128) << text;
  EXPECT_NO_THROW(make_plan(shorter));
  shorter.kv_tokens += 512;
  EXPECT_THROW(make_plan(shorter), Error) << "the suggestion wastes room";

  PlanRequest richer = request;
  richer.budget = number_after(text, "--budget") << 20;
  ASSERT_GT(richer.budget, request.budget) << text;
  EXPECT_NO_THROW(make_plan(richer));
  richer.budget -= std::uint64_t{1} << 20;
  EXPECT_THROW(make_plan(richer), Error) << "the suggested budget is a MiB too large";
}

TEST(Plan, RefusalSuggestsFourBitWeightsOnlyWhenTheyFit) {
  PlanRequest request = two_models();
  std::size_t linear = 0;
  for (const PlanModel& model : request.models)
    for (const WeightTensor& tensor : model.tensors)
      if (tensor.row.role == TensorRole::linear) linear += tensor.bytes;
  const std::size_t whole = make_plan(request).total_bytes();
  request.budget = whole - linear / 2;  // nf4 saves nearly three quarters of it.
  EXPECT_NE(refusal_of(request).find("linear weights held as nf4"), std::string::npos);
  request.budget = whole - linear;
  EXPECT_EQ(refusal_of(request).find("linear weights held as nf4"), std::string::npos);
  request.budget = 0;
  EXPECT_EQ(number_after(refusal_of(request), "--kv-tokens"), 0U) << "no number of KV tokens fits in nothing";
}

TEST(Plan, HybridsHaveAStateForEverySequenceOrAreRefused) {
  PlanRequest request = two_models();
  ModelSpec& spec = request.models[1].spec;
  const std::int64_t whole = kv_bytes_per_token(spec, KvStorage::f16);
  spec.architecture = "Qwen3_5ForCausalLM";
  spec.delta = {.key_heads = 2, .value_heads = 4, .key_size = 16, .value_size = 32, .convolution = 4, .layers = {}};
  for (int layer = 0; layer < spec.layers; ++layer) spec.delta.layers.push_back(layer % 4 != 3);
  EXPECT_NE(refusal_of(request, Code::unsupported)
                .find("Model \"kev\" is a hybrid of Gated DeltaNet and gated attention "
                      "(Qwen3_5ForCausalLM), which the test backend does not run yet"),
            std::string::npos);
  request.backend.hybrids = true;
  request.max_sequences = 3;
  request.kept_states = 2;
  const Plan plan = make_plan(request);
  EXPECT_TRUE(plan.models[0].state_slots.empty());
  EXPECT_EQ(plan.models[1].kv_bytes_per_token, whole / 4);
  ASSERT_EQ(plan.models[1].state_slots.size(), 5U);
  const std::size_t bytes = 21 * (4 * 16 * 32 + 3 * (2 * 32 + 128)) * 4;
  for (const Region& region : plan.models[1].state_slots) EXPECT_EQ(region.bytes, bytes);
  for (std::size_t i = 1; i < 5; ++i)
    EXPECT_GE(plan.models[1].state_slots[i].offset, plan.models[1].state_slots[i - 1].offset + bytes);
  EXPECT_NE(table_of(plan).find("recurrent states of kev"), std::string::npos);
  request.budget = plan.total_bytes() - 1;
  EXPECT_NE(refusal_of(request).find("recurrent states " + human_bytes(5 * bytes)), std::string::npos);
  request.kept_states = -1;
  EXPECT_THROW(make_plan(request), Error);
}

TEST(Plan, CountsTheDeviceContextAgainstTheBudget) {
  PlanRequest request = two_models();
  request.budget = make_plan(request).total_bytes();
  request.backend.context_bytes = 1;
  EXPECT_NE(refusal_of(request).find("device context 1 B"), std::string::npos);
}

TEST(Plan, AbsurdNumbersAreRefusedWithoutOverflow) {
  PlanRequest request = two_models();
  request.kv_tokens = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(refusal_of(request).find("--kv-tokens"), std::string::npos);

  request = two_models();
  request.models[0].adapter_slots = 3;
  request.models[0].adapter_slot_bytes = std::size_t{1} << 63;
  refusal_of(request);
  request.models[0].adapter_slot_bytes = 0;
  refusal_of(request, Code::invalid_argument);

  request = two_models();
  request.models[0].tensors[0].bytes = Carver::kUnlimited - 10;
  refusal_of(request);

  request = two_models();
  request.backend.context_bytes = Carver::kUnlimited;
  refusal_of(request);
}

TEST(Plan, RefusesRequestsThatMakeNoSense) {
  PlanRequest request = two_models();
  request.models[1].name = "laya";
  EXPECT_NE(refusal_of(request, Code::invalid_argument).find("Two models are called \"laya\""), std::string::npos);
  request = two_models();
  request.models.clear();
  refusal_of(request, Code::invalid_argument);
  request = two_models();
  request.max_sequences = 0;
  refusal_of(request, Code::invalid_argument);
  request = two_models();
  request.kv_tokens = -1;
  refusal_of(request, Code::invalid_argument);
}

TEST(HumanBytes, KeepsThreeFigures) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(12 << 20), "12.0 MiB");
  EXPECT_EQ(human_bytes((std::uint64_t{3} << 30) / 2), "1.50 GiB");
  EXPECT_EQ(human_bytes((std::uint64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(human_bytes(~std::uint64_t{0}), "16.0 EiB");
  EXPECT_EQ(grouped_digits(1234567), "1,234,567");
  EXPECT_EQ(grouped_digits(999), "999");
}

}  // namespace
}  // namespace duet
