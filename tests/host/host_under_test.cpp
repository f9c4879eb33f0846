#include "tests/host/device_under_test.h"

namespace duet::test {

std::optional<std::string> missing_device() { return std::nullopt; }

const DeviceUnderTest& device_under_test() {
  static const DeviceUnderTest host{
      .name = "host",
      .facts = host_facts(),
      .make = [](const Plan& plan, int threads) { return make_host_backend(plan, {.threads = threads}); },
      .step_tolerance = 2e-5,  // The step's sums are float32, the plain decoder's float64 rounded after each operation.
      .golden_tolerance = 2e-4,
      .one_order_of_sums = true};
  return host;
}

}  // namespace duet::test
