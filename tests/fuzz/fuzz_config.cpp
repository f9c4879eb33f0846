// config.json, generation_config.json, tokenizer_config.json and tokenizer.json, with bytes 0xFF between them: a spec
// that passes its own check, or an Error.
#include <cstdlib>
#include <filesystem>

#include "duet/error.h"
#include "loaders/hf_config.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/support/test_data.h"

namespace {

void use(const duet::ModelSpec& spec) {
  duet::check(spec, "the spec");
  if (duet::kv_bytes_per_token(spec, duet::KvStorage::f16) <= 0) std::abort();
  if (duet::inverse_frequencies(spec.rope, spec.head_size).size() != static_cast<std::size_t>(spec.head_size / 2))
    std::abort();
  if (spec.layers > 64) return;
  for (const duet::TensorRow& row : duet::tensors_of(spec)) {
    if (row.rows <= 0 || row.columns <= 0) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const duet::test::TemporaryDirectory folder;
  constexpr const char* kNames[] = {"config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"};
  const auto pieces = duet::test::pieces_of(duet::test::text_of(data, size), 4);
  for (std::size_t i = 0; i < 4; ++i) {
    std::filesystem::remove(folder.path() / kNames[i]);
    if (i < pieces.size()) duet::test::write_file(folder.path() / kNames[i], pieces[i]);
  }
  try {
    std::vector<std::string> report;
    use(duet::loaders::read_hf_config(folder.path(), report));
  } catch (const duet::Error& error) {
    if (error.code() != duet::Code::bad_file && error.code() != duet::Code::unsupported) std::abort();
  }
  return 0;
}
