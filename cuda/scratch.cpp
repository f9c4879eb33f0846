#include "cuda/scratch.h"

#include <algorithm>

namespace duet::cuda {
namespace {

std::size_t rows_of(const StepLimits& limits) {
  return static_cast<std::size_t>(std::max(limits.prefill_chunk_tokens, limits.max_batch_sequences));
}

std::int64_t widest_input(const ModelSpec& spec) {
  return std::max({std::int64_t{spec.hidden}, std::int64_t{spec.query_width()}, std::int64_t{spec.mlp}});
}

}  // namespace

StepInput carve_input(const StepLimits& limits, Carver& carver) {
  const auto sequences = static_cast<std::size_t>(limits.max_batch_sequences);
  const auto context = static_cast<std::size_t>(limits.max_context_tokens);
  const std::size_t pages_of_one = context / kFewestTokensPerPage + 1;
  StepInput input;
  input.rows = carver.take_array<StepRow>("step rows", rows_of(limits));
  input.sample_rows = carver.take_array<SampleRow>("sample rows", sequences);
  input.pages = carver.take_array<std::int32_t>("page lists", sequences * pages_of_one);
  input.history = carver.take_array<std::int32_t>("history", sequences * (context + 1));
  input.biases = carver.take_array<SampleBias>("logit biases", sequences * kMostBiases);
  return input;
}

StepOutput carve_output(const StepLimits& limits, Carver& carver) {
  StepOutput output;
  output.bad_layer = carver.take_array<std::int32_t>("bad layers", rows_of(limits));
  output.sampled = carver.take_array<SampledRow>("sampled", static_cast<std::size_t>(limits.max_batch_sequences));
  return output;
}

SplitSums split_sums_of(const ModelSpec& spec, const StepLimits& limits) {
  const auto rows = static_cast<std::int64_t>(rows_of(limits));
  const int sequences = limits.max_batch_sequences;
  const std::int64_t outputs = std::max(
      {std::int64_t{spec.query_width()} + 2 * spec.kv_width(), std::int64_t{2} * spec.mlp, std::int64_t{spec.hidden}});
  SplitSums sums;
  sums.floats = std::max(project_scratch_floats(rows, outputs), project_scratch_floats(sequences, spec.vocabulary));
  sums.counters =
      std::max(project_scratch_counters(rows, outputs), project_scratch_counters(sequences, spec.vocabulary));
  sums.attention_floats = attend_scratch_floats(sequences, spec.query_heads, spec.head_size, limits.max_context_tokens);
  sums.attention_counters = attend_scratch_counters(sequences, spec.kv_heads);
  return sums;
}

StepScratch carve_scratch(const ModelSpec& spec, const StepLimits& limits, Carver& carver) {
  const std::size_t rows = rows_of(limits);
  const int sequences = limits.max_batch_sequences;
  const auto floats = [&](std::string_view name, std::size_t count, std::int64_t each) {
    return carver.take_array<float>(name, count * static_cast<std::size_t>(each));
  };
  StepScratch scratch;
  scratch.input = carve_input(limits, carver);
  scratch.output = carve_output(limits, carver);
  scratch.residual = floats("residual", rows, spec.hidden);
  scratch.prepared = carver.take_array<std::uint16_t>(
      "prepared", rows * static_cast<std::size_t>(prepared_stride(widest_input(spec))));
  scratch.factors = floats("factors", rows, 1);
  scratch.query = floats("query", rows, spec.query_width());
  scratch.key = floats("key", rows, spec.kv_width());
  scratch.value = floats("value", rows, spec.kv_width());
  scratch.attended = floats("attended", rows, spec.query_width());
  scratch.gate = floats("gate", rows, spec.mlp);
  scratch.up = floats("up", rows, spec.mlp);
  scratch.lora = floats("lora", rows, std::int64_t{kMostProjectionParts} * limits.max_adapter_rank);
  scratch.logits = floats("logits", static_cast<std::size_t>(sequences), spec.vocabulary);
  const SplitSums sums = split_sums_of(spec, limits);
  scratch.partial_sums = floats("partial sums", sums.floats, 1);
  scratch.attention_partial = floats("attention partial", sums.attention_floats, 1);
  scratch.sampling = carver.take_array<std::byte>("sampling", sample_scratch_bytes(spec.vocabulary, sequences));
  return scratch;
}

Staging carve_staging(const ModelSpec& spec, Carver& carver) {
  // Sixteen rows of float32, the widest a file may hold them.
  const std::size_t fewest = static_cast<std::size_t>(kTileRows * widest_input(spec)) * sizeof(float);
  const std::size_t bytes = std::max(kStagingBytes, fewest);
  Staging staging;
  staging.raw = carver.take_array<std::byte>("staging", bytes);
  staging.blocks = carver.take_array<std::byte>("staged blocks", bytes);
  staging.largest = carver.take_array<float>("largest", 1);
  staging.first_bad = carver.take_array<std::int64_t>("first bad", 1);
  return staging;
}

std::size_t scratch_bytes(const ModelSpec& spec, const StepLimits& limits) {
  Carver step, load;
  (void)carve_scratch(spec, limits, step);
  (void)carve_staging(spec, load);
  return std::max(step.used(), load.used());
}

}  // namespace duet::cuda
