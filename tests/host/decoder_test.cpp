// Whole steps of a backend against the plain decoder, and what must hold exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "duet/error.h"
#include "tests/host/array_source.h"
#include "tests/host/device_under_test.h"
#include "tests/host/plain_decoder.h"
#include "tests/host/step_runner.h"
#include "tests/support/compare.h"

namespace duet::test {
namespace {

const std::vector<Part> kAllSeven{Part::query, Part::key, Part::value, Part::output, Part::gate, Part::up, Part::down};

void expect_plain(const ArraySource& source, std::size_t token_count, const AdapterSource* adapter = nullptr,
                  float scale = 1.0F) {
  StepRunner runner(source);
  if (adapter != nullptr) runner.backend->load_adapter(0, 1, *adapter, scale);
  const std::vector<std::int32_t> tokens = random_tokens(token_count, source.spec().vocabulary, 7);
  const std::vector<float> want = plain_logits(source, tokens, adapter, scale);
  const std::vector<float> got = runner.logits(tokens, 16, adapter == nullptr ? -1 : 1, scale);
  EXPECT_TRUE(all_within_relative(got, want, device_under_test().step_tolerance));
}

// ---- the model's maths ----

TEST(Decoder, MatchesThePlainDecoderForEveryStorage) {
  DUET_NEEDS_DEVICE();
  std::vector<StorageSpec> specs{{.storage = Storage::f32},
                                 {.storage = Storage::f16},
                                 {.storage = Storage::bf16},
                                 {.storage = Storage::int8, .block_size = 32},
                                 {.storage = Storage::int8, .block_size = 64}};
  for (const Storage storage : {Storage::nf4, Storage::fp4}) {
    for (const int block : {32, 64, 128}) {
      for (const bool nested : {false, true}) specs.push_back({storage, block, nested});
    }
  }
  for (const StorageSpec& storage : specs) {
    SCOPED_TRACE(std::string(name_of(storage.storage)) + " " + std::to_string(storage.block_size));
    expect_plain(ArraySource(small_spec(), all_in(storage), 100), 40);
  }
}

TEST(Decoder, MatchesThePlainDecoderWithStoragesMixedInOneLayer) {
  DUET_NEEDS_DEVICE();
  const auto storage = [](const TensorRow& row) -> StorageSpec {
    switch (row.part) {
      case Part::embedding:
        return {.storage = Storage::f16};
      case Part::value:
        return {.storage = Storage::bf16};
      case Part::key:
        return {.storage = Storage::int8, .block_size = 32};
      default:
        return {.storage = Storage::nf4, .block_size = 64};
    }
  };
  expect_plain(ArraySource(small_spec(), storage, 110), 33);
}

TEST(Decoder, MatchesThePlainDecoderForEveryShapeOfModel) {
  DUET_NEEDS_DEVICE();
  struct Case {
    const char* what;
    void (*change)(ModelSpec&);
  };
  const Case cases[] = {
      {"untied head", [](ModelSpec& s) { s.tied_head = false; }},
      {"every bias", [](ModelSpec& s) { s.output_bias = s.mlp_bias = true; }},
      {"no bias", [](ModelSpec& s) { s.query_key_value_bias = false; }},
      {"q/k norm, wide heads", [](ModelSpec& s) { s.query_key_norm = true, s.head_size = 32; }},
      {"one KV head", [](ModelSpec& s) { s.kv_heads = 1; }},
      {"seven query heads a KV head", [](ModelSpec& s) { s.query_heads = 14; }},
      {"as many KV heads", [](ModelSpec& s) { s.kv_heads = 4; }},
      {"stories260K's odd sizes",
       [](ModelSpec& s) { s.query_heads = 8, s.kv_heads = 4, s.head_size = 8, s.mlp = 172; }},
      {"head size 24", [](ModelSpec& s) { s.head_size = 24; }},
      {"layer 1 slides",
       [](ModelSpec& s) {
         s.sliding_window_tokens = 8, s.layer_slides = {false, true, false};
       }},
      {"linear rope", [](ModelSpec& s) { s.rope = {.kind = RopeKind::linear, .factor = 4.0}; }},
      {"yarn attention factor", [](ModelSpec& s) {
         s.rope = {.kind = RopeKind::yarn, .factor = 4.0, .original_max_position_tokens = 64, .attention_factor = 1.2};
       }}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    ModelSpec spec = small_spec();
    one.change(spec);
    expect_plain(ArraySource(spec, all_in({.storage = Storage::f32}), 120), 40);
    expect_plain(ArraySource(spec, all_in({.storage = Storage::nf4, .block_size = 64}), 121), 20);
  }
}

TEST(Decoder, HeadBiasesOfZeroEqualNoneAndOnesDoNot) {  // O-13
  DUET_NEEDS_DEVICE();
  ModelSpec without = small_spec();
  without.query_key_value_bias = false;
  ArraySource plain(without, all_in({.storage = Storage::f32}), 130);
  const auto copy_with_bias = [&](float bias) {
    ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 131);
    for (const TensorRow& row : tensors_of(without))
      source.array(row.part, row.layer) = plain.array(row.part, row.layer);
    for (int layer = 0; layer < 3; ++layer) {
      for (const Part part : {Part::query_bias, Part::key_bias, Part::value_bias})
        std::fill(source.array(part, layer).begin(), source.array(part, layer).end(), bias);
    }
    return source;
  };
  const std::vector<std::int32_t> tokens = random_tokens(20, 128, 8);
  const std::vector<float> want = StepRunner(plain).logits(tokens, 16);
  EXPECT_TRUE(same_bits(StepRunner(copy_with_bias(0.0F)).logits(tokens, 16), want));
  EXPECT_FALSE(all_within_relative(StepRunner(copy_with_bias(1.0F)).logits(tokens, 16), want, 1e-3));
}

TEST(Decoder, TiedHeadEqualsAnUntiedCopyOfTheEmbedding) {  // O-15
  DUET_NEEDS_DEVICE();
  ModelSpec untied_spec = small_spec();
  untied_spec.tied_head = false;
  ArraySource tied(small_spec(), all_in({.storage = Storage::nf4, .block_size = 64}), 140);
  ArraySource untied(untied_spec, all_in({.storage = Storage::nf4, .block_size = 64}), 141);
  for (const TensorRow& row : tensors_of(tied.spec()))
    untied.array(row.part, row.layer) = tied.array(row.part, row.layer);
  untied.array(Part::head, -1) = tied.array(Part::embedding, -1);
  const std::vector<std::int32_t> tokens = random_tokens(20, 128, 9);
  StepRunner a(tied), b(untied);
  EXPECT_TRUE(same_bits(a.logits(tokens, 16), b.logits(tokens, 16)));
  EXPECT_LT(a.plan.arena_bytes, b.plan.arena_bytes);
}

TEST(Decoder, ForgetsNoNormWeight) {  // O-11: a final norm of zeros makes all logits equal; others do not.
  DUET_NEEDS_DEVICE();
  for (const Part part : {Part::input_norm, Part::post_attention_norm, Part::final_norm}) {
    ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 150);
    std::vector<float>& gamma = source.array(part, part == Part::final_norm ? -1 : 1);
    std::fill(gamma.begin(), gamma.end(), 0.0F);
    const std::vector<std::int32_t> tokens = random_tokens(5, 128, 10);
    const std::vector<float> got = StepRunner(source).logits(tokens, 16);
    EXPECT_TRUE(all_within_relative(got, plain_logits(source, tokens), device_under_test().step_tolerance) ||
                same_bits(got, std::vector<float>(got.size(), 0.0F)));
    EXPECT_EQ(part == Part::final_norm, static_cast<bool>(same_bits(got, std::vector<float>(got.size(), 0.0F))));
  }
}

