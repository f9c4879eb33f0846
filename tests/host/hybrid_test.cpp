// Qwen3.5's layers on any backend: against the plain decoder, what must hold exactly, and states that end with their
// request.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "duet/error.h"
#include "engine/quant_blocks.h"
#include "engine/runtime.h"
#include "loaders/loaders.h"
#include "tests/host/array_source.h"
#include "tests/host/device_under_test.h"
#include "tests/host/plain_decoder.h"
#include "tests/host/step_runner.h"
#include "tests/loaders/expect_error.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/test_data.h"

namespace duet::test {
namespace {

#define DUET_NEEDS_HYBRIDS() \
  DUET_NEEDS_DEVICE();       \
  if (!device_under_test().facts.hybrids) GTEST_SKIP() << "no hybrids on this device"

const std::vector<Part> kNorms{Part::input_norm, Part::post_attention_norm, Part::query_norm, Part::key_norm,
                               Part::final_norm};
const std::vector<Part> kDeltaParts{Part::delta_query_key_value, Part::delta_gate, Part::delta_decay, Part::delta_rate,
                                    Part::delta_output};

ArraySource hybrid_of(std::uint32_t seed, StorageSpec storage = {}) {
  return ArraySource(small_hybrid(), all_in(storage), seed);
}

void expect_plain(const ArraySource& source, std::size_t count, const AdapterSource* adapter = nullptr) {
  StepRunner runner(source);
  if (adapter != nullptr) runner.backend->load_adapter(0, 1, *adapter, 1.0F);
  const std::vector<std::int32_t> tokens = random_tokens(count, source.spec().vocabulary, 7);
  EXPECT_TRUE(all_within_relative(runner.logits(tokens, 16, adapter == nullptr ? -1 : 1),
                                  plain_logits(source, tokens, adapter), device_under_test().step_tolerance));
}

// ---- the maths ----

TEST(Hybrid, MatchesThePlainDecoderForEveryShape) {
  DUET_NEEDS_HYBRIDS();
  struct Case {
    const char* what;
    void (*change)(ModelSpec&);
  };
  const Case cases[] = {
      {"as it is", [](ModelSpec&) {}},
      {"untied head", [](ModelSpec& s) { s.tied_head = false; }},
      {"as many value heads", [](ModelSpec& s) { s.delta.value_heads = 2; }},
      {"one key head", [](ModelSpec& s) { s.delta.key_heads = 1, s.delta.value_heads = 5; }},
      {"heads of Qwen3.5", [](ModelSpec& s) { s.delta.key_size = s.delta.value_size = 128; }},
      {"values wider than keys", [](ModelSpec& s) { s.delta.key_size = 8, s.delta.value_size = 67; }},
      {"a convolution over the token alone", [](ModelSpec& s) { s.delta.convolution = 1; }},
      {"a convolution over 7 tokens", [](ModelSpec& s) { s.delta.convolution = 7; }},
      {"whole heads rotated", [](ModelSpec& s) { s.rotary_size = 0; }},
      {"2 elements rotated", [](ModelSpec& s) { s.rotary_size = 2; }},
      {"the first layer attends",
       [](ModelSpec& s) {
         s.delta.layers = {false, true, true};
       }},
      {"every layer attends", [](ModelSpec& s) { s.delta = {}; }},
      {"norms as they are", [](ModelSpec& s) { s.zero_centred_norms = false; }},
      {"attention without a gate", [](ModelSpec& s) { s.output_gate = false; }},
      {"no q/k norm, 7 query heads a KV head", [](ModelSpec& s) { s.query_key_norm = false, s.query_heads = 14; }},
      {"yarn", [](ModelSpec& s) {
         s.rope = {.kind = RopeKind::yarn, .factor = 4.0, .original_max_position_tokens = 64, .attention_factor = 1.2};
       }}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    ModelSpec spec = small_hybrid();
    one.change(spec);
    check(spec, one.what);
    expect_plain(ArraySource(spec, all_in({.storage = Storage::f32}), 120), 40);
    expect_plain(ArraySource(spec, all_in({.storage = Storage::nf4, .block_size = 64}), 121), 20);
  }
}

TEST(Hybrid, MatchesThePlainDecoderForEveryStorageAndAdapter) {
  DUET_NEEDS_HYBRIDS();
  for (const StorageSpec& storage :
       {StorageSpec{.storage = Storage::f16}, StorageSpec{.storage = Storage::bf16},
        StorageSpec{.storage = Storage::int8, .block_size = 32}, StorageSpec{Storage::nf4, 64, true}})
    expect_plain(hybrid_of(130, storage), 90);
  const ArraySource source = hybrid_of(131);
  for (const Part part : kDeltaParts) {
    SCOPED_TRACE(static_cast<int>(part));
    const ArrayAdapter adapter =
        random_adapter(source.spec(), {part}, 3, 0.7F, part == Part::delta_gate, Storage::f16, 330);
    expect_plain(source, 20, &adapter);
  }
  ArrayAdapter norms("norms");
  norms.replace(Part::delta_norm, 0, 1, 20, random_floats(20, 1.0F, 340));
  norms.replace(Part::query_norm, 1, 1, 24, random_floats(24, 1.0F, 341));
  norms.replace(Part::final_norm, -1, 1, 64, random_floats(64, 1.0F, 342));
  expect_plain(source, 20, &norms);
}

/// O-11. With zeros everywhere, forgetting the 1 of the final norm would make all logits equal.
TEST(Hybrid, NormsHeldLessOneEqualThoseHeldWhole) {
  DUET_NEEDS_HYBRIDS();
  ModelSpec whole_spec = small_hybrid();
  whole_spec.zero_centred_norms = false;
  const std::vector<std::int32_t> tokens = random_tokens(30, 128, 9);
  for (const float deviation : {0.0F, 0.3F}) {
    ArraySource less_one = hybrid_of(140), whole(whole_spec, all_in({}), 140);
    for (const TensorRow& row : tensors_of(whole_spec)) {
      std::vector<float>& values = less_one.array(row.part, row.layer);
      if (std::find(kNorms.begin(), kNorms.end(), row.part) != kNorms.end())
        values = random_floats(values.size(), deviation, 141);
      whole.array(row.part, row.layer) = values;
      if (std::find(kNorms.begin(), kNorms.end(), row.part) == kNorms.end()) continue;
      for (float& value : whole.array(row.part, row.layer)) value += 1.0F;
    }
    const std::vector<float> got = StepRunner(less_one).logits(tokens, 16);
    EXPECT_TRUE(same_or_close(got, StepRunner(whole).logits(tokens, 16)));
    EXPECT_NE(*std::min_element(got.begin(), got.end()), *std::max_element(got.begin(), got.end()));

    // DeltaNet's own norm is held whole: in zeros it takes the layer out.
    std::fill(less_one.array(Part::delta_norm, 0).begin(), less_one.array(Part::delta_norm, 0).end(), 0.0F);
    const std::vector<float> without = StepRunner(less_one).logits(tokens, 16);
    EXPECT_FALSE(all_within_relative(without, got, 1e-3));
    std::vector<float>& out = less_one.array(Part::delta_output, 0);
    std::fill(out.begin(), out.end(), 0.0F);
    EXPECT_TRUE(same_or_close(StepRunner(less_one).logits(tokens, 16), without));
  }
}

TEST(Hybrid, ChunksThreadsAndNeighboursChangeNoBit) {
  DUET_NEEDS_HYBRIDS();
  for (const StorageSpec storage : {StorageSpec{.storage = Storage::f32}, StorageSpec{Storage::nf4, 64, true}}) {
    const ArraySource source = hybrid_of(200, storage);
    StepRunner runner(source, {.chunk_tokens = 150});
    std::vector<std::int32_t> tokens = random_tokens(150, 128, 13);
    const std::vector<float> whole = runner.logits(tokens, 150);
    for (const int chunk : {1, 2, 3, 4, 7, 64, 149})
      EXPECT_TRUE(same_or_close(runner.logits(tokens, chunk), whole)) << "chunks of " << chunk;
    for (const int threads : {1, 3, 8})
      EXPECT_TRUE(same_bits(StepRunner(source, {.threads = threads, .chunk_tokens = 150}).logits(tokens, 150), whole));
    tokens.back() = (tokens.back() + 1) % 128;
    const std::vector<float> after = runner.logits(tokens, 150);
    EXPECT_TRUE(same_bits(std::span(after).first(149 * 128), std::span(whole).first(149 * 128)));
  }
}

TEST(Hybrid, ABatchWithDifferentAdaptersGivesEachSequenceWhatItGetsAlone) {
  DUET_NEEDS_HYBRIDS();
  const ArraySource source = hybrid_of(220, {.storage = Storage::nf4, .block_size = 64});
  StepRunner runner(source, {.adapter_slots = 2});
  std::vector<Part> parts = kDeltaParts;
  parts.insert(parts.end(), {Part::query, Part::output, Part::down});
  runner.backend->load_adapter(0, 0, random_adapter(source.spec(), parts, 4, 0.5F, false, Storage::f16, 300), 1.0F);
  runner.backend->load_adapter(0, 1, random_adapter(source.spec(), parts, 3, 1.0F, true, Storage::bf16, 400), 1.0F);

  constexpr std::size_t kSteps = 5;
  const int slots[] = {-1, 0, 1, 0};
  const std::size_t lengths[] = {9, 21, 33, 3};
  std::vector<std::vector<std::int32_t>> tokens, pages;
  std::vector<std::vector<float>> alone;
  std::int32_t first_page = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    tokens.push_back(random_tokens(lengths[i] + kSteps, 128, static_cast<std::uint32_t>(15 + i)));
    pages.push_back(runner.pages(first_page, static_cast<std::int64_t>(tokens[i].size())));
    alone.push_back(runner.logits(tokens[i], 16, slots[i], 1.0F, first_page));
    first_page += static_cast<std::int32_t>(pages[i].size());
  }
  // All but the last tokens, then those in steps all together.
  first_page = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    runner.logits(std::span(tokens[i]).first(lengths[i]), 16, slots[i], 1.0F, first_page, 0, static_cast<int>(i));
    first_page += static_cast<std::int32_t>(pages[i].size());
  }
  for (std::size_t step = 0; step < kSteps; ++step) {
    std::vector<StepSequence> steps(4);
    std::vector<StepOutcome> outcomes(4);
    std::vector<std::vector<float>> batched(4, std::vector<float>(128));
    for (std::size_t i = 0; i < 4; ++i) {
      steps[i].tokens = std::span(tokens[i]).subspan(lengths[i] + step, 1);
      steps[i].first_position = static_cast<std::int64_t>(lengths[i] + step);
      steps[i].pages = pages[i];
      steps[i].state_slot = runner.state_slot(static_cast<int>(i));
      steps[i].adapter_slot = slots[i];
      steps[i].logits = batched[i].data();
    }
    runner.backend->decode(0, steps, outcomes);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(outcomes[i].finite);
      EXPECT_TRUE(same_or_close(batched[i], std::span(alone[i]).subspan((lengths[i] + step) * 128, 128))) << i;
    }
  }
}

