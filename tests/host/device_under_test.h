#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/backend.h"
#include "tests/support/compare.h"

/// Tests of whole steps run on any backend: the program they are linked into says which (host_under_test.cpp,
/// tests/cuda/card_under_test.cpp).
namespace duet::test {

struct DeviceUnderTest {
  std::string name;
  BackendFacts facts;
  std::unique_ptr<Backend> (*make)(const Plan& plan, int threads) = nullptr;
  double step_tolerance = 0;    ///< Against the plain decoder, relative to the largest logit.
  double golden_tolerance = 0;  ///< Against the reference stack in float32, likewise.
  /// Every sum is taken in one order, however many rows a step has.
  bool one_order_of_sums = true;
};

/// Why there is no such device here; tests skip then.
std::optional<std::string> missing_device();
const DeviceUnderTest& device_under_test();

#define DUET_NEEDS_DEVICE() \
  if (const auto why = ::duet::test::missing_device()) GTEST_SKIP() << *why

/// The same bits where the device has one order of sums, else within its tolerance.
inline testing::AssertionResult same_or_close(std::span<const float> got, std::span<const float> want) {
  const DeviceUnderTest& device = device_under_test();
  return device.one_order_of_sums ? same_bits(got, want) : all_within_relative(got, want, device.step_tolerance);
}

}  // namespace duet::test