TEST(Decoder, ChangingTheLastTokenLeavesEarlierLogitsBitEqual) {  // O-10: causality
  DUET_NEEDS_DEVICE();
  ArraySource source(small_spec(), all_in({.storage = Storage::nf4, .block_size = 64}), 160);
  StepRunner runner(source);
  std::vector<std::int32_t> tokens = random_tokens(40, 128, 11);
  const std::vector<float> before = runner.logits(tokens, 16);
  tokens.back() = (tokens.back() + 1) % 128;
  const std::vector<float> after = runner.logits(tokens, 16);
  EXPECT_TRUE(same_bits(std::span(after).first(39 * 128), std::span(before).first(39 * 128)));
  EXPECT_FALSE(same_bits(std::span(after).last(128), std::span(before).last(128)));
}

TEST(Decoder, StaysFiniteWhereHalfPrecisionOverflows) {  // O-10
  DUET_NEEDS_DEVICE();
  for (const StorageSpec storage :
       {StorageSpec{.storage = Storage::f32}, StorageSpec{.storage = Storage::f16},
        StorageSpec{.storage = Storage::bf16}, StorageSpec{.storage = Storage::nf4, .block_size = 64}}) {
    SCOPED_TRACE(name_of(storage.storage));
    ArraySource source(small_spec(), all_in(storage), 170);
    for (int layer = 0; layer < 3; ++layer) {
      source.array(Part::query_bias, layer)[3] = 400.0F;
      source.array(Part::key_bias, layer)[3] = 200.0F;
    }
    // A channel of the residual stream at nearly the largest float16; nf4 holds no other number beside it.
    for (std::size_t token = 0; token < 128; ++token) source.array(Part::embedding, -1)[token * 64 + 5] = 60000.0F;
    const std::vector<std::int32_t> tokens = random_tokens(20, 128, 12);
    EXPECT_TRUE(all_within_relative(StepRunner(source).logits(tokens, 16), plain_logits(source, tokens),
                                    std::max(1e-4, device_under_test().step_tolerance)));
  }
}