// ---- states ----

/// Finite numbers that fill states with NaN.
ArrayAdapter overflowing() {
  ArrayAdapter adapter("sick");
  for (const int layer : {0, 2})
    adapter.add({.part = Part::delta_query_key_value,
                 .layer = layer,
                 .rank = 1,
                 .scale = 1e30F,
                 .a = std::vector<float>(64, 1e30F),
                 .b = std::vector<float>(168, 1.0F),
                 .bias = {},
                 .magnitude = {}});
  return adapter;
}

TEST(HybridState, ASlotThatHeldNaNBeginsFromZero) {  // O-12
  DUET_NEEDS_HYBRIDS();
  const ArraySource healthy = hybrid_of(236);
  const std::vector<std::int32_t> tokens = random_tokens(45, 128, 18), junk = random_tokens(60, 128, 19);
  const std::vector<float> want = StepRunner(healthy).logits(tokens, 16);
  StepRunner used(healthy);
  const ArrayAdapter sick = overflowing();
  used.backend->load_adapter(0, 0, sick, 1.0F);
  for (const float value : used.logits(junk, 16, 0)) ASSERT_TRUE(std::isnan(value));
  EXPECT_TRUE(same_bits(used.logits(tokens, 16), want));
  EXPECT_TRUE(same_bits(used.logits(std::span(tokens).first(1), 16), std::span(want).first(128)));
}

