#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/model.h"

namespace duet {

/// One sequence's recurrent state in float32: for each DeltaNet layer the memories [value_heads, key_size, value_size],
/// then the tail [convolution - 1, channels] (state_bytes counts the same).
struct StateView {
  float* start = nullptr;
  bool begins = false;  ///< This step begins the state: what lies there is another sequence's and counts as zeros.

  /// [key_size, value_size]; `delta_layer` counts DeltaNet layers only.
  float* memory(const DeltaSpec& d, int delta_layer, int value_head) const {
    return layer(d, delta_layer) + std::int64_t{value_head} * d.key_size * d.value_size;
  }
  /// [convolution - 1, channels], the oldest token first.
  float* tail(const DeltaSpec& d, int delta_layer) const { return memory(d, delta_layer, d.value_heads); }

 private:
  float* layer(const DeltaSpec& d, int delta_layer) const {
    const std::int64_t memories = std::int64_t{d.value_width()} * d.key_size;
    const std::int64_t tail = std::int64_t{d.convolution - 1} * d.channels();
    return start + delta_layer * (memories + tail);
  }
};

}  // namespace duet