// ---- equal bits ----

TEST(Decoder, ChunkedEqualsUnchunked) {  // O-28
  DUET_NEEDS_DEVICE();
  for (const StorageSpec storage : {StorageSpec{.storage = Storage::f32}, StorageSpec{Storage::nf4, 64, true}}) {
    ArraySource source(small_spec(), all_in(storage), 200);
    StepRunner runner(source, {.chunk_tokens = 150});
    const std::vector<std::int32_t> tokens = random_tokens(150, 128, 13);
    const std::vector<float> whole = runner.logits(tokens, 150);
    for (const int chunk : {1, 2, 7, 16, 17, 64, 149}) {
      EXPECT_TRUE(same_or_close(runner.logits(tokens, chunk), whole)) << "chunks of " << chunk;
    }
  }
}

/// Windows shorter than a page, as long as one (16 tokens here) and longer, so that they begin in every place of a page
/// and reach back over chunks.
TEST(Decoder, SlidingWindowsReachOverPagesAndChunks) {  // O-28
  DUET_NEEDS_DEVICE();
  for (const int window : {1, 15, 16, 17, 40}) {
    ModelSpec spec = small_spec();
    spec.sliding_window_tokens = window, spec.layer_slides = {true, false, true};
    ArraySource source(spec, all_in({.storage = Storage::f32}), 205);
    StepRunner runner(source, {.chunk_tokens = 100});
    const std::vector<std::int32_t> tokens = random_tokens(100, 128, 14);
    const std::vector<float> whole = runner.logits(tokens, 100);
    EXPECT_TRUE(
        all_within_relative(whole, plain_logits(source, tokens), std::max(1e-4, device_under_test().step_tolerance)))
        << "window " << window;
    for (const int chunk : {1, 7, 16, 17, 64}) {
      EXPECT_TRUE(same_or_close(runner.logits(tokens, chunk), whole)) << "window " << window << ", chunks of " << chunk;
    }
  }
}

TEST(Decoder, ResultsDoNotDependOnTheNumberOfThreads) {
  DUET_NEEDS_DEVICE();
  ArraySource source(small_spec(), all_in({.storage = Storage::nf4, .block_size = 64}), 210);
  const std::vector<std::int32_t> tokens = random_tokens(50, 128, 14);
  const std::vector<float> one = StepRunner(source, {.threads = 1}).logits(tokens, 16);
  for (const int threads : {2, 3, 8}) {
    EXPECT_TRUE(same_bits(StepRunner(source, {.threads = threads}).logits(tokens, 16), one)) << threads;
  }
}