TEST(HybridState, StepsThatWouldSpoilAStateAreRefused) {
  DUET_NEEDS_HYBRIDS();
  const ArraySource source = hybrid_of(237);
  StepRunner runner(source);
  EXPECT_EQ(runner.plan.models[0].state_slots.size(), 4U);
  EXPECT_EQ(static_cast<std::int64_t>(runner.plan.models[0].state_slots[0].bytes), state_bytes(source.spec()));
  const std::vector<std::int32_t> tokens = random_tokens(20, 128, 18);
  const auto step = [&](std::int64_t first, int slot) {
    const std::vector<std::int32_t> pages = runner.pages(0, 32);
    StepSequence sequence;
    sequence.tokens = std::span(tokens).first(10);
    sequence.first_position = first;
    sequence.pages = pages;
    sequence.state_slot = slot;
    runner.backend->prefill(0, sequence);
  };
  EXPECT_TRUE(fails_with(Code::internal, {"state slot"}, [&] { step(0, -1); }));
  EXPECT_TRUE(fails_with(Code::internal, {"state slot"}, [&] { step(0, 4); }));
  EXPECT_TRUE(fails_with(Code::internal, {"State slot 1", "begins at 10"}, [&] { step(10, 1); }));
  EXPECT_NO_THROW(step(0, 1));
  EXPECT_NO_THROW(step(10, 1));
  EXPECT_TRUE(fails_with(Code::internal, {"ends at position 20", "begins at 10"}, [&] { step(10, 1); }));

  const std::vector<std::int32_t> pages = runner.pages(0, 32);
  std::vector<StepSequence> two(2);
  for (StepSequence& sequence : two) {
    sequence.tokens = std::span(tokens).first(1);
    sequence.pages = pages;
    sequence.state_slot = 2;
  }
  std::vector<StepOutcome> outcomes(2);
  EXPECT_TRUE(fails_with(Code::internal, {"share state slot 2"}, [&] { runner.backend->decode(0, two, outcomes); }));
}

