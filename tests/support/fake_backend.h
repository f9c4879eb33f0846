#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend.h"
#include "engine/plan.h"
#include "engine/runtime.h"

/// A device for tests of the engine: no model, but numbers that depend on everything they should. Each token leaves a
/// number in its place of its page; the next token is chosen from a hash over all the numbers *read back from the
/// pages*, the base, the adapter's content and the scale. A wrong page, position, adapter or order changes the answer.
namespace duet::test {

constexpr std::int32_t kFakeVocabulary = 96;  ///< Rows of the head.
constexpr std::int32_t kFakeUsable = 80;      ///< Ids at and above it always have the largest logits: padding.

class FakeBackend : public Backend {
 public:
  explicit FakeBackend(const Plan& plan);

  std::string description() const override { return "fake"; }
  void load_weights(int, const WeightSource&, const LoadProgress&) override {}
  void load_adapter(int model, int slot, const AdapterSource& source, float scale) override;
  void drop_adapter(int model, int slot) override;
  StepOutcome prefill(int model, const StepSequence& sequence) override;
  void decode(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes) override;

  // Hooks, called on the worker's thread; set them before the first request.
  std::function<void(int model, const StepSequence&)> before_step;
  /// The id to choose instead of the computed one.
  std::function<std::optional<std::int32_t>(int model, const StepSequence&)> script;
  /// The layer where a non-finite number shall appear.
  std::function<std::optional<int>(int model, const StepSequence&)> bad_layer;
  /// Changes the raw logits before sampling.
  std::function<void(int model, const StepSequence&, std::span<float> logits)> change_logits;

 private:
  StepOutcome run(int model, const StepSequence& sequence);
  std::uint64_t& cell(int model, const StepSequence& sequence, std::int64_t position);

  const Plan& plan_;
  std::int64_t most_tokens_per_page_;
  std::vector<std::uint64_t> cells_;                               ///< [pages, most_tokens_per_page]
  std::vector<std::vector<std::optional<std::string>>> adapters_;  ///< [models][slots] content.
  std::vector<float> logits_, scratch_;
};

/// Greedy answer of the fake device, computed from the tokens alone: no pages, no engine.
std::vector<std::int32_t> fake_answer(int base, const std::string& adapter_content, float scale,
                                      std::vector<std::int32_t> prompt, int max_tokens);

class FakeAdapter : public AdapterSource {
 public:
  explicit FakeAdapter(std::string content, std::size_t bytes = 1000, int rank = 4);
  const AdapterSpec& spec() const override { return spec_; }
  const std::string& name() const override { return spec_.content_hash; }
  void read(std::size_t, std::span<std::byte>) const override {}
  const std::vector<std::string>& report() const override { return report_; }
  AdapterSpec& mutable_spec() { return spec_; }

 private:
  AdapterSpec spec_;
  std::vector<std::string> report_;
};

struct FakeSetup {
  std::int64_t kv_tokens = 1024;
  int max_sequences = 4;
  int prefill_chunk_tokens = 24;  ///< No multiple of a page, so that chunks and pages do not end together.
  int positions = 4096;
  int adapter_slots = 2;
};

/// Three models: "laya" (32 tokens a page) and "kev" (16) with bases of their own, "twin" with laya's base.
constexpr int kLaya = 0, kKev = 1, kTwin = 2;
Plan fake_plan(const FakeSetup& setup = {});

/// Tokens are "a" ... "z", then "<i>" for every other id; `texts` overrides some. Byte tokens "<0xC3>" join.
std::shared_ptr<const Tokenizer> fake_tokenizer(const std::vector<std::pair<std::int32_t, std::string>>& texts = {});

/// What the runtime needs of the three models; `end_ids` of all.
std::vector<RuntimeModel> fake_models(const std::shared_ptr<const Tokenizer>& tokenizer = nullptr,
                                      const std::vector<std::int32_t>& end_ids = {});

/// `count` tokens below kFakeUsable, a pure function of the seed.
std::vector<std::int32_t> fake_prompt(int count, std::uint64_t seed);

}  // namespace duet::test