TEST(Decoder, ABatchWithDifferentAdaptersGivesEachSequenceWhatItGetsAlone) {
  DUET_NEEDS_DEVICE();
  const ModelSpec spec = small_spec();
  ArraySource source(spec, all_in({.storage = Storage::nf4, .block_size = 64}), 220);
  StepRunner runner(source, {.adapter_slots = 3});
  const ArrayAdapter first = random_adapter(spec, kAllSeven, 8, 0.5F, false, Storage::f16, 300);
  const ArrayAdapter second =
      random_adapter(spec, {Part::query, Part::down, Part::head}, 3, 2.0F, true, Storage::bf16, 400);
  ArrayAdapter third("replacements");
  third.replace(Part::up, 1, 96, 64, random_floats(96 * 64, 0.2F, 500), Storage::f16);
  third.replace(Part::key_bias, 0, 1, 32, random_floats(32, 0.5F, 501));
  runner.backend->load_adapter(0, 0, first, 1.0F);
  runner.backend->load_adapter(0, 1, second, 1.0F);
  runner.backend->load_adapter(0, 2, third, 1.0F);

  struct Sequence {
    int slot;
    float scale;
    std::size_t length;
  };
  const std::vector<Sequence> sequences{{-1, 1.0F, 9}, {0, 0.75F, 21}, {2, 1.0F, 33}, {1, 1.0F, 17}};
  std::vector<std::vector<std::int32_t>> tokens, pages;
  std::vector<std::vector<float>> alone, batched;
  std::int32_t first_page = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    tokens.push_back(random_tokens(s.length, 128, static_cast<std::uint32_t>(15 + i)));
    const std::vector<float> all = runner.logits(tokens[i], 16, s.slot, s.scale, first_page);
    alone.emplace_back(all.end() - 128, all.end());
    pages.push_back(runner.pages(first_page, static_cast<std::int64_t>(s.length)));
    first_page += static_cast<std::int32_t>(pages[i].size());
    batched.emplace_back(128);
  }
  // The last token of each again, all together.
  std::vector<StepSequence> steps(sequences.size());
  std::vector<StepOutcome> outcomes(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    steps[i].tokens = std::span(tokens[i]).last(1);
    steps[i].first_position = static_cast<std::int64_t>(tokens[i].size()) - 1;
    steps[i].pages = pages[i];
    steps[i].adapter_slot = sequences[i].slot;
    steps[i].adapter_scale = sequences[i].scale;
    steps[i].logits = batched[i].data();
  }
  runner.backend->decode(0, steps, outcomes);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_TRUE(outcomes[i].finite);
    EXPECT_TRUE(same_or_close(batched[i], alone[i])) << "sequence " << i;
  }
}

TEST(Decoder, AdaptersLeaveNoTrace) {  // O-02, O-05: A, B, base, A at half scale, each as in a fresh process
  DUET_NEEDS_DEVICE();
  const ModelSpec spec = small_spec();
  ArraySource source(spec, all_in({.storage = Storage::nf4, .block_size = 64}), 230);
  const ArrayAdapter a = random_adapter(spec, kAllSeven, 8, 0.5F, false, Storage::f16, 310);
  const ArrayAdapter b = random_adapter(spec, kAllSeven, 4, 1.0F, false, Storage::f16, 320);
  const std::vector<std::int32_t> tokens = random_tokens(60, 128, 16);
  StepRunner warm(source);
  const std::vector<float> base_before = warm.logits(tokens, 16);
  const auto cold = [&](const ArrayAdapter* adapter, float scale) {
    StepRunner fresh(source);
    if (adapter != nullptr) fresh.backend->load_adapter(0, 0, *adapter, 1.0F);
    return fresh.logits(tokens, 16, adapter == nullptr ? -1 : 0, scale);
  };
  warm.backend->load_adapter(0, 0, a, 1.0F);
  EXPECT_TRUE(same_bits(warm.logits(tokens, 16, 0), cold(&a, 1.0F)));
  warm.backend->load_adapter(0, 1, b, 1.0F);
  EXPECT_TRUE(same_bits(warm.logits(tokens, 16, 1), cold(&b, 1.0F)));
  EXPECT_TRUE(same_bits(warm.logits(tokens, 16), base_before));
  EXPECT_TRUE(same_bits(warm.logits(tokens, 16, 0, 0.5F), cold(&a, 0.5F)));
  EXPECT_FALSE(same_bits(cold(&a, 0.5F), cold(&a, 1.0F)));
  warm.backend->drop_adapter(0, 0);
  warm.backend->load_adapter(0, 0, b, 1.0F);  // Another content in a slot that was used.
  EXPECT_TRUE(same_bits(warm.logits(tokens, 16, 0), cold(&b, 1.0F)));
  EXPECT_TRUE(same_bits(warm.logits(tokens, 16), base_before));
}

