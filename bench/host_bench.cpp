#include "bench/host_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "bench/read_bandwidth.h"
#include "bench/statistics.h"
#include "duet/error.h"
#include "engine/backend.h"
#include "engine/host/host_kernels.h"
#include "engine/host/host_math.h"
#include "engine/host/thread_pool.h"
#include "loaders/loaders.h"
#include "loaders/synthetic.h"

namespace duet::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// One model on the host backend with one sequence.
struct Setup {
  std::shared_ptr<const WeightSource> source;
  std::unique_ptr<AdapterSource> adapter;
  Plan plan;
  std::unique_ptr<Backend> backend;
  std::vector<std::int32_t> tokens;  // Prompt and what follows it: random ids, so that nothing stops early.
  std::vector<std::int32_t> pages;
  int prompt_tokens = 0;
};

Setup set_up(const HostBenchOptions& options, int threads) {
  Setup setup;
  setup.source = options.checkpoint.empty() ? loaders::make_synthetic(options.synthetic, options.weights, 1)
                                            : loaders::open_checkpoint(options.checkpoint, options.weights);
  const ModelSpec& spec = setup.source->spec();
  if (!options.adapter.empty()) setup.adapter = loaders::open_adapter(options.adapter, spec, setup.source->name());

  PlanModel model;
  model.name = "model";
  model.base_identity = setup.source->identity();
  model.base_path = setup.source->name();
  model.spec = spec;
  model.tensors = setup.source->tensors();
  if (setup.adapter != nullptr) {
    model.adapter_slots = 1;
    model.adapter_slot_bytes = setup.adapter->spec().bytes;
    model.largest_adapter_rank = setup.adapter->spec().largest_rank;
  }
  PlanRequest request;
  request.models = {model};
  request.backend = host_facts();
  request.budget = std::uint64_t{1} << 46;
  request.kv_tokens = options.prompt_tokens + options.decode_tokens;
  request.max_sequences = 1;
  setup.plan = make_plan(request);
  setup.backend = make_host_backend(setup.plan, {.threads = threads});
  setup.backend->load_weights(0, *setup.source, nullptr);
  if (setup.adapter != nullptr) setup.backend->load_adapter(0, 0, *setup.adapter, 1.0F);

  for (std::int64_t i = 0; i < request.kv_tokens; ++i) {
    setup.tokens.push_back(static_cast<std::int32_t>((i * 7919 + 13) % spec.vocabulary));
  }
  setup.pages.resize(static_cast<std::size_t>(setup.plan.page_count));
  std::iota(setup.pages.begin(), setup.pages.end(), 0);
  setup.prompt_tokens = options.prompt_tokens;
  return setup;
}

/// The SIMD product of layer 0's down projection against plain maths, within its error bound.
void check_one_product(const WeightSource& source) {
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const WeightTensor& tensor = source.tensors()[i];
    if (tensor.row.part != Part::down || tensor.row.layer != 0) continue;
    std::vector<std::byte> region(tensor.bytes);
    source.read(i, region);
    const Matrix w = view_of(tensor.row.rows, tensor.row.columns, tensor.storage, region.data());
    std::vector<float> x(static_cast<std::size_t>(w.columns)), y(static_cast<std::size_t>(w.rows)), want(y.size());
    for (std::size_t c = 0; c < x.size(); ++c) x[c] = std::sin(static_cast<float>(c));
    std::vector<float> packed(static_cast<std::size_t>(host::packed_columns(w.columns)));
    host::pack(host::packing_of(w), x.data(), w.columns, packed.data());
    host::matmul(w, packed.data(), 1, 0, w.rows, y.data(), w.rows);
    std::vector<double> magnitudes(y.size());
    plain::matvec(w, x, want, magnitudes);
    for (std::size_t r = 0; r < y.size(); ++r) {
      const double bound = static_cast<double>(w.columns + 8) * std::numeric_limits<float>::epsilon() * magnitudes[r];
      if (!(std::abs(double{y[r]} - want[r]) <= bound))
        throw Error(Code::internal,
                    fmt::format("Row {} of {} is {} where plain maths gives {}", r, tensor.row.name, y[r], want[r]));
    }
    return;
  }
}

