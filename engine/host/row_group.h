#pragma once

#include <cstdint>

#include "engine/backend.h"
#include "engine/host/host_weights.h"
#include "engine/host/kv_view.h"
#include "engine/host/state_view.h"

namespace duet::host {

/// Neighbouring rows of a step that belong to one sequence.
struct RowGroup {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  const StepSequence* sequence = nullptr;
  const HostAdapter* adapter = nullptr;  ///< Null: the base alone.
  KvView kv{};
  StateView state{};
};

}  // namespace duet::host
