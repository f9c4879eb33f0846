#pragma once

#include <vector>

#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/scratch.h"
#include "engine/backend.h"

/// Base weights on the card: where they lie, and their way there.
namespace duet::cuda {

/// A base model by place. Vectors are float32 of one row; a tied head is the embedding's view.
struct BaseWeights {
  std::vector<DeviceMatrix> places;
  const DeviceMatrix& at(Part part, int layer) const { return places[place_of(part, layer)]; }
  const float* vector(Part part, int layer) const {
    return reinterpret_cast<const float*>(places[place_of(part, layer)].matrix.data);
  }
};

/// Views of the tensors of `base`, none loaded yet. `arena` is the arena's start; `host_embedding` pinned memory for
/// the embedding of a base that keeps it on the host, else null.
BaseWeights bind_weights(const PlannedBase& base, std::byte* arena, std::byte* host_embedding);

/// Pinned buffers, reused for every tensor.
struct LoadBuffers {
  std::span<std::byte> pinned[2];  ///< Each as long as staging.raw.
  Staging staging;
  cudaStream_t stream = nullptr;
  cudaEvent_t copied[2] = {};
};

/// Streams every tensor of `source` to its place: what the file holds goes up through pinned buffers, is quantised
/// where asked for and put in tiles on the card; only what needs the host's own loader is read whole first. Throws what
/// the source throws; Error(non_finite) naming the tensor.
void load_weights(const PlannedBase& base, const WeightSource& source, const LoadBuffers& buffers, BaseWeights& weights,
                  const LoadProgress& progress);

}  // namespace duet::cuda