StepSequence sequence_of(const Setup& setup, std::int64_t first, std::int64_t count, const Sampling& sampling) {
  StepSequence sequence;
  sequence.tokens = std::span(setup.tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  sequence.first_position = first;
  sequence.pages = setup.pages;
  sequence.adapter_slot = setup.adapter == nullptr ? -1 : 0;
  sequence.sample = true;
  sequence.rules.usable_vocabulary = setup.plan.bases[0].spec.vocabulary;
  sequence.rules.sampling = &sampling;
  return sequence;
}

void expect_finite(const StepOutcome& outcome) {
  if (!outcome.finite)
    throw Error(Code::non_finite,
                fmt::format("Layer {} of the model gave a number that is not finite", outcome.bad_layer));
}

/// Seconds of the whole prompt, in chunks, the last token sampled.
double time_prefill(const Setup& setup, const Sampling& sampling) {
  const auto start = Clock::now();
  for (std::int64_t done = 0; done < setup.prompt_tokens;) {
    const std::int64_t count =
        std::min<std::int64_t>(setup.plan.limits.prefill_chunk_tokens, setup.prompt_tokens - done);
    StepSequence sequence = sequence_of(setup, done, count, sampling);
    sequence.sample = done + count == setup.prompt_tokens;
    expect_finite(setup.backend->prefill(0, sequence));
    done += count;
  }
  return seconds_since(start);
}

/// Appends the seconds of each decode step after the prompt, greedy sampling included.
void time_decode(const Setup& setup, const Sampling& sampling, std::vector<double>& samples) {
  for (auto position = static_cast<std::int64_t>(setup.prompt_tokens);
       position < static_cast<std::int64_t>(setup.tokens.size()); ++position) {
    const StepSequence sequence = sequence_of(setup, position, 1, sampling);
    StepOutcome outcome;
    const auto start = Clock::now();
    setup.backend->decode(0, {&sequence, 1}, {&outcome, 1});
    samples.push_back(seconds_since(start));
    expect_finite(outcome);
  }
}

/// Bytes one decode step must read: every matrix once (of the embedding one row, unless it is the head too), the
/// adapter, and the keys and values of the middle of the run.
double bytes_per_token(const Setup& setup) {
  const ModelSpec& spec = setup.source->spec();
  double bytes = 0;
  for (const WeightTensor& tensor : setup.source->tensors()) {
    const bool one_row = tensor.row.part == Part::embedding && !spec.tied_head;
    bytes += static_cast<double>(tensor.bytes) / (one_row ? static_cast<double>(spec.vocabulary) : 1.0);
  }
  if (setup.adapter != nullptr) bytes += static_cast<double>(setup.adapter->spec().bytes);
  const double context = (setup.prompt_tokens + static_cast<double>(setup.tokens.size())) / 2;
  return bytes + context * static_cast<double>(setup.plan.models[0].kv_bytes_per_token);
}

std::string storage_text(const WeightSource& source, Part part) {
  for (const WeightTensor& tensor : source.tensors()) {
    if (tensor.row.part != part) continue;
    const StorageSpec& spec = tensor.storage;
    if (!is_quantised(spec.storage)) return std::string(name_of(spec.storage));
    return fmt::format("{} block {}{}", name_of(spec.storage), spec.block_size, spec.nested ? " double" : "");
  }
  return "tied";
}

}  // namespace

void run_host_bench(const HostBenchOptions& options) {
  const int threads = options.threads > 0 ? options.threads : host::available_cores();
  const Setup setup = set_up(options, threads);
  check_one_product(*setup.source);

  const std::size_t buffer = std::max(std::size_t{512} << 20, 8 * last_level_cache_bytes());
  const Spread read = seconds_per_byte_read(threads, buffer, std::max(options.repeats, 3));
  const Sampling greedy;
  std::vector<double> prefill_samples, decode_samples;
  (void)time_prefill(setup, greedy);  // Warms caches and page tables; not counted.
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    prefill_samples.push_back(time_prefill(setup, greedy));
    time_decode(setup, greedy, decode_samples);
  }
  const Spread prefill = spread_of(prefill_samples);
  const Spread decode = spread_of(decode_samples);
  const double bytes = bytes_per_token(setup);
  const double share = bytes * read.median / decode.median;
  const double best_share = bytes * read.best / decode.best;

  if (options.json) {
    const nlohmann::json result = {
        {"model", setup.source->name()},
        {"backend", setup.backend->description()},
        {"linear", storage_text(*setup.source, Part::down)},
        {"head", storage_text(*setup.source, Part::head)},
        {"embedding", storage_text(*setup.source, Part::embedding)},
        {"threads", threads},
        {"read_bytes_per_second", {{"median", 1 / read.median}, {"best", 1 / read.best}}},
        {"bytes_per_token", bytes},
        {"decode_tokens_per_second",
         {{"median", 1 / decode.median},
          {"low", 1 / decode.high},
          {"high", 1 / decode.low},
          {"best", 1 / decode.best}}},
        {"share_of_read_bandwidth", {{"median", share}, {"best", best_share}}},
        {"prefill_tokens_per_second",
         {{"median", options.prompt_tokens / prefill.median}, {"best", options.prompt_tokens / prefill.best}}},
        {"prompt_tokens", options.prompt_tokens},
        {"decode_tokens", options.decode_tokens},
        {"repeats", options.repeats}};
    fmt::print("{}\n", result.dump());
    return;
  }
  fmt::print("{} on {}; linear {}, head {}, embedding {}\n", setup.source->name(), setup.backend->description(),
             storage_text(*setup.source, Part::down), storage_text(*setup.source, Part::head),
             storage_text(*setup.source, Part::embedding));
  fmt::print("{} prompt tokens, {} decoded, {} repeats; medians (quartiles), best\n\n", options.prompt_tokens,
             options.decode_tokens, options.repeats);
  fmt::print("| what | median | quartiles | best |\n|---|---|---|---|\n");
  const auto row = [](const char* what, const char* unit, double scale, const Spread& s) {
    fmt::print("| {} | {:.1f} {} | {:.1f} - {:.1f} | {:.1f} |\n", what, scale / s.median, unit, scale / s.high,
               scale / s.low, scale / s.best);
  };
  row("memory read", "GB/s", 1e-9, read);
  row("decode", "tokens/s", 1, decode);
  row("weights, adapter and KV read", "GB/s", bytes * 1e-9, decode);
  fmt::print("| share of memory read | {:.0f} % | | {:.0f} % |\n", 100 * share, 100 * best_share);
  row("prefill", "tokens/s", options.prompt_tokens, prefill);
  fmt::print("\nA token reads {}.\n", human_bytes(static_cast<std::uint64_t>(bytes)));
}

}  // namespace duet::bench
