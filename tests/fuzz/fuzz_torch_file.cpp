// A file of torch.save. An input that begins with "R" is the file itself, after that letter; any other one is the
// pickle of an archive that is right, with two storages, so that what lies behind the zip directory is reached without
// its checksums: a tree whose tensors lie inside the file, or an Error.
#include <cstdlib>
#include <map>
#include <string>
#include <variant>

#include "duet/error.h"
#include "loaders/torch_file.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/loaders/write_torch_file.h"
#include "tests/support/test_data.h"

namespace {

using duet::loaders::TorchValue;

void use(const duet::loaders::Tensor& tensor) {
  if (tensor.data().size() != tensor.bytes || tensor.offset + tensor.bytes > tensor.file->size()) std::abort();
  if (!duet::loaders::is_float(tensor.dtype)) return;
  try {
    const auto values = duet::loaders::to_floats(tensor);
    if (values.size() * duet::loaders::size_of(tensor.dtype) != tensor.bytes) std::abort();
  } catch (const duet::Error& error) {
    if (error.code() != duet::Code::non_finite) throw;
  }
}

/// How many values there are.
std::size_t use(const TorchValue& value, int depth = 0) {
  if (depth > 32) std::abort();
  std::size_t values = 1;
  if (const auto* tensor = std::get_if<duet::loaders::Tensor>(&value.data)) use(*tensor);
  if (const auto* list = std::get_if<TorchValue::List>(&value.data)) {
    for (const TorchValue& item : *list) values += use(item, depth + 1);
  }
  if (const auto* dict = std::get_if<TorchValue::Dict>(&value.data)) {
    for (const auto& item : *dict) {
      if (value.find(item.key) != &item.value) std::abort();  // No key stands twice.
      values += use(item.value, depth + 1);
    }
  }
  return values;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const duet::test::TemporaryDirectory kFolder;
  static const std::map<std::string, std::string> kStorages = {{"0", std::string(16, '\x3F')},
                                                               {"1", std::string(24, '\x40')}};
  const auto path = kFolder.path() / "x.pt";
  const std::string_view text = duet::test::text_of(data, size);
  duet::test::write_file(
      path, text.starts_with('R') ? std::string(text.substr(1)) : duet::test::torch_file_bytes(text, kStorages));
  try {
    if (use(duet::loaders::read_torch_file(path)) > std::size_t{1} << 16) std::abort();
  } catch (const duet::Error& error) {
    if (error.code() != duet::Code::bad_file && error.code() != duet::Code::unsupported) std::abort();
  }
  return 0;
}