// ---- requests ----

/// The device with a hook before every step.
class HookedBackend : public Backend {
 public:
  explicit HookedBackend(Backend& inner) : inner_(inner) {}
  std::function<void(const StepSequence&)> before_step;

  std::string description() const override { return inner_.description(); }
  void load_weights(int base, const WeightSource& source, const LoadProgress& progress) override {
    inner_.load_weights(base, source, progress);
  }
  void load_adapter(int model, int slot, const AdapterSource& source, float scale) override {
    inner_.load_adapter(model, slot, source, scale);
  }
  void drop_adapter(int model, int slot) override { inner_.drop_adapter(model, slot); }
  StepOutcome prefill(int model, const StepSequence& sequence) override {
    if (before_step) before_step(sequence);
    return inner_.prefill(model, sequence);
  }
  void decode(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes) override {
    if (before_step) before_step(sequences.front());
    inner_.decode(model, sequences, outcomes);
  }

 private:
  Backend& inner_;
};

/// A hybrid as requests see it.
struct Server {
  StepRunner runner;
  HookedBackend backend;
  Runtime runtime;
  explicit Server(const WeightSource& source, std::int64_t kv_tokens = 512, int max_sequences = 4)
      : runner(source, {.max_sequences = max_sequences, .kv_tokens = kv_tokens, .adapter_slots = 1}),
        backend(*runner.backend),
        runtime(backend, runner.plan, std::vector<RuntimeModel>(1), {}) {}

