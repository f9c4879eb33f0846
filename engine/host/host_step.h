#pragma once

#include <cstdint>
#include <span>

#include "engine/backend.h"
#include "engine/host/delta_step.h"
#include "engine/host/host_weights.h"
#include "engine/host/row_group.h"
#include "engine/host/thread_pool.h"
#include "engine/plan.h"

/// One step of one decoder on the host: the way of the numbers from token ids to logits and
/// hidden rows.
namespace duet::host {

/// What a step scribbles on; valid inside one step, shared by all models. T: rows of a step, at most
/// max(prefill_chunk_tokens, max_batch_sequences); every row is one token of one sequence.
struct StepScratch {
  std::span<float> residual;        ///< [T, hidden]
  std::span<float> normed;          ///< [T, hidden]
  std::span<float> packed;          ///< [T, widest input, padded]  activations as most matrices read them
  std::span<float> packed_nibbles;  ///< [T, widest input, padded]  activations as 4-bit matrices read them
  std::span<float> query_gate;      ///< [T, heads, query and gate, head_size]  with ModelSpec::output_gate
  std::span<float> query;           ///< [T, query_width]
  std::span<float> key;             ///< [T, kv_width]
  std::span<float> value;           ///< [T, kv_width]
  std::span<float> attended;        ///< [T, query_width]
  std::span<float> gate;            ///< [T, mlp]
  std::span<float> up;              ///< [T, mlp]
  std::span<float> projected;       ///< [T, hidden]  before it joins the residual stream
  std::span<float> lora;            ///< [T, kMostProjections * max_adapter_rank]  A x
  DeltaScratch delta;               ///< Of hybrids.
  std::span<float> cosine;          ///< [T, rotated_size / 2]
  std::span<float> sine;            ///< [T, rotated_size / 2]
  std::span<float> head_input;      ///< [T, hidden]  rows whose logits are wanted
  std::span<float> logits;          ///< [max_batch_sequences, vocabulary]
  std::span<float> sampling;        ///< What `sample` needs.
  std::span<int> bad_layer;         ///< [T]  first layer whose numbers were not finite, or kNoBadLayer
};

constexpr int kMostProjections = 4;  ///< The four matrices of a DeltaNet layer share one input.

/// Counts (`carver` without a base) or places the scratch of one model's steps.
StepScratch carve_scratch(const ModelSpec& spec, const StepLimits& limits, Carver& carver);

struct DecoderView {
  const ModelSpec& spec;
  const BaseWeights& base;
  std::span<const float> inverse_frequencies;  ///< [rotated_size / 2]
};

/// Runs the new tokens of all groups through the model, appends their keys and values to the pages, takes them into the
/// recurrent states, and fills outcomes[i] for groups[i]. `head_groups` is work space for as many groups. Allocates
/// nothing.
void run_step(const DecoderView& decoder, ThreadPool& threads, const StepScratch& scratch,
              std::span<const RowGroup> groups, std::span<RowGroup> head_groups, int max_adapter_rank,
              std::span<StepOutcome> outcomes);

}  // namespace duet::host
