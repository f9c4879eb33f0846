// adapter_config.json, a byte 0xFF, adapter_model.safetensors: an adapter whose rows lie inside its slot, or an Error.
#include <cstdlib>
#include <vector>

#include "duet/error.h"
#include "loaders/loaders.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/support/test_data.h"

namespace {

duet::ModelSpec tiny() {
  duet::ModelSpec spec;
  spec.architecture = "Qwen2ForCausalLM";
  spec.layers = 2;
  spec.hidden = 4;
  spec.query_heads = 2;
  spec.kv_heads = 1;
  spec.head_size = 2;
  spec.mlp = 6;
  spec.vocabulary = 5;
  spec.max_position_tokens = 64;
  spec.query_key_value_bias = true;
  spec.tied_head = true;
  return spec;
}

void use(const duet::AdapterSource& adapter) {
  const duet::AdapterSpec& spec = adapter.spec();
  std::vector<std::byte> slot(spec.bytes);
  for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
    const duet::AdapterTensor& tensor = spec.tensors[i];
    if (tensor.offset + tensor.bytes > spec.bytes) std::abort();
    adapter.read(i, std::span(slot).subspan(tensor.offset, tensor.bytes));
  }
  for (const duet::AdapterModule& module : spec.modules) {
    const auto& a = spec.tensors.at(static_cast<std::size_t>(module.lora_a));
    const auto& b = spec.tensors.at(static_cast<std::size_t>(module.lora_b));
    if (a.rows != module.rank || b.columns != module.rank || module.rank > spec.largest_rank) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const duet::test::TemporaryDirectory folder;
  static const duet::ModelSpec base = tiny();
  const auto pieces = duet::test::pieces_of(duet::test::text_of(data, size), 2);
  duet::test::write_file(folder.path() / "adapter_config.json", pieces[0]);
  duet::test::write_file(folder.path() / "adapter_model.safetensors", pieces.size() > 1 ? pieces[1] : "");
  try {
    use(*duet::loaders::open_adapter(folder.path(), base, "base"));
  } catch (const duet::Error& error) {
    const duet::Code code = error.code();
    if (code != duet::Code::bad_file && code != duet::Code::unsupported && code != duet::Code::non_finite) std::abort();
  }
  return 0;
}
