// Rows behind the final norm, as heads of another kind than the vocabulary's read them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "duet/error.h"
#include "tests/host/array_source.h"
#include "tests/host/device_under_test.h"
#include "tests/host/plain_decoder.h"
#include "tests/host/step_runner.h"
#include "tests/support/compare.h"

namespace duet::test {
namespace {

constexpr std::size_t kHidden = 64;  // Of small_spec.

/// Hidden rows of all tokens in chunks of `chunk`; with `logits`, logits are asked for in the same steps.
std::vector<float> hidden_rows(StepRunner& runner, const std::vector<std::int32_t>& tokens, std::size_t chunk,
                               int adapter_slot = -1, float scale = 1.0F, bool logits = false) {
  const std::vector<std::int32_t> pages = runner.pages(0, static_cast<std::int64_t>(tokens.size()));
  std::vector<float> rows(tokens.size() * kHidden, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> unread(chunk * 128);
  for (std::size_t done = 0; done < tokens.size(); done += chunk) {
    const std::size_t count = std::min(chunk, tokens.size() - done);
    std::vector<int> wanted;
    for (std::size_t i = 0; i < count; ++i) wanted.push_back(static_cast<int>(i));
    StepSequence sequence;
    sequence.tokens = std::span(tokens).subspan(done, count), sequence.pages = pages;
    sequence.first_position = static_cast<std::int64_t>(done);
    sequence.adapter_slot = adapter_slot, sequence.adapter_scale = scale;
    sequence.hidden_rows = wanted, sequence.hidden = rows.data() + done * kHidden;
    if (logits) sequence.logits = unread.data();
    EXPECT_TRUE(runner.backend->prefill(0, sequence).finite);
  }
  return rows;
}

TEST(HiddenRows, AreThoseOfThePlainDecoder) {
  for (const StorageSpec storage : {StorageSpec{.storage = Storage::f32}, StorageSpec{Storage::int8, 32, false}}) {
    const ArraySource source(small_spec(), all_in(storage), 700);
    const ArrayAdapter adapter =
        random_adapter(source.spec(), {Part::query, Part::output, Part::down}, 4, 2.0F, false, Storage::f32, 701);
    StepRunner runner(source);
    runner.backend->load_adapter(0, 1, adapter, 0.5F);
    const std::vector<std::int32_t> tokens = random_tokens(40, 128, 7);
    const double bound = device_under_test().step_tolerance;
    EXPECT_TRUE(all_within_relative(hidden_rows(runner, tokens, 16), plain_hidden(source, tokens), bound));
    EXPECT_TRUE(all_within_relative(hidden_rows(runner, tokens, 16, 1, 0.5F),
                                    plain_hidden(source, tokens, &adapter, 0.5F), bound));
  }
}

TEST(HiddenRows, DependNeitherOnChunksNorOnWhatElseIsWanted) {
  const ArraySource source(small_spec(), all_in({.storage = Storage::nf4, .block_size = 64}), 710);
  StepRunner runner(source, {.chunk_tokens = 70, .max_sequences = 70});
  const std::vector<std::int32_t> tokens = random_tokens(70, 128, 8);
  const std::vector<float> whole = hidden_rows(runner, tokens, 70);
  for (const std::size_t chunk : {1U, 7U, 16U, 64U}) EXPECT_TRUE(same_bits(hidden_rows(runner, tokens, chunk), whole));
  EXPECT_TRUE(same_bits(hidden_rows(runner, tokens, 16, -1, 1.0F, true), whole));
}

TEST(HiddenRows, ComeInTheOrderAskedForOneSequenceOrMany) {
  const ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 720);
  StepRunner runner(source);
  const std::vector<std::int32_t> tokens = random_tokens(16, 128, 9);
  const std::vector<float> all = hidden_rows(runner, tokens, 16);
  const std::vector<std::int32_t> pages = runner.pages(0, 17);
  const std::vector<int> wanted{0, 3, 4, 15};
  std::vector<float> rows(wanted.size() * kHidden);
  StepSequence sequence;
  sequence.tokens = tokens, sequence.pages = pages;
  sequence.hidden_rows = wanted, sequence.hidden = rows.data();
  runner.backend->prefill(0, sequence);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(same_bits(std::span(rows).subspan(i * kHidden, kHidden),
                          std::span(all).subspan(static_cast<std::size_t>(wanted[i]) * kHidden, kHidden)));

  // The last token of two prompts, one of them wanted, in one decode.
  const std::vector<std::int32_t> other_pages = runner.pages(20, 1);
  const std::vector<int> first{0};
  std::vector<float> row(kHidden);
  std::vector<StepSequence> steps(2);
  std::vector<StepOutcome> outcomes(2);
  steps[0].tokens = std::span(tokens).first(1), steps[0].pages = other_pages;
  steps[1].tokens = std::span(tokens).last(1), steps[1].pages = pages, steps[1].first_position = 15;
  steps[1].hidden_rows = first, steps[1].hidden = row.data();
  runner.backend->decode(0, steps, outcomes);
  EXPECT_TRUE(same_bits(row, std::span(all).last(kHidden)));
}

TEST(HiddenRows, ThatAreNotFiniteSaySo) {
  for (const bool in_the_norm : {false, true}) {
    ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 730);
    if (in_the_norm)
      source.array(Part::final_norm, -1)[17] = std::nanf("");
    else
      source.array(Part::down, 2)[17] = std::numeric_limits<float>::infinity();
    StepRunner runner(source);
    const std::vector<std::int32_t> tokens{0, 5, 9}, pages = runner.pages(0, 3);
    const std::vector<int> last{2};
    std::vector<float> row(kHidden);
    StepSequence sequence;
    sequence.tokens = tokens, sequence.pages = pages;
    sequence.hidden_rows = last, sequence.hidden = row.data();
    const StepOutcome outcome = runner.backend->prefill(0, sequence);
    EXPECT_FALSE(outcome.finite);
    EXPECT_EQ(outcome.bad_layer, in_the_norm ? 3 : 2);
  }
}

TEST(HiddenRows, OutOfRangeOrOrderAreRefused) {
  const ArraySource source(small_spec(), all_in({.storage = Storage::f32}), 740);
  StepRunner runner(source);
  const std::vector<std::int32_t> tokens{1, 2, 3}, pages = runner.pages(0, 3);
  std::vector<float> rows(3 * kHidden);
  const auto prefill = [&](const std::vector<int>& wanted, float* to) {
    StepSequence sequence;
    sequence.tokens = tokens, sequence.pages = pages;
    sequence.hidden_rows = wanted, sequence.hidden = to;
    runner.backend->prefill(0, sequence);
  };
  EXPECT_NO_THROW(prefill({0, 2}, rows.data()));
  EXPECT_NO_THROW(prefill({}, nullptr));
  for (const std::vector<int>& wanted : {std::vector{3}, {-1}, {1, 1}, {2, 0}})
    EXPECT_THROW(prefill(wanted, rows.data()), Error);
  EXPECT_THROW(prefill({0}, nullptr), Error);
}

}  // namespace
}  // namespace duet::test
