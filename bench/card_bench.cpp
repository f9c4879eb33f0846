#include "bench/card_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "bench/card_bandwidth.h"
#include "bench/statistics.h"
#include "bench/synthetic_engine.h"
#include "cuda/card.h"
#include "duet/error.h"

namespace duet::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Row {
  std::string what;
  double tokens_per_second = 0;
  double bytes_per_second = 0;  ///< Of what the step must read; 0: not compared.
  double milliseconds = 0;
};

class CardBench {
 public:
  CardBench(const CardBenchOptions& options, const SyntheticEngine& engine) : options_(options), engine_(engine) {
    for (int i = 0; i < 200000; ++i) tokens_.push_back((i * 7919 + 13) % engine.sources[0]->spec().vocabulary);
    pages_.resize(static_cast<std::size_t>(engine.plan.page_count));
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  /// Seconds of a prompt in chunks, its last token sampled.
  double prefill(int length, int slot) const {
    const auto begin = Clock::now();
    for (int done = 0; done < length;) {
      const int count = std::min(engine_.plan.limits.prefill_chunk_tokens, length - done);
      StepSequence step = step_of(0, done, count, slot);
      step.sample = done + count == length;
      expect_finite(engine_.backend->prefill(0, step));
      done += count;
    }
    return seconds_since(begin);
  }

  /// Seconds of each step of `batch` sequences at about `context` tokens, greedy. Keys and values of earlier positions
  /// are whatever lies in the pages: their bytes cost the same.
  std::vector<double> decode(int context, int batch, int slot) const {
    std::vector<double> samples;
    std::vector<StepSequence> steps(static_cast<std::size_t>(batch));
    std::vector<StepOutcome> outcomes(steps.size());
    for (int i = 0; i < options_.decode_tokens * options_.repeats + 5; ++i) {
      for (int s = 0; s < batch; ++s) {
        steps[static_cast<std::size_t>(s)] = step_of(s, context + i % options_.decode_tokens, 1, slot);
        steps[static_cast<std::size_t>(s)].sample = true;
      }
      const auto begin = Clock::now();
      engine_.backend->decode(0, steps, outcomes);
      if (i >= 5) samples.push_back(seconds_since(begin));
      for (const StepOutcome& outcome : outcomes) expect_finite(outcome);
    }
    return samples;
  }

  /// Every matrix once (of an untied embedding one row), the adapter, keys and values of every sequence.
  double bytes_per_step(int context, int batch, int slot) const {
    const ModelSpec& spec = engine_.sources[0]->spec();
    double bytes = 0;
    for (const WeightTensor& tensor : engine_.sources[0]->tensors()) {
      const bool one_row = tensor.row.part == Part::embedding && !spec.tied_head;
      bytes += static_cast<double>(tensor.bytes) / (one_row ? static_cast<double>(spec.vocabulary) : 1.0);
    }
    if (slot >= 0) bytes += static_cast<double>(engine_.adapters[0]->spec().bytes);
    const double tokens = (context + options_.decode_tokens / 2.0) * batch;
    return bytes + tokens * static_cast<double>(engine_.plan.models[0].kv_bytes_per_token);
  }

 private:
  StepSequence step_of(int sequence, int first, int count, int slot) const {
    const std::int64_t per_page = engine_.plan.models[0].tokens_per_page;
    const std::size_t own = pages_.size() / static_cast<std::size_t>(engine_.plan.limits.max_batch_sequences);
    const auto needed = static_cast<std::size_t>((first + count + per_page - 1) / per_page);
    StepSequence step;
    step.tokens = std::span(tokens_).subspan(static_cast<std::size_t>(first) + 37U * static_cast<std::size_t>(sequence),
                                             static_cast<std::size_t>(count));
    step.first_position = first;
    step.pages = std::span(pages_).subspan(static_cast<std::size_t>(sequence) * own, needed);
    step.adapter_slot = slot;
    step.rules.usable_vocabulary = engine_.sources[0]->spec().vocabulary;
    step.rules.sampling = &greedy_;
    return step;
  }

  static void expect_finite(const StepOutcome& outcome) {
    if (!outcome.finite)
      throw Error(Code::non_finite, fmt::format("Layer {} gave a number that is not finite", outcome.bad_layer));
  }

  const CardBenchOptions& options_;
  const SyntheticEngine& engine_;
  std::vector<std::int32_t> tokens_, pages_;
  Sampling greedy_;
};

}  // namespace

