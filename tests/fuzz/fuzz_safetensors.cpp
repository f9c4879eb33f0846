// A safetensors file: opened, or refused with an Error; every tensor of an opened one can be read to its end.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "duet/error.h"
#include "loaders/safetensors.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/support/test_data.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const duet::test::TemporaryDirectory folder;
  const auto path = folder.path() / "model.safetensors";
  duet::test::write_file(path, duet::test::text_of(data, size));
  try {
    const duet::loaders::SafetensorsSet set(folder.path());
    std::uint64_t bytes = 0;
    for (const duet::loaders::Tensor& tensor : set.tensors()) {
      bytes += tensor.bytes;
      std::vector<float> values(static_cast<std::size_t>(tensor.elements));
      if (tensor.data().size() != tensor.bytes || set.find(tensor.name) == nullptr) std::abort();
      try {
        duet::loaders::read_floats(tensor, 0, values);
      } catch (const duet::Error& error) {
        if (error.code() != duet::Code::non_finite) throw;
      }
    }
    if (bytes >= size) std::abort();  // Tensors do not overlap, and the header takes room too.
  } catch (const duet::Error& error) {
    if (error.code() != duet::Code::bad_file && error.code() != duet::Code::unsupported) std::abort();
  }
  return 0;
}
