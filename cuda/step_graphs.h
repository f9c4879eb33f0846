#pragma once

#include <span>
#include <vector>

#include "cuda/decoder_step.h"
#include "cuda/device.h"

/// Decode steps as CUDA graphs, one a shape, captured at start: a step is then one launch.
namespace duet::cuda {

/// Numbers of rows that graphs exist for: powers of two below the largest batch, and the largest batch.
std::vector<int> graph_sizes(int max_batch_sequences);

class StepGraphs {
 public:
  StepGraphs() = default;
  /// Captures layers, head and sampling of every size, without and, when the model has adapter slots, with adapters.
  StepGraphs(const DecoderView& decoder, const StepScratch& scratch, int max_batch_sequences, bool has_adapter_slots,
             Stream stream);

  /// The rows that the graph for `sequences` computes: at least as many.
  int rows_for(int sequences) const;
  void launch(int rows, bool lora, Stream stream) const;

 private:
  struct Entry {
    int rows = 0;
    GraphExecHandle plain, with_adapters;
  };
  std::vector<Entry> entries_;
};

/// What the graphs of one model take of the card beside the arena: nodes counted, bytes a node measured
/// (docs/memory.md).
std::size_t graph_bytes(const ModelSpec& spec, const StepLimits& limits);

}  // namespace duet::cuda