TEST(Decoder, DependsOnNothingThatLayInScratchAndPagesBefore) {
  DUET_NEEDS_DEVICE();
  // A model made of NaN runs first and leaves NaN all over the scratch region and the pages; then the healthy one uses
  // both, on other pages, partly filled.
  ArraySource sick(small_spec(), all_in({.storage = Storage::f32}), 235);
  for (std::size_t i = 0; i < sick.tensors().size(); ++i) {
    std::vector<float>& values = sick.array(sick.tensors()[i].row.part, sick.tensors()[i].row.layer);
    std::fill(values.begin(), values.end(), std::nanf(""));
  }
  const ModelSpec spec = small_spec();
  for (const StorageSpec storage : {StorageSpec{.storage = Storage::f32}, StorageSpec{Storage::nf4, 64, true}}) {
    ArraySource healthy(spec, all_in(storage), 236);
    const ArrayAdapter adapter = random_adapter(spec, kAllSeven, 3, 0.5F, true, Storage::f16, 390);
    const std::vector<std::int32_t> tokens = random_tokens(45, 128, 18), junk = random_tokens(500, 128, 19);
    StepRunner fresh(healthy), used({&healthy, &sick}, {});
    fresh.backend->load_adapter(0, 0, adapter, 1.0F);
    used.backend->load_adapter(0, 0, adapter, 1.0F);
    used.backend->load_adapter(1, 0, adapter, 1.0F);
    for (const int slot : {-1, 0}) {
      const std::vector<float> dirt = used.logits(junk, 16, slot, 1.0F, 0, 1);
      for (const float value : dirt) ASSERT_TRUE(std::isnan(value));
      EXPECT_TRUE(same_bits(used.logits(tokens, 16, slot, 1.0F, 2), fresh.logits(tokens, 16, slot)));
    }
  }
}

// ---- adapters ----

TEST(DecoderAdapters, MatchThePlainDecoderOnEveryPart) {
  DUET_NEEDS_DEVICE();
  for (const StorageSpec storage :
       {StorageSpec{.storage = Storage::f32}, StorageSpec{.storage = Storage::nf4, .block_size = 64}}) {
    ArraySource source(small_spec(), all_in(storage), 240);
    for (const Part part : {Part::query, Part::key, Part::value, Part::output, Part::gate, Part::up, Part::down,
                            Part::head, Part::embedding}) {
      SCOPED_TRACE(static_cast<int>(part));
      const ArrayAdapter adapter = random_adapter(small_spec(), {part}, 5, 0.7F, false, Storage::f16, 330);
      expect_plain(source, 20, &adapter, 1.5F);
    }
    for (const Storage kind : {Storage::f32, Storage::f16, Storage::bf16}) {
      const ArrayAdapter all = random_adapter(small_spec(), kAllSeven, 16, 0.25F, false, kind, 340);
      expect_plain(source, 40, &all);
      const ArrayAdapter dora = random_adapter(small_spec(), kAllSeven, 4, 0.5F, true, kind, 350);
      expect_plain(source, 40, &dora, 0.5F);
    }
  }
}

