// The CUDA backend where it has ways of its own: graphs, ways to load, KV types, where the embedding lies.
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "cuda/cuda_backend.h"
#include "duet/error.h"
#include "loaders/loaders.h"
#include "loaders/packed_file.h"
#include "tests/host/array_source.h"
#include "tests/host/device_under_test.h"
#include "tests/host/plain_decoder.h"
#include "tests/host/step_runner.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/test_data.h"

namespace duet::test {
namespace {

const std::vector<Part> kAllSeven{Part::query, Part::key, Part::value, Part::output, Part::gate, Part::up, Part::down};

/// A checkpoint that hands nothing out as it lies in the file: every tensor comes through the loader on the host.
class WholeTensors final : public WeightSource {
 public:
  explicit WholeTensors(const WeightSource& source) : source_(source) {}
  const ModelSpec& spec() const override { return source_.spec(); }
  const std::string& name() const override { return source_.name(); }
  const std::string& identity() const override { return source_.identity(); }
  const std::vector<WeightTensor>& tensors() const override { return source_.tensors(); }
  void read(std::size_t index, std::span<std::byte> region) const override { source_.read(index, region); }
  const std::vector<std::string>& report() const override { return source_.report(); }

 private:
  const WeightSource& source_;
};

std::vector<WeightOptions> weight_choices() {
  return {{},
          {.linear = WeightType::f16, .head = WeightType::f16, .embedding = WeightType::f16},
          {.linear = WeightType::nf4},
          {.linear = WeightType::nf4, .head = WeightType::int8, .embedding = WeightType::int8},
          {.linear = WeightType::fp4, .block_size = 128},
          {.linear = WeightType::int8, .block_size = 32},
          {.linear = WeightType::nf4, .double_quant = true}};
}

// ---- ways in ----

TEST(CudaBackend, StreamedAndWholeTensorsGiveTheSameBits) {
  DUET_NEEDS_DEVICE();
  for (const char* const model : {"models/qwen2", "models/llama_mha", "models/llama_float32", "models/llama_odd_mlp"}) {
    for (const WeightOptions& weights : weight_choices()) {
      SCOPED_TRACE(std::string(model) + " " + std::to_string(static_cast<int>(weights.linear)));
      const auto source = loaders::open_checkpoint(golden_directory() / model, weights);
      const std::vector<std::int32_t> tokens = random_tokens(40, source->spec().vocabulary, 1);
      const std::vector<float> whole = StepRunner(WholeTensors(*source)).logits(tokens, 16);
      EXPECT_TRUE(same_bits(StepRunner(*source).logits(tokens, 16), whole));

      const TemporaryDirectory folder;
      loaders::write_packed_file(folder.path() / "model.duet", *source, {}, {});
      const auto packed = loaders::open_checkpoint(folder.path() / "model.duet", {});
      EXPECT_TRUE(same_bits(StepRunner(*packed).logits(tokens, 16), whole));
    }
  }
}

TEST(CudaBackend, QuantisedOnTheWayInIsWhatTheHostHolds) {
  DUET_NEEDS_DEVICE();
  for (const WeightOptions& weights : weight_choices()) {
    const auto source = loaders::open_checkpoint(golden_directory() / "models/qwen2", weights);
    const std::vector<std::int32_t> tokens = random_tokens(30, source->spec().vocabulary, 2);
    const std::vector<float> got = StepRunner(*source).logits(tokens, 16);
    EXPECT_TRUE(all_within_relative(got, plain_logits(*source, tokens), device_under_test().step_tolerance));
  }
}

// ---- graphs ----

/// Greedy answers of `prompts` decoded as one batch, after each was prefilled alone; log-probabilities with them.
struct Decoded {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
};
std::vector<Decoded> decode_together(StepRunner& runner, const std::vector<std::vector<std::int32_t>>& prompts,
                                     const std::vector<int>& slots, std::size_t count) {
  const Sampling greedy;
  std::vector<std::vector<std::int32_t>> tokens = prompts, pages;
  std::vector<Decoded> decoded(prompts.size());
  std::int32_t first_page = 0;
  const auto step_of = [&](std::size_t i, std::size_t first) {
    StepSequence step;
    step.tokens = std::span(tokens[i]).subspan(first);
    step.first_position = static_cast<std::int64_t>(first);
    step.pages = pages[i];
    step.adapter_slot = slots[i];
    step.sample = true;
    step.rules.usable_vocabulary = runner.plan.bases[0].spec.vocabulary;
    step.rules.sampling = &greedy;
    return step;
  };
  const auto accept = [&](std::size_t i, const StepOutcome& outcome) {
    ASSERT_TRUE(outcome.finite);
    tokens[i].push_back(outcome.sampled.id);
    decoded[i].ids.push_back(outcome.sampled.id);
    decoded[i].logprobs.push_back(outcome.sampled.logprob);
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    pages.push_back(runner.pages(first_page, static_cast<std::int64_t>(prompts[i].size() + count)));
    first_page += static_cast<std::int32_t>(pages[i].size());
    accept(i, runner.backend->prefill(0, step_of(i, 0)));
  }
  for (std::size_t step = 1; step < count; ++step) {
    std::vector<StepSequence> steps;
    std::vector<StepOutcome> outcomes(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) steps.push_back(step_of(i, tokens[i].size() - 1));
    runner.backend->decode(0, steps, outcomes);
    for (std::size_t i = 0; i < prompts.size(); ++i) accept(i, outcomes[i]);
  }
  return decoded;
}

TEST(CudaBackend, ABatchOfAnySizeGivesEachSequenceTheBitsItGetsAlone) {
  DUET_NEEDS_DEVICE();
  const ModelSpec spec = small_spec();
  for (const StorageSpec storage : {StorageSpec{Storage::nf4, 64, true}, StorageSpec{Storage::int8, 64, false},
                                    StorageSpec{.storage = Storage::f16}, StorageSpec{.storage = Storage::f32}}) {
    ArraySource source(spec, all_in(storage), 300);
    StepRunner runner(source, {.chunk_tokens = 64, .max_sequences = 11, .kv_tokens = 1024, .adapter_slots = 2});
    runner.backend->load_adapter(0, 0, random_adapter(spec, kAllSeven, 8, 0.5F, false, Storage::f16, 301), 1.0F);
    runner.backend->load_adapter(0, 1, random_adapter(spec, kAllSeven, 3, 1.0F, true, Storage::bf16, 302), 1.0F);
    for (const std::size_t count : {2U, 3U, 5U, 8U, 11U}) {
      std::vector<std::vector<std::int32_t>> prompts;
      std::vector<int> slots;
      for (std::size_t i = 0; i < count; ++i) {
        prompts.push_back(random_tokens(3 + 5 * i, 128, static_cast<std::uint32_t>(310 + i)));
        slots.push_back(static_cast<int>(i % 3) - 1);
      }
      const std::vector<Decoded> together = decode_together(runner, prompts, slots, 6);
      for (std::size_t i = 0; i < count; ++i) {
        const Decoded alone = decode_together(runner, {prompts[i]}, {slots[i]}, 6).front();
        EXPECT_EQ(together[i].ids, alone.ids) << "sequence " << i << " of " << count;
        EXPECT_TRUE(same_bits(together[i].logprobs, alone.logprobs)) << "sequence " << i << " of " << count;
      }
    }
  }
}

TEST(CudaBackend, TheSameRequestTwiceGivesTheSameBits) {
  DUET_NEEDS_DEVICE();
  ArraySource source(small_spec(), all_in({.storage = Storage::nf4, .block_size = 64}), 320);
  StepRunner runner(source, {.chunk_tokens = 64});
  const std::vector<std::int32_t> prompt = random_tokens(50, 128, 321);
  const Decoded first = decode_together(runner, {prompt}, {-1}, 20).front();
  const Decoded second = decode_together(runner, {prompt}, {-1}, 20).front();
  EXPECT_EQ(first.ids, second.ids);
  EXPECT_TRUE(same_bits(first.logprobs, second.logprobs));
}

// ---- keys and values ----

TEST(CudaBackend, EveryKvTypeIsCloseToThePlainDecoder) {
  DUET_NEEDS_DEVICE();
  for (const KvStorage storage : {KvStorage::f16, KvStorage::bf16, KvStorage::int8}) {
    ArraySource source(small_spec(), all_in({.storage = Storage::f16}), 330);
    StepRunner runner(source, {.kv_storage = storage});
    const std::vector<std::int32_t> tokens = random_tokens(60, 128, 331);
    // bf16 keeps 8 bits of every key and value (2^-9 each), int8 the 127th part of the head's largest.
    const double tolerance = storage == KvStorage::f16 ? 1e-2 : 3e-2;
    EXPECT_TRUE(all_within_relative(runner.logits(tokens, 16), plain_logits(source, tokens), tolerance))
        << name_of(storage);
  }
}

// ---- the embedding on the host ----

TEST(CudaBackend, AnEmbeddingInHostMemoryGivesTheSameBits) {
  DUET_NEEDS_DEVICE();
  ModelSpec spec = small_spec();
  spec.tied_head = false;
  for (const StorageSpec storage : {StorageSpec{Storage::nf4, 64, false}, StorageSpec{.storage = Storage::f16}}) {
    ArraySource source(spec, all_in(storage), 340);
    const std::vector<std::int32_t> tokens = random_tokens(40, 128, 341);
    StepRunner on_card(source), on_host(source, {.embedding_on_host = true});
    EXPECT_LT(on_host.plan.arena_bytes, on_card.plan.arena_bytes);
    EXPECT_TRUE(same_bits(on_host.logits(tokens, 16), on_card.logits(tokens, 16)));
  }
}

// ---- what does not fit ----

TEST(CudaBackend, APlanLargerThanTheCardIsRefusedWithNumbers) {
  DUET_NEEDS_DEVICE();
  ArraySource source(small_spec(), all_in({.storage = Storage::f16}), 350);
  StepRunner runner(source);
  Plan huge = runner.plan;
  huge.arena_bytes = std::size_t{1} << 46;
  try {
    (void)cuda::make_cuda_backend(huge);
    FAIL() << "64 TiB were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::no_room);
    EXPECT_NE(std::string(error.what()).find("64.0 TiB"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace duet::test
