#pragma once

#include "cuda/adapters.h"
#include "cuda/launch.h"
#include "cuda/scratch.h"
#include "cuda/weights.h"

/// One step of one decoder on the card: the order of launches from token ids to sampled tokens. Launches only; what it
/// is given stays valid until the stream has run, so a step can be captured in a graph.
namespace duet::cuda {

struct DecoderView {
  const ModelSpec& spec;
  const BaseWeights& base;
  AdapterTable adapters;
  const float* inverse_frequencies = nullptr;  ///< Device, [head_size / 2].
  KvPool kv;
  std::uint32_t* counters = nullptr;            ///< ModelState's.
  std::uint32_t* attention_counters = nullptr;  ///< Likewise.
  std::byte* sample_counters = nullptr;         ///< Likewise.
  std::int64_t max_context_tokens = 0;
  int max_adapter_rank = 0;
  int max_batch_sequences = 0;
};

struct StepShape {
  int rows = 0;
  bool lora = false;     ///< Some row has an adapter.
  bool prefill = false;  ///< Rows are neighbours of one sequence, from `first_position` on; else each its own.
  std::int64_t first_position = 0;
};

/// Residual stream of all rows through all layers; keys and values appended to their pages.
void launch_layers(const DecoderView& decoder, const StepScratch& scratch, const StepShape& shape, Stream stream);

/// Final norm and head of rows [first_row, first_row + rows), rows at most max_batch_sequences; logits to
/// scratch.logits [rows, vocabulary].
void launch_head(const DecoderView& decoder, const StepScratch& scratch, const StepShape& shape, int first_row,
                 int rows, Stream stream);

/// Tokens of the first `rows` rows of scratch.logits by scratch.input.sample_rows.
void launch_sampling(const DecoderView& decoder, const StepScratch& scratch, int rows, Stream stream);

}  // namespace duet::cuda
