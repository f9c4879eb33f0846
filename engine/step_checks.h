#pragma once

#include <cstdint>
#include <span>

#include "engine/backend.h"
#include "engine/plan.h"

/// What every backend checks of a step before it touches memory: a wrong page or token id would be a read out of range.
namespace duet {

/// Throws Error(internal) where the engine core broke a promise, Error(invalid_argument) for a token the model lacks.
void check_prefill(const Plan& plan, int model, const StepSequence& sequence);
void check_decode(const Plan& plan, int model, std::span<const StepSequence> sequences,
                  std::span<const StepOutcome> outcomes);

void check_encode(const Plan& plan, int model, std::span<const EncoderRow> rows, std::span<const StepOutcome> outcomes);

/// Throws Error(no_room) when an adapter is larger than its slot, Error(internal) when there is no such slot.
void check_adapter_fits(const Plan& plan, int model, int slot, const AdapterSource& source);

/// Throws Error(internal) when `source` is not what plan.bases[base] was planned with.
void check_source(const Plan& plan, int base, const WeightSource& source);

/// Throws Error(unsupported): DoRA's row norms belong to the scale the adapter was loaded with.
void check_dora_scale(float load_scale, float asked_scale);

}  // namespace duet
