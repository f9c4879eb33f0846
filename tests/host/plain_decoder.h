#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/weight_source.h"

namespace duet::test {

/// The oracle: logits [tokens, vocabulary] of a whole prompt by host_math alone, an operation after the other, no
/// pages, no chunks, no threads. `adapter` may be null; `adapter_scale` multiplies every module's scale.
std::vector<float> plain_logits(const WeightSource& source, std::span<const std::int32_t> tokens,
                                const AdapterSource* adapter = nullptr, float adapter_scale = 1.0F);

/// The same as far as the final norm: [tokens, hidden].
std::vector<float> plain_hidden(const WeightSource& source, std::span<const std::int32_t> tokens,
                                const AdapterSource* adapter = nullptr, float adapter_scale = 1.0F);

}  // namespace duet::test