  Ticket submit(const std::vector<std::int32_t>& prompt, int max_tokens, const std::string& adapter = "") {
    TokenRequest request;
    request.model = 0;
    request.prompt_ids = prompt;
    request.max_tokens = max_tokens;
    request.max_length_tokens = 1000;
    request.logprobs = 1;
    request.adapter = adapter;
    return runtime.submit(std::move(request));
  }
};

/// Ids, and the bits of their log-probabilities.
std::vector<std::pair<std::int32_t, std::uint32_t>> tokens_of(const Answer& answer) {
  std::vector<std::pair<std::int32_t, std::uint32_t>> tokens;
  for (const GeneratedToken& token : answer.tokens)
    tokens.emplace_back(token.id, std::bit_cast<std::uint32_t>(static_cast<float>(token.logprob)));
  return tokens;
}

TEST(HybridRequests, AnAnswerDoesNotDependOnWhatRanBefore) {  // O-12
  DUET_NEEDS_HYBRIDS();
  const ArraySource source = hybrid_of(240);
  const std::vector<std::int32_t> a = random_tokens(50, 128, 20), b = random_tokens(40, 128, 21);
  Server fresh(source, 64, 1);
  const Answer alone = fresh.runtime.wait(fresh.submit(b, 12));
  ASSERT_EQ(alone.code, Code::ok);
  const auto want = tokens_of(alone);
  ASSERT_EQ(want.size(), 12U);

  const ArrayAdapter sick = overflowing();
  for (const int ending : {0, 1, 2, 3}) {  // Finished, cancelled in prefill, in decode, failed.
    SCOPED_TRACE(ending);
    Server server(source, 64, 1);  // One state, and pages for one request.
    server.runtime.load_adapter(0, "sick", sick, 1.0);
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false, go_on = ending == 0 || ending == 3;
    server.backend.before_step = [&](const StepSequence& sequence) {
      if (sequence.first_position < (ending == 1 ? 16 : 52)) return;
      std::unique_lock lock(mutex);
      reached = true;
      changed.notify_all();
      changed.wait(lock, [&] { return go_on; });
    };
    const Ticket first = server.submit(a, 10, ending == 3 ? "sick" : "");
    if (!go_on) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return reached; });
      EXPECT_TRUE(server.runtime.cancel(first));
      go_on = true;
      changed.notify_all();
    }
    const Code code = ending == 0 ? Code::ok : ending == 3 ? Code::non_finite : Code::cancelled;
    EXPECT_EQ(server.runtime.wait(first).code, code);
    EXPECT_EQ(tokens_of(server.runtime.wait(server.submit(b, 12))), want);
  }
}

/// Pages of a prefix are not taken over while nothing keeps its state.
TEST(HybridRequests, TheSamePromptIsComputedAgain) {
  DUET_NEEDS_HYBRIDS();
  const ArraySource source = hybrid_of(241);
  Server server(source);
  const std::vector<std::int32_t> prompt = random_tokens(70, 128, 22);
  const Answer first = server.runtime.wait(server.submit(prompt, 8));
  const Answer second = server.runtime.wait(server.submit(prompt, 8));
  EXPECT_EQ(second.code, Code::ok);
  EXPECT_EQ(second.cached_tokens, 0);
  EXPECT_EQ(tokens_of(second), tokens_of(first));
  EXPECT_EQ(server.runtime.counters().cached_pages, 0);
}

