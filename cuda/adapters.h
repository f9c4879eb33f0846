#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "cuda/launch.h"
#include "cuda/weights.h"
#include "engine/adapter.h"

/// A model's adapters on the card: the table that kernels look things up in, and how a slot is filled.
namespace duet::cuda {

/// What the host must know of one slot to launch a step.
struct AdapterSlot {
  bool loaded = false;
  bool has_dora = false;
  float load_scale = 1.0F;
};

/// The region of one model's state: what must outlive a step.
struct ModelState {
  std::span<AdapterPart> table;                 ///< [slots * places]
  std::span<float> inverse_frequencies;         ///< [head_size / 2]
  std::span<std::uint32_t> counters;            ///< Of split sums; zero before and after every launch.
  std::span<std::uint32_t> attention_counters;  ///< Likewise.
  std::span<std::byte> sample_counters;         ///< Likewise.
};
ModelState carve_state(const ModelSpec& spec, const StepLimits& limits, int adapter_slots, Carver& carver);
std::size_t state_bytes(const ModelSpec& spec, const StepLimits& limits, int adapter_slots);

/// Fills slot `slot`: tensors to `region`, DoRA's row scales computed on the card, the slot's part of the table last.
/// Throws Error(bad_file) when a part or layer is none of the model's. Uses temporary host memory; waits for the card.
AdapterSlot load_adapter(const AdapterSource& source, float scale, const ModelSpec& model, const BaseWeights& base,
                         std::byte* region, std::span<AdapterPart> slot_table, Stream stream);

}  // namespace duet::cuda
