#include "cuda/cuda_backend.h"
#include "tests/host/device_under_test.h"

namespace duet::test {

std::optional<std::string> missing_device() { return cuda::why_unavailable(); }

const DeviceUnderTest& device_under_test() {
  static const DeviceUnderTest card{
      .name = "cuda",
      .facts = cuda::cuda_facts(KvStorage::f16),
      .make = [](const Plan& plan, int) { return cuda::make_cuda_backend(plan); },
      // Operands are rounded to 16 bits (2^-11 each) before every matrix product, layer after layer.
      .step_tolerance = 1e-2,
      .golden_tolerance = 1e-2,
      .one_order_of_sums = false};
  return card;
}

}  // namespace duet::test