void run_card_bench(const CardBenchOptions& options) {
  const int longest =
      std::max(*std::max_element(options.contexts.begin(), options.contexts.end()) + options.decode_tokens,
               *std::max_element(options.prompts.begin(), options.prompts.end()));
  const int batch = *std::max_element(options.batches.begin(), options.batches.end());
  SyntheticOptions engine_options;
  engine_options.weights = options.weights;
  engine_options.budget = std::uint64_t{1} << 46;
  engine_options.kv_tokens = std::int64_t{longest + 64} * batch;
  engine_options.max_sequences = batch;
  engine_options.prefill_chunk_tokens = 512;
  const SyntheticEngine engine({{options.synthetic, 1, options.lora_rank}}, engine_options);
  if (options.lora_rank > 0) engine.backend->load_adapter(0, 0, *engine.adapters[0], 1.0F);
  const Spread read = seconds_per_byte_read_on_card(std::size_t{2} << 30, 20);
  const CardBench bench(options, engine);

  std::vector<Row> rows;
  std::vector<int> slots{-1};
  if (options.lora_rank > 0) slots.push_back(0);
  for (const int slot : slots) {
    const std::string with = slot < 0 ? "base alone" : fmt::format("LoRA r {}", options.lora_rank);
    (void)bench.prefill(64, slot);
    for (const int context : options.contexts)
      for (const int count : options.batches) {
        const Spread seconds = spread_of(bench.decode(context, count, slot));
        rows.push_back({fmt::format("decode, {}, context {}, batch {}", with, context, count), count / seconds.median,
                        bench.bytes_per_step(context, count, slot) / seconds.median, 1e3 * seconds.median});
      }
    for (const int length : options.prompts) {
      std::vector<double> samples;
      samples.reserve(static_cast<std::size_t>(options.repeats));
      (void)bench.prefill(length, slot);
      for (int i = 0; i < options.repeats; ++i) samples.push_back(bench.prefill(length, slot));
      const Spread seconds = spread_of(samples);
      rows.push_back(
          {fmt::format("prefill, {}, {} tokens", with, length), length / seconds.median, 0, 1e3 * seconds.median});
    }
  }
  if (options.json) {
    nlohmann::json all = {{"model", options.synthetic},
                          {"device", engine.backend->description()},
                          {"read_bytes_per_second", 1 / read.median},
                          {"load_seconds", engine.load_seconds},
                          {"rows", nlohmann::json::array()}};
    for (const Row& row : rows)
      all["rows"].push_back({{"what", row.what},
                             {"tokens_per_second", row.tokens_per_second},
                             {"milliseconds", row.milliseconds},
                             {"share_of_read_bandwidth", row.bytes_per_second * read.median}});
    fmt::print("{}\n", all.dump());
    return;
  }
  fmt::print("{} on {}; read bandwidth {:.0f} GB/s; made and loaded in {:.2f} s\n\n", options.synthetic,
             engine.backend->description(), 1e-9 / read.median, engine.load_seconds);
  fmt::print("| what | tokens/s | ms a step | % of limit |\n|---|---|---|---|\n");
  for (const Row& row : rows)
    fmt::print("| {} | {:.0f} | {:.3f} | {} |\n", row.what, row.tokens_per_second, row.milliseconds,
               row.bytes_per_second > 0 ? fmt::format("{:.1f}", 100 * row.bytes_per_second * read.median) : "");
}

}  // namespace duet::bench