TEST(DecoderAdapters, DoraScalesOutputRowsNotColumns) {  // O-04
  DUET_NEEDS_DEVICE();
  // W = [[3, 4], [0, 5]], A = [[1, 0]], B = [[1], [2]], scale 2, magnitude (10, 1), x = (1, 1) -> (14.0556, 1.40556).
  // The layer's MLP is off, attention's output is W's; values of one token pass attention unchanged. Heads have eight
  // numbers, as few as any device takes; six are zero.
  ModelSpec spec;
  spec.architecture = "LlamaForCausalLM";
  spec.layers = 1, spec.hidden = 2, spec.query_heads = 1, spec.kv_heads = 1, spec.head_size = 8, spec.mlp = 2;
  spec.vocabulary = 2, spec.max_position_tokens = 16, spec.tied_head = false, spec.norm_epsilon = 1e-12;
  ArraySource source(spec, all_in({.storage = Storage::f32}), 250);
  const auto set = [&](Part part, int layer, std::vector<float> values) {
    source.array(part, layer) = std::move(values);
  };
  set(Part::embedding, -1, {1, 1, 1, 1});
  set(Part::input_norm, 0, {1, 1});
  const auto with_zeros = [](std::vector<float> values, std::size_t size) {
    values.resize(size, 0.0F);
    return values;
  };
  for (const Part part : {Part::query, Part::key}) set(part, 0, with_zeros({1, 0, 0, 1}, 16));
  set(Part::value, 0, with_zeros({1, 0, 0, 1}, 16));                     // v = x = (1, 1, 0, ...)
  set(Part::output, 0, with_zeros({3, 4, 0, 0, 0, 0, 0, 0, 0, 5}, 16));  // y
  for (const Part part : {Part::gate, Part::up, Part::down}) set(part, 0, {0, 0, 0, 0});
  set(Part::post_attention_norm, 0, {1, 1});
  set(Part::final_norm, -1, {1, 1});
  set(Part::head, -1, {1, 0, 0, 1});
  ArrayAdapter adapter("dora");
  adapter.add({.part = Part::output,
               .layer = 0,
               .rank = 1,
               .scale = 2,
               .a = with_zeros({1}, 8),
               .b = {1, 2},
               .bias = {},
               .magnitude = {10, 1}});

  StepRunner runner(source);
  runner.backend->load_adapter(0, 0, adapter, 1.0F);
  const std::vector<std::int32_t> token{0};
  // Residual stream (1, 1) + y, then a norm of length sqrt(2): the ratio of the logits tells y.
  const auto expected = [](double y0, double y1) {
    const double a = 1 + y0, b = 1 + y1, length = std::sqrt((a * a + b * b) / 2);
    return std::vector<float>{static_cast<float>(a / length), static_cast<float>(b / length)};
  };
  const double length0 = std::sqrt(5.0 * 5 + 4 * 4), length1 = std::sqrt(4.0 * 4 + 5 * 5);
  const double y0 = (3 + 4 + 2 * 1) * 10 / length0, y1 = (5 + 2 * 2) * 1 / length1;
  EXPECT_NEAR(y0, 14.0556, 1e-4);
  EXPECT_NEAR(y1, 1.40556, 1e-5);
  const double tolerance = std::max(1e-6, device_under_test().step_tolerance / 10);
  EXPECT_TRUE(all_within(runner.logits(token, 1, 0), expected(y0, y1), tolerance));
  EXPECT_TRUE(all_within(runner.logits(token, 1), expected(7, 5), tolerance));
}

TEST(DecoderAdapters, TheModulesScaleMultipliesOnce) {  // O-03: base weight 0, A and B ones: scale * r * sum(x)
  DUET_NEEDS_DEVICE();
  const ModelSpec spec = small_spec();
  for (const auto& [rank, scale] : {std::pair{16, 4.0F}, {4, 2.0F}, {8, 1.0F}}) {
    ArraySource source(spec, all_in({.storage = Storage::f32}), 260);
    for (const Part part : {Part::output, Part::down}) {
      for (int layer = 0; layer < 3; ++layer)
        std::fill(source.array(part, layer).begin(), source.array(part, layer).end(), 0.0F);
    }
    // Only the last layer's down projection writes to the stream: scale * rank * sum(gate * up) in every place.
    ArrayAdapter adapter("ones");
    adapter.add({.part = Part::head,
                 .layer = -1,
                 .rank = rank,
                 .scale = scale,
                 .a = std::vector<float>(static_cast<std::size_t>(rank) * 64, 1.0F),
                 .b = std::vector<float>(static_cast<std::size_t>(rank) * 128, 1.0F),
                 .bias = {},
                 .magnitude = {}});
    std::fill(source.array(Part::final_norm, -1).begin(), source.array(Part::final_norm, -1).end(), 1.0F);
    // The embedding row of token 3 is ones: the final norm gives ones, base logits are the embedding's row sums.
    std::fill_n(source.array(Part::embedding, -1).begin() + 3 * 64, 64, 1.0F);
    StepRunner runner(source);
    runner.backend->load_adapter(0, 0, adapter, 1.0F);
    const std::vector<std::int32_t> token{3};
    const std::vector<float> base = runner.logits(token, 1), adapted = runner.logits(token, 1, 0);
    for (std::size_t i = 0; i < 128; ++i)
      ASSERT_NEAR(adapted[i] - base[i], scale * static_cast<float>(rank) * 64.0F, 0.01F) << rank;
  }
}

