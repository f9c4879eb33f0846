#pragma once

#include <cstdint>
#include <span>

#include "engine/host/host_weights.h"
#include "engine/host/row_group.h"
#include "engine/host/thread_pool.h"
#include "engine/model.h"
#include "engine/plan.h"

/// What a Gated DeltaNet layer does between its matrices, token by token as the recurrence is written.
namespace duet::host {

/// T: rows of a step. Empty without DeltaNet.
struct DeltaScratch {
  std::span<float> input;   ///< [T, channels]  queries, keys, values as projected
  std::span<float> mixed;   ///< [T, channels]  behind the convolution
  std::span<float> gate;    ///< [T, value_width]  of the output; then the gated output
  std::span<float> decay;   ///< [T, value_heads]  as projected, then the factor of the memory
  std::span<float> rate;    ///< [T, value_heads]  as projected, then how much of an error is put right
  std::span<float> output;  ///< [T, value_width]
};

DeltaScratch carve_delta_scratch(const DeltaSpec& spec, std::size_t rows, Carver& carver);

/// From what the layer's four matrices gave (input, gate, decay, rate) to what its last one reads (`gate`), taking the
/// new tokens into the states of `groups`. `delta_layer` counts DeltaNet layers only. Allocates nothing.
void run_delta(const ModelSpec& spec, const BaseWeights& base, int layer, int delta_layer, ThreadPool& threads,
               const DeltaScratch& scratch, std::span<const RowGroup> groups);

}  // namespace duet::host
