#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/plan.h"
#include "engine/sampler.h"
#include "engine/weight_source.h"

/// A device. A step is its unit: whole model steps, so that a backend may fuse across anything within one.
/// Nothing is allocated after `start`, except load_adapter's temporary host buffers.
namespace duet {

/// One sequence's part of a step. All spans belong to the caller and are read during the call only.
struct StepSequence {
  std::span<const std::int32_t> tokens;  ///< New tokens, at positions first_position, first_position + 1, ...
  std::int64_t first_position = 0;       ///< Tokens already in the pages.
  std::span<const std::int32_t>
      pages;                   ///< Page ids; page p holds positions [p * tokens_per_page, (p + 1) * tokens_per_page).
  int state_slot = -1;         ///< Hybrids: where the recurrent state lies, the sequence's own while it is in progress.
                               ///< A step from position 0 begins a new state there, whatever lay in it; any other
                               ///< continues the last step's. -1: the model has no state.
  int adapter_slot = -1;       ///< -1: the base alone.
  float adapter_scale = 1.0F;  ///< Multiplies every module's scale; must be the load-time scale for DoRA.
  bool sample = false;         ///< Sample from the last new token's logits.
  SampleRules rules;           ///< Read when `sample`.
  float* logits =
      nullptr;  ///< When not null: [tokens.size(), vocabulary] raw float32 logits are written (tests, scoring).
  std::span<const int> hidden_rows;  ///< Indices into `tokens`, ascending: what a head of another kind reads.
  float* hidden = nullptr;           ///< [hidden_rows.size(), hidden] behind the final norm, float32.
};

/// Where a non-finite number first appeared.
constexpr int kLayerEmbedding = -1;
struct StepOutcome {
  bool finite = true;
  int bad_layer = 0;  ///< kLayerEmbedding, 0 ... layers - 1, or layers for final norm and head.
  SampleResult sampled;
};

/// One row for an encoder with a decision head. Spans and pointers belong to the caller.
struct EncoderRow {
  std::span<const std::int32_t> tokens;   ///< At most the model's longest row.
  std::span<const std::int32_t> markers;  ///< Positions of the options' tokens in the row, at least one.
  int question_kind = 0;                  ///< Row of the type embedding.
  float* option_logits = nullptr;         ///< [markers.size()]
  float* act_logits = nullptr;            ///< [act_outputs], or null.
  float* encoded = nullptr;               ///< When not null: [tokens.size(), hidden] behind the final norm (tests).
};

using LoadProgress = std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)>;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string description() const = 0;  ///< "host (2 threads, AVX3)"

  /// Fills the regions of plan.bases[base] from `source`. May run threads.
  virtual void load_weights(int base, const WeightSource& source, const LoadProgress& progress) = 0;

  /// Called once when every base is loaded, before the first step: what can only be made ready then (captured graphs).
  /// Throws Error(no_room) when the device took more than the budget allows.
  virtual void start() {}

  /// Fills slot `slot` of model `model`. `scale` is the load-time scale (AdapterOptions::scale), needed for DoRA's row
  /// norms. Not called while a step of that model runs.
  virtual void load_adapter(int model, int slot, const AdapterSource& source, float scale) = 0;
  virtual void drop_adapter(int model, int slot) = 0;

  /// Seconds that the device did nothing between the end of the step before the last one and the begin of the last one;
  /// empty when the backend does not know better than the clock.
  virtual std::optional<double> idle_before_last_step() const { return std::nullopt; }

  /// One span of one sequence; tokens.size() <= limits.prefill_chunk_tokens.
  virtual StepOutcome prefill(int model, const StepSequence& sequence) = 0;

  /// One new token for each sequence, all of one model; sequences.size() <= limits.max_batch_sequences.
  virtual void decode(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes) = 0;

  /// Rows of an encoder, one batch; rows.size() >= 1. `outcomes[i].bad_layer` counts decision layers behind the
  /// encoder's. Only where BackendFacts::encoders says so.
  virtual void encode(int model, std::span<const EncoderRow> rows, std::span<StepOutcome> outcomes);
};

struct HostOptions {
  int threads = 0;  ///< 0: all cores.
};

BackendFacts host_facts();
std::unique_ptr<Backend> make_host_backend(const Plan& plan, const HostOptions& options);

}  // namespace duet
