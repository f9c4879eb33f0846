#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>

/// The comparator every numeric test uses. It accepts only what is proved inside the bound: NaN, infinities that
/// differ, sizes that differ and empty comparisons are refused. It is itself tested (compare_test.cpp).
namespace duet::test {

#ifdef __FAST_MATH__
#error "Tests must see NaN: build them without -ffast-math"
#endif

/// Every |got - want| <= bound (absolute, one number).
testing::AssertionResult all_within(std::span<const float> got, std::span<const float> want, double bound);

/// Every |got - want| <= bounds[i].
testing::AssertionResult all_within(std::span<const float> got, std::span<const float> want,
                                    std::span<const double> bounds);

/// Worst |got - want| is at most `relative` times the largest |want| (the tensor's scale). For logits.
testing::AssertionResult all_within_relative(std::span<const float> got, std::span<const float> want, double relative);

/// Every element has the same bits.
testing::AssertionResult same_bits(std::span<const float> got, std::span<const float> want);

}  // namespace duet::test
