#include "tests/support/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace duet::test {
namespace {

testing::AssertionResult failure_of_sizes(std::size_t got, std::size_t want) {
  if (got != want) return testing::AssertionFailure() << fmt::format("{} values came, {} were wanted", got, want);
  return testing::AssertionFailure() << "nothing was compared: both are empty";
}

template <class BoundOf>
testing::AssertionResult judge(std::span<const float> got, std::span<const float> want, BoundOf bound_of) {
  if (got.size() != want.size() || got.empty()) return failure_of_sizes(got.size(), want.size());
  std::size_t bad = 0, worst_index = 0;
  double worst_excess = -1;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(double{got[i]} - double{want[i]});
    if (got[i] == want[i] || error <= bound_of(i))
      continue;  // false when either is NaN, and for infinities that differ
    ++bad;
    const double excess = std::isfinite(error) ? error - bound_of(i) : HUGE_VAL;
    if (excess > worst_excess) {
      worst_excess = excess;
      worst_index = i;
    }
  }
  if (bad == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format(
             "{} of {} values out of bounds; worst at [{}]: got {:.9g}, want {:.9g}, bound {:.3g}", bad, got.size(),
             worst_index, got[worst_index], want[worst_index], bound_of(worst_index));
}

}  // namespace

testing::AssertionResult all_within(std::span<const float> got, std::span<const float> want, double bound) {
  return judge(got, want, [bound](std::size_t) { return bound; });
}

testing::AssertionResult all_within(std::span<const float> got, std::span<const float> want,
                                    std::span<const double> bounds) {
  if (bounds.size() != want.size()) return failure_of_sizes(bounds.size(), want.size());
  return judge(got, want, [bounds](std::size_t i) { return bounds[i]; });
}

testing::AssertionResult all_within_relative(std::span<const float> got, std::span<const float> want, double relative) {
  double scale = 0;
  for (const float value : want)
    if (std::isfinite(value)) scale = std::max(scale, std::abs(double{value}));
  return all_within(got, want, relative * scale);
}

testing::AssertionResult same_bits(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size() || got.empty()) return failure_of_sizes(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(want[i])) continue;
    return testing::AssertionFailure() << fmt::format("bits differ first at [{}]: got {:.9g}, want {:.9g}", i, got[i],
                                                      want[i]);
  }
  return testing::AssertionSuccess();
}

}  // namespace duet::test
