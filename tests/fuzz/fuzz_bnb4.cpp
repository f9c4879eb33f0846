// A bitsandbytes 4-bit tensor: the JSON of its quant_state, a byte 0xFF, then bytes that say how its parts are shaped.
// Either every code is decoded, or there is an Error.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "duet/error.h"
#include "engine/quant_blocks.h"
#include "loaders/bnb4.h"
#include "loaders/safetensors.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/loaders/write_safetensors.h"
#include "tests/support/test_data.h"

namespace {

using duet::test::WrittenTensor;

constexpr std::int64_t kMostElements = 1 << 16;

/// Sizes as the state wants them, each moved by one of the input's bytes (most often by nothing).
struct Shaper {
  std::string bytes;
  std::size_t next = 0;

  int byte() { return next < bytes.size() ? static_cast<unsigned char>(bytes[next++]) : 0; }
  std::int64_t moved(std::int64_t size) { return std::max<std::int64_t>(0, size + (byte() + 4) % 8 - 4); }
  const char* dtype(const char* usual) {
    constexpr std::array<const char*, 5> kDtypes = {"U8", "F32", "F16", "BF16", "I8"};
    const int choice = byte();
    return choice < 5 ? kDtypes[static_cast<std::size_t>(choice)] : usual;
  }
};

WrittenTensor part(const std::string& suffix, const std::string& dtype, std::int64_t size, float value) {
  return {"w.weight" + suffix, dtype, {size}, std::vector<float>(static_cast<std::size_t>(size), value)};
}

std::vector<WrittenTensor> tensors_for(const std::string& json, bool fp4, const duet::loaders::Bnb4State& state,
                                       Shaper shape) {
  const std::int64_t elements = state.rows * state.columns;
  const std::int64_t blocks = (elements + state.block_size - 1) / state.block_size;
  std::vector<WrittenTensor> tensors;
  tensors.push_back(part("", shape.dtype("U8"), shape.moved((elements + 1) / 2), 117));
  tensors.push_back(part(".absmax", shape.dtype(state.nested ? "U8" : "F32"), shape.moved(blocks), 3));
  WrittenTensor map = part(".quant_map", "F32", shape.moved(16), 0);
  for (std::size_t i = 0; i < std::min<std::size_t>(16, map.values.size()); ++i)
    map.values[i] = (fp4 ? duet::kFp4Codes : duet::kNf4Codes)[i];
  tensors.push_back(std::move(map));
  if (state.nested != (shape.byte() == 1)) {
    tensors.push_back(part(".nested_absmax", shape.dtype("F32"), shape.moved((blocks + 255) / 256), 0.5F));
    tensors.push_back(part(".nested_quant_map", shape.dtype("F32"), shape.moved(256), 0.25F));
  }
  WrittenTensor text{fp4 ? "w.weight.quant_state.bitsandbytes__fp4" : "w.weight.quant_state.bitsandbytes__nf4",
                     "U8",
                     {static_cast<std::int64_t>(json.size())},
                     {}};
  for (const char letter : json) text.values.push_back(static_cast<float>(static_cast<unsigned char>(letter)));
  tensors.push_back(std::move(text));
  return tensors;
}

void use(const duet::loaders::Bnb4Tensor& tensor) {
  const duet::MatrixLayout layout = duet::layout_of(tensor.state.rows, tensor.state.columns, tensor.spec());
  std::vector<std::byte> region(layout.bytes);
  duet::loaders::read_bnb4(tensor, region);
  std::vector<float> values(static_cast<std::size_t>(tensor.state.rows * tensor.state.columns));
  duet::dequantise(duet::view_of(tensor.state.rows, tensor.state.columns, tensor.spec(), region.data()), 0, values);
  for (const float value : values)
    if (std::isnan(value)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const duet::test::TemporaryDirectory kFolder;
  const auto pieces = duet::test::pieces_of(duet::test::text_of(data, size), 2);
  const bool fp4 = pieces[0].find("fp4") != std::string::npos;
  try {
    const auto state =
        duet::loaders::parse_bnb4_state(pieces[0], fp4 ? duet::Storage::fp4 : duet::Storage::nf4, "the state");
    if (state.rows > kMostElements / state.columns) return 0;
    const auto tensors =
        tensors_for(std::string(pieces[0]), fp4, state, {.bytes = std::string(pieces.size() > 1 ? pieces[1] : "")});
    duet::test::write_file(kFolder.path() / "model.safetensors", duet::test::safetensors_file(tensors));
    const duet::loaders::SafetensorsSet set(kFolder.path());
    use(duet::loaders::open_bnb4([&](std::string_view name) { return set.find(name); }, "w.weight", state.rows,
                                 state.columns));
  } catch (const duet::Error& error) {
    if (error.code() != duet::Code::bad_file && error.code() != duet::Code::unsupported) std::abort();
  }
  return 0;
}
