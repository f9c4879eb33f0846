#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace duet::bench {

/// Of repeated measurements. The median stands for them; the quarters beside it say how far it can be trusted.
struct Spread {
  double median = 0;
  double low = 0;   ///< First quartile.
  double high = 0;  ///< Third quartile.
  double best = 0;  ///< Smallest.
};

/// Of at least one sample.
inline Spread spread_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    return samples[static_cast<std::size_t>(std::lround(share * static_cast<double>(samples.size() - 1)))];
  };
  return {.median = at(0.5), .low = at(0.25), .high = at(0.75), .best = samples.front()};
}

}  // namespace duet::bench