TEST(DecoderAdapters, ReplacedMatricesAndBiasesServeThatAdapterOnly) {  // O-02
  DUET_NEEDS_DEVICE();
  ModelSpec spec = small_spec();
  spec.tied_head = false;
  ArraySource source(spec, all_in({.storage = Storage::f32}), 270);
  const std::vector<std::int32_t> tokens = random_tokens(12, 128, 17);
  StepRunner runner(source);
  const std::vector<float> base = runner.logits(tokens, 16);

  std::vector<float> head = source.array(Part::head, -1);
  std::swap_ranges(head.begin() + 5 * 64, head.begin() + 6 * 64, head.begin() + 7 * 64);
  ArrayAdapter swapped_head("head rows 5 and 7 exchanged");
  swapped_head.replace(Part::head, -1, 128, 64, head);
  runner.backend->load_adapter(0, 0, swapped_head, 1.0F);
  std::vector<float> want = base;
  for (std::size_t t = 0; t < tokens.size(); ++t) std::swap(want[t * 128 + 5], want[t * 128 + 7]);
  EXPECT_TRUE(same_bits(runner.logits(tokens, 16, 0), want));
  EXPECT_TRUE(same_bits(runner.logits(tokens, 16), base));

  std::vector<float> embedding = source.array(Part::embedding, -1);
  std::swap_ranges(embedding.begin() + 5 * 64, embedding.begin() + 6 * 64, embedding.begin() + 7 * 64);
  ArrayAdapter swapped_embedding("embedding rows 5 and 7 exchanged");
  swapped_embedding.replace(Part::embedding, -1, 128, 64, embedding);
  runner.backend->load_adapter(0, 1, swapped_embedding, 1.0F);
  const std::vector<std::int32_t> five{5, 9}, seven{7, 9};
  EXPECT_TRUE(same_bits(runner.logits(five, 16, 1), runner.logits(seven, 16)));

  ArrayAdapter everything("all kinds");
  everything.replace(Part::query, 0, 64, 64, random_floats(64 * 64, 0.2F, 510), Storage::bf16);
  everything.replace(Part::input_norm, 1, 1, 64, random_floats(64, 1.0F, 511));
  everything.replace(Part::value_bias, 2, 1, 32, random_floats(32, 1.0F, 512));
  everything.add({.part = Part::gate,
                  .layer = 1,
                  .rank = 2,
                  .scale = 1,
                  .a = random_floats(2 * 64, 0.3F, 513),
                  .b = random_floats(2 * 96, 0.3F, 514),
                  .bias = random_floats(96, 0.3F, 515),
                  .magnitude = {}});
  expect_plain(source, 30, &everything, 0.5F);
}

TEST(DecoderAdapters, LoraOnTheEmbeddingChangesOnlyPromptsThatHoldItsTokens) {  // O-02 (c)
  DUET_NEEDS_DEVICE();
  ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 280);
  ArrayAdapter adapter("embedding");
  std::vector<float> a(2 * 128, 0.0F);
  a[0 * 128 + 42] = 1.0F, a[1 * 128 + 42] = -2.0F;
  adapter.add({.part = Part::embedding,
               .layer = -1,
               .rank = 2,
               .scale = 1,
               .a = a,
               .b = random_floats(64 * 2, 0.5F, 520),
               .bias = {},
               .magnitude = {}});
  StepRunner runner(source);
  runner.backend->load_adapter(0, 0, adapter, 1.0F);
  const std::vector<std::int32_t> without{1, 2, 3}, with{1, 42, 3};
  EXPECT_TRUE(same_bits(runner.logits(without, 16, 0), runner.logits(without, 16)));
  EXPECT_FALSE(all_within_relative(runner.logits(with, 16, 0), runner.logits(with, 16), 1e-3));
}

TEST(DecoderAdapters, RefuseAnotherScaleForDora) {
  DUET_NEEDS_DEVICE();
  ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 290);
  const ArrayAdapter dora = random_adapter(small_spec(), {Part::query}, 2, 1.0F, true, Storage::f16, 360);
  StepRunner runner(source);
  runner.backend->load_adapter(0, 0, dora, 0.5F);
  const std::vector<std::int32_t> tokens{1, 2};
  EXPECT_NO_THROW(runner.logits(tokens, 16, 0, 0.5F));
  try {
    runner.logits(tokens, 16, 0, 1.0F);
    FAIL() << "a DoRA adapter was used with a scale its row norms do not belong to";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
  }
}

TEST(DecoderAdapters, RefuseWhatDoesNotFitTheSlot) {
  DUET_NEEDS_DEVICE();
  ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 295);
  StepRunner by_rank(source, {.adapter_rank = 4}), by_bytes(source, {.adapter_slot_bytes = 256});
  const ArrayAdapter adapter = random_adapter(small_spec(), {Part::query}, 8, 1.0F, false, Storage::f16, 370);
  for (StepRunner* runner : {&by_rank, &by_bytes}) {
    try {
      runner->backend->load_adapter(0, 0, adapter, 1.0F);
      FAIL() << "an adapter that does not fit was loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::no_room);
    }
  }
  const std::vector<std::int32_t> tokens{1};
  EXPECT_THROW(by_rank.logits(tokens, 1, 0), Error) << "the slot must be empty";
}

