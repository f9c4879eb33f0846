#pragma once

#include <cstddef>
#include <vector>

#include "engine/adapter.h"
#include "engine/model.h"
#include "engine/weights.h"

/// Where weights lie: views into the arena, found by place.
namespace duet::host {

/// A base model. Vectors are matrices of one row in float32; what the model lacks has no data. A tied head is the
/// embedding's view.
struct BaseWeights {
  std::vector<Matrix> places;
  const Matrix& at(Part part, int layer) const { return places[place_of(part, layer)]; }
};

/// What an adapter does at one place.
struct PartAdapter {
  Matrix a;                          ///< [rank, in]; none: no LoRA here. On the embedding [rank, vocabulary].
  Matrix b;                          ///< [out, rank]
  const float* bias = nullptr;       ///< [out] inside the scaled term, or null.
  const float* row_scale = nullptr;  ///< [out] DoRA's magnitude over row norm, or null.
  float scale = 0;                   ///< The module's, without the request's.
  Matrix replacement;                ///< Stands in for the base's tensor, or none.
};

struct HostAdapter {
  bool loaded = false;
  bool has_dora = false;
  float load_scale = 1.0F;
  std::vector<PartAdapter> places;  ///< Sized when the backend is made.
  const PartAdapter& at(Part part, int layer) const { return places[place_of(part, layer)]; }
};

/// What stands at a place for a sequence with this adapter, which may be null.
const Matrix& weight_of(const BaseWeights& base, const HostAdapter* adapter, Part part, int layer);

/// Views of an adapter whose tensors lie in `slot` as `spec` says. Throws Error(bad_file) when a part or layer is none
/// of the model's.
void bind_adapter(const AdapterSpec& spec, const ModelSpec& model, std::string_view name, std::byte* slot,
                  HostAdapter& adapter);

/// Replaces every DoRA magnitude m [out] in the slot by m / |W + scale * B A|, the length taken of each output row over
/// the unpacked weights. On the embedding the rows are those of its transpose [hidden, vocabulary].
void compute_dora_scales(const AdapterSpec& spec, const BaseWeights& base, std::byte* slot, HostAdapter& adapter);

}  // namespace duet::host
