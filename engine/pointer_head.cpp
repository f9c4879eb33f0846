#include "engine/pointer_head.h"

#include <cmath>
#include <cstddef>

namespace duet {
namespace {

/// W x + b
std::vector<double> projected(std::span<const float> weight, std::span<const float> bias, std::span<const float> x) {
  std::vector<double> y(bias.begin(), bias.end());
  for (std::size_t row = 0; row < y.size(); ++row)
    for (std::size_t i = 0; i < x.size(); ++i) y[row] += static_cast<double>(weight[row * x.size() + i]) * double{x[i]};
  return y;
}

}  // namespace

void pointer_logits(const PointerHead& head, std::span<const float> decide, std::span<const float> closes,
                    std::span<float> logits) {
  const auto hidden = static_cast<std::size_t>(head.hidden);
  const std::vector<double> query = projected(head.query_weight, head.query_bias, decide.first(hidden));
  for (std::size_t option = 0; option < logits.size(); ++option) {
    const std::vector<double> key = projected(head.key_weight, head.key_bias, closes.subspan(option * hidden, hidden));
    double sum = 0;
    for (std::size_t i = 0; i < key.size(); ++i) sum += key[i] * query[i];
    logits[option] = static_cast<float>(sum / std::sqrt(static_cast<double>(head.dims)));
  }
}

}  // namespace duet
