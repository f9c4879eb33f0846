#include "tests/support/compare.h"

#include <cmath>
#include <limits>
#include <vector>

namespace duet::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool within(std::vector<float> got, std::vector<float> want, double bound) {
  return static_cast<bool>(all_within(got, want, bound));
}

TEST(Compare, AcceptsEqualAndNearValues) {
  EXPECT_TRUE(within({1, -2, kInfinity}, {1, -2, kInfinity}, 0));
  EXPECT_TRUE(within({1.0005F}, {1}, 1e-3));
}

TEST(Compare, RefusesNanAndMixedInfinities) {
  EXPECT_FALSE(within({kNan}, {1}, 1e9));
  EXPECT_FALSE(within({1}, {kNan}, 1e9));
  EXPECT_FALSE(within({kNan}, {kNan}, 1e9));
  EXPECT_FALSE(within({kInfinity}, {-kInfinity}, 1e9));
  EXPECT_FALSE(within({1}, {kInfinity}, 1e9));
}

TEST(Compare, RefusesSignAndScaleErrors) {
  EXPECT_FALSE(within({-2}, {-1}, 0.5));
  EXPECT_FALSE(within({-1000}, {-1}, 0.5));
}

TEST(Compare, FindsOneWrongElementInAMillion) {
  std::vector<float> want(1'000'000, 1.0F), got = want;
  got[777'777] = 1.01F;
  EXPECT_FALSE(static_cast<bool>(all_within(got, want, 1e-3)));
}

TEST(Compare, RefusesSizesThatDifferAndEmptyComparisons) {
  EXPECT_FALSE(within({1, 2}, {1}, 1));
  EXPECT_FALSE(within({}, {}, 1));
  const std::vector<float> none;
  EXPECT_FALSE(static_cast<bool>(same_bits(none, none)));
  EXPECT_FALSE(static_cast<bool>(all_within_relative(none, none, 1)));
}

TEST(Compare, RelativeBoundFollowsTheLargestWantedValue) {
  const std::vector<float> want{100, 0};
  EXPECT_TRUE(static_cast<bool>(all_within_relative(std::vector<float>{100.009F, 0.009F}, want, 1e-4)));
  EXPECT_FALSE(static_cast<bool>(all_within_relative(std::vector<float>{100, 0.02F}, want, 1e-4)));
}

TEST(Compare, SameBitsTellsZerosApart) {
  EXPECT_FALSE(static_cast<bool>(same_bits(std::vector<float>{0.0F}, std::vector<float>{-0.0F})));
  EXPECT_TRUE(static_cast<bool>(same_bits(std::vector<float>{1.5F}, std::vector<float>{1.5F})));
}

}  // namespace
}  // namespace duet::test
