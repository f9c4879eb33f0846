// A packed file. An input that begins with "R" is the file itself, after that letter; any other one is the directory of
// a file whose checksums are right, so that what lies behind them is reached: a source whose regions are those of its
// layout, or an Error.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "duet/error.h"
#include "loaders/checksum.h"
#include "loaders/loaders.h"
#include "loaders/packed_header.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/support/test_data.h"

namespace {

constexpr std::size_t kFileBytes = std::size_t{64} << 10;

std::string file_with(std::string directory) {
  std::string file(64, '\0');
  file += directory;
  file.resize(std::max(kFileBytes, file.size()), '\0');
  const auto prologue = duet::loaders::encode(
      {directory.size(), duet::loaders::checksum_of(std::as_bytes(std::span(directory))), file.size()});
  return file.replace(0, 64, reinterpret_cast<const char*>(prologue.data()), 64);
}

void use(const duet::WeightSource& source) {
  duet::check(source.spec(), "the spec");
  const std::vector<duet::TensorRow> rows = duet::tensors_of(source.spec());
  if (rows.size() != source.tensors().size()) std::abort();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const duet::WeightTensor& tensor = source.tensors()[i];
    if (tensor.bytes != duet::layout_of(rows[i].rows, rows[i].columns, tensor.storage).bytes) std::abort();
    if (tensor.bytes > kFileBytes) std::abort();  // Its bytes lie inside the file.
    std::vector<std::byte> region(tensor.bytes);
    try {
      source.read(i, region);
    } catch (const duet::Error& error) {
      if (error.code() != duet::Code::bad_file) throw;  // A checksum.
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const duet::test::TemporaryDirectory kFolder;
  const auto path = kFolder.path() / "x.duet";
  std::string text(duet::test::text_of(data, size));
  const bool raw = text.starts_with('R');
  duet::test::write_file(path, raw ? text.substr(1) : file_with(std::move(text)));
  try {
    use(*duet::loaders::open_checkpoint(path, {}));
    duet::loaders::read_checkpoint_text(path, "tokenizer.json");
  } catch (const duet::Error& error) {
    if (error.code() != duet::Code::bad_file && error.code() != duet::Code::unsupported) std::abort();
  }
  return 0;
}