TEST(HybridRequests, RequestsThatLoseTheirPagesGiveTheSameAnswers) {
  DUET_NEEDS_HYBRIDS();
  const ArraySource source = hybrid_of(242);
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::vector<std::pair<std::int32_t, std::uint32_t>>> want;
  for (std::uint32_t i = 0; i < 6; ++i) {
    prompts.push_back(random_tokens(14 + i, 128, 30 + i));
    Server alone(source);
    want.push_back(tokens_of(alone.runtime.wait(alone.submit(prompts.back(), 40))));
    ASSERT_EQ(want.back().size(), 40U);
  }
  Server server(source, 128);  // Eight pages for four requests of four.
  std::vector<Ticket> tickets;
  for (const auto& prompt : prompts) tickets.push_back(server.submit(prompt, 40));
  for (std::size_t i = 0; i < tickets.size(); ++i) EXPECT_EQ(tokens_of(server.runtime.wait(tickets[i])), want[i]) << i;
  EXPECT_GT(server.runtime.counters().recomputed_tokens, 0U);
  EXPECT_EQ(server.runtime.counters().free_pages, server.runtime.counters().total_pages);
}

// ---- a published adapter's layout ----

/// The base's numbers with s B A added to every matrix that the adapter changes.
ArraySource merged(const WeightSource& base, const AdapterSource& adapter) {
  ArraySource dense(base.spec(), all_in({}), 1);
  for (std::size_t i = 0; i < base.tensors().size(); ++i) {
    const WeightTensor& tensor = base.tensors()[i];
    std::vector<std::byte> region(tensor.bytes);
    base.read(i, region);
    dequantise(view_of(tensor.row.rows, tensor.row.columns, tensor.storage, region.data()), 0,
               dense.array(tensor.row.part, tensor.row.layer));
  }
  const auto floats = [&](int index) {
    const AdapterTensor& tensor = adapter.spec().tensors[static_cast<std::size_t>(index)];
    std::vector<std::byte> bytes(tensor.bytes);
    adapter.read(static_cast<std::size_t>(index), bytes);
    std::vector<float> values(static_cast<std::size_t>(tensor.rows * tensor.columns));
    dequantise(view_of(tensor.rows, tensor.columns, {.storage = tensor.storage}, bytes.data()), 0, values);
    return values;
  };
  for (const AdapterModule& module : adapter.spec().modules) {
    const std::vector<float> a = floats(module.lora_a), b = floats(module.lora_b);
    std::vector<float>& w = dense.array(module.part, module.layer);
    const auto rank = static_cast<std::size_t>(module.rank), columns = a.size() / rank;
    for (std::size_t i = 0; i < w.size(); ++i) {
      double sum = 0;
      for (std::size_t r = 0; r < rank; ++r) sum += double{b[i / columns * rank + r]} * a[r * columns + i % columns];
      w[i] = static_cast<float>(w[i] + module.scale * sum);
    }
  }
  return dense;
}

TEST(HybridAdapters, APeftAdapterOnEveryProjectionEqualsTheMergedMatrices) {
  DUET_NEEDS_HYBRIDS();
  const std::filesystem::path folder = golden_directory() / "kev/hybrid";
  const auto base = loaders::open_checkpoint(folder / "base", {});
  const auto adapter = loaders::open_adapter(folder / "adapter", base->spec(), base->name());
  EXPECT_EQ(adapter->spec().modules.size(), 3U * (5 + 3) + 1U * (4 + 3));
  AdapterSpec in_16_bit = adapter->spec();
  for (AdapterTensor& tensor : in_16_bit.tensors) tensor.storage = Storage::f16;
  lay_out(in_16_bit);
  EXPECT_NEAR(static_cast<double>(slot_bytes_for_rank(base->spec(), 4)), static_cast<double>(in_16_bit.bytes), 64);
  StepRunner runner(*base);
  runner.backend->load_adapter(0, 0, *adapter, 1.0F);
  const std::vector<std::int32_t> tokens = random_tokens(60, 384, 40);
  const std::vector<float> adapted = runner.logits(tokens, 16, 0);
  EXPECT_TRUE(all_within_relative(adapted, StepRunner(merged(*base, *adapter)).logits(tokens, 16),
                                  device_under_test().golden_tolerance));
  EXPECT_FALSE(all_within_relative(adapted, runner.logits(tokens, 16), 1e-2));
}

}  // namespace
}  // namespace duet::test
