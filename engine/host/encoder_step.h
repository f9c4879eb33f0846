#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/backend.h"
#include "engine/host/host_weights.h"
#include "engine/host/thread_pool.h"
#include "engine/plan.h"

/// One row through an encoder and its decision head on the host: from token ids to a logit for each option.
/// ModernBERT: arXiv:2412.13663; the head: github.com/NandhaKishorM/laya.
namespace duet::host {

/// What a row scribbles on. T: the longest row, spec.max_position_tokens.
struct EncoderScratch {
  std::span<float> residual;         ///< [T, hidden]
  std::span<float> normed;           ///< [T, hidden]
  std::span<float> packed;           ///< [T, widest input, padded]
  std::span<float> query_key_value;  ///< [T, 3 hidden]
  std::span<float> query;            ///< [T, hidden]
  std::span<float> keys_values;      ///< [keys and values, heads, T, head size]
  std::span<float> attended;         ///< [T, hidden]
  std::span<float> inner;            ///< [T, max(2 mlp, 4 hidden)]
  std::span<float> projected;        ///< [T, hidden]  before it joins the residual stream
  std::span<float> small;            ///< Vectors of the act head.
};

/// Counts (`carver` without a base) or places the scratch.
EncoderScratch carve_encoder_scratch(const ModelSpec& spec, Carver& carver);

/// Cosines and sines of every position, the same for every row.
struct RotaryTables {
  std::vector<float> cosine, sine;  ///< [2, T, head size / 2]: of layers that see all, then of those that slide.
};
RotaryTables rotary_tables(const ModelSpec& spec);

struct EncoderView {
  const ModelSpec& spec;
  const BaseWeights& base;
  const RotaryTables& rotary;
};

/// Writes row.option_logits (and act_logits, encoded where wanted). Allocates nothing. `outcome.bad_layer` counts
/// decision layers behind the encoder's.
void run_encoder_row(const EncoderView& encoder, ThreadPool& threads, const EncoderScratch& scratch,
                     const EncoderRow& row, StepOutcome& outcome);

}  // namespace duet::host
