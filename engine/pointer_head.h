#pragma once

#include <span>
#include <vector>

/// Kev's head: the hidden row of the decide marker points at the rows of the options' ends,
///     z_j = (K close_j + k) . (Q decide + q) / sqrt(dims)
/// Rows are those behind the backbone's final norm. Float32 in and out, sums in float64.
namespace duet {

struct PointerHead {
  int hidden = 0;
  int dims = 0;
  std::vector<float> query_weight, key_weight;  ///< [dims, hidden]
  std::vector<float> query_bias, key_bias;      ///< [dims]
  double temperature = 1;                       ///< For option_probabilities.
};

/// A logit for each option, before temperature. `decide`: [hidden]; `closes`: [logits.size(), hidden].
void pointer_logits(const PointerHead& head, std::span<const float> decide, std::span<const float> closes,
                    std::span<float> logits);

}  // namespace duet