// ---- what is not finite, and what is not there ----

TEST(Decoder, NamesTheFirstLayerThatIsNotFinite) {
  DUET_NEEDS_DEVICE();
  struct Case {
    Part part;
    int layer;
    int bad_layer;
  };
  for (const Case& one : {Case{Part::embedding, -1, kLayerEmbedding},
                          {Part::query, 1, 1},
                          {Part::down, 0, 0},
                          {Part::value_bias, 2, 2},
                          {Part::post_attention_norm, 1, 1},
                          {Part::final_norm, -1, 3},
                          {Part::head, -1, 3}}) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      SCOPED_TRACE(static_cast<int>(one.part));
      ModelSpec spec = small_spec();
      spec.tied_head = false;
      ArraySource source(spec, all_in({.storage = Storage::f32}), 600);
      source.array(one.part, one.layer)[17] = bad;
      StepRunner runner(source);
      const std::vector<std::int32_t> tokens{0, 5, 9}, pages = runner.pages(0, 3);
      const Sampling greedy;
      StepSequence sequence;
      sequence.tokens = tokens, sequence.pages = pages, sequence.sample = true;
      sequence.rules.usable_vocabulary = 128, sequence.rules.sampling = &greedy;
      const StepOutcome outcome = runner.backend->prefill(0, sequence);
      EXPECT_FALSE(outcome.finite);
      EXPECT_EQ(outcome.bad_layer, one.bad_layer);
    }
  }
}

TEST(Decoder, ASickSequenceLeavesItsNeighboursAlone) {
  DUET_NEEDS_DEVICE();
  ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 610);
  source.array(Part::embedding, -1)[42 * 64] = std::nanf("");
  ArraySource healthy(small_spec(), all_in({.storage = Storage::f32}), 610);
  healthy.array(Part::embedding, -1)[42 * 64] = 0.0F;  // Row 42 also is a row of the tied head: compare the others.
  StepRunner runner(source), reference(healthy);
  const std::vector<std::int32_t> tokens{7, 42, 8};
  std::vector<std::vector<std::int32_t>> pages;
  std::vector<StepSequence> steps(3);
  std::vector<StepOutcome> outcomes(3);
  std::vector<std::vector<float>> logits(3, std::vector<float>(128));
  for (std::size_t i = 0; i < 3; ++i) pages.push_back(runner.pages(static_cast<std::int32_t>(i), 1));
  for (std::size_t i = 0; i < 3; ++i) {
    steps[i].tokens = std::span(tokens).subspan(i, 1);
    steps[i].pages = pages[i];
    steps[i].logits = logits[i].data();
  }
  runner.backend->decode(0, steps, outcomes);
  EXPECT_EQ(outcomes[1].bad_layer, kLayerEmbedding);
  EXPECT_FALSE(outcomes[1].finite);
  for (const std::size_t i : {0U, 2U}) {
    const std::vector<float> want = reference.logits(std::span(tokens).subspan(i, 1), 1);
    EXPECT_TRUE(same_or_close(std::span(logits[i]).first(42), std::span(want).first(42)));
    EXPECT_EQ(outcomes[i].bad_layer, 3) << "the head's own row 42 is not finite";
  }
}

TEST(Decoder, RefusesTokensPagesAndLengthsOutOfRange) {
  DUET_NEEDS_DEVICE();
  ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 620);
  StepRunner runner(source);
  const std::vector<std::int32_t> good{1}, too_high{128}, negative{-1}, many(17, 1);
  const std::vector<std::int32_t> pages = runner.pages(0, 1), no_page{1000000};
  const auto prefill = [&](std::span<const std::int32_t> tokens, std::span<const std::int32_t> page_ids) {
    StepSequence sequence;
    sequence.tokens = tokens, sequence.pages = page_ids;
    return runner.backend->prefill(0, sequence);
  };
  EXPECT_NO_THROW(prefill(good, pages));
  EXPECT_THROW(prefill(too_high, pages), Error);
  EXPECT_THROW(prefill(negative, pages), Error);
  EXPECT_THROW(prefill(many, pages), Error);
  EXPECT_THROW(prefill(good, no_page), Error);
  EXPECT_THROW(prefill(good, {}), Error);
}

}  // namespace
}  // namespace duet::test
