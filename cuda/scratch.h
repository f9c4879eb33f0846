#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/launch.h"
#include "engine/plan.h"

/// What a step scribbles on, on the card; valid inside one step, shared by all models. T: rows of a step, at most
/// max(prefill_chunk_tokens, max_batch_sequences).
namespace duet::cuda {

/// What the host tells the card before a step. Carved twice by the same lines, in pinned memory and on the card: equal
/// offsets, so that one copy carries the front part and the lists only travel when they are used.
struct StepInput {
  std::span<StepRow> rows;           ///< [T]
  std::span<SampleRow> sample_rows;  ///< [max_batch_sequences]
  std::span<std::int32_t> pages;     ///< Page lists, one behind the other.
  std::span<std::int32_t> history;   ///< For repetition penalties.
  std::span<SampleBias> biases;
};

/// What the card tells the host after a step.
struct StepOutput {
  std::span<std::int32_t> bad_layer;  ///< [T]
  std::span<SampledRow> sampled;      ///< [max_batch_sequences]
};

/// Logit biases that one row of a step may carry.
constexpr std::size_t kMostBiases = 16384;

StepInput carve_input(const StepLimits& limits, Carver& carver);
StepOutput carve_output(const StepLimits& limits, Carver& carver);

struct StepScratch {
  StepInput input;
  StepOutput output;
  std::span<float> residual;          ///< [T, hidden]
  std::span<std::uint16_t> prepared;  ///< [T, widest input] f16
  std::span<float> factors;           ///< [T]
  std::span<float> query;             ///< [T, query_width]
  std::span<float> key;               ///< [T, kv_width]
  std::span<float> value;             ///< [T, kv_width]
  std::span<float> attended;          ///< [T, query_width]
  std::span<float> gate;              ///< [T, mlp]
  std::span<float> up;                ///< [T, mlp]
  std::span<float> lora;              ///< [T, kMostProjectionParts, max_adapter_rank]
  std::span<float> logits;            ///< [max_batch_sequences, vocabulary]
  std::span<float> partial_sums;
  std::span<float> attention_partial;
  std::span<std::byte> sampling;

  PreparedRows prepared_rows() const { return {prepared.data(), factors.data()}; }
};

/// Room for sums that several blocks share, enough for every launch of a step: floats in scratch, counters in the
/// model's state.
struct SplitSums {
  std::size_t floats = 0, counters = 0;
  std::size_t attention_floats = 0, attention_counters = 0;
};
SplitSums split_sums_of(const ModelSpec& spec, const StepLimits& limits);

/// Counts (`carver` without a base) or places the scratch of one model's steps.
StepScratch carve_scratch(const ModelSpec& spec, const StepLimits& limits, Carver& carver);

/// Where weights stand on their way in, laid over the same region before any step runs. `raw`: as the file holds them;
/// `blocks`: quantised, not in tiles yet.
struct Staging {
  std::span<std::byte> raw;
  std::span<std::byte> blocks;
  std::span<float> largest;           ///< [1]
  std::span<std::int64_t> first_bad;  ///< [1]
};
constexpr std::size_t kStagingBytes = std::size_t{8} << 20;
/// At least 16 rows of the widest matrix fit.
Staging carve_staging(const ModelSpec& spec, Carver& carver);

/// The larger of the two.
std::size_t scratch_bytes(const ModelSpec& spec, const StepLimits& limits);

}  // namespace duet::cuda
