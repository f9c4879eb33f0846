#include "loaders/bnb4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "duet/error.h"
#include "engine/quant_blocks.h"
#include "loaders/json_file.h"
#include "loaders/names.h"

namespace duet::loaders {
namespace {

constexpr std::uint64_t kLargestState = 65536;
constexpr float kTableTolerance = 1e-6F;  // Files written with other libraries may round the last bits of the table.

std::string state_name(std::string_view weight, Storage storage) {
  return fmt::format("{}.quant_state.bitsandbytes__{}", weight, name_of(storage));
}

std::string part(std::string_view weight, std::string_view suffix) { return fmt::format("{}.{}", weight, suffix); }

const Tensor& need(const TensorLookup& find, const std::string& name, const Tensor& beside) {
  if (const Tensor* found = find(name)) return *found;
  throw Error(Code::bad_file,
              fmt::format("{} is a 4-bit tensor, but {} is not in the checkpoint", where(beside), quote(name)),
              "Download not complete? Save it again with save_pretrained");
}

void expect_floats(const Tensor& tensor, std::int64_t elements) {
  if (tensor.dtype == Dtype::f32 && tensor.elements == elements) return;
  throw Error(Code::bad_file, fmt::format("{} is {} {}; F32 of {} elements was expected", where(tensor),
                                          name_of(tensor.dtype), shape_text(tensor.shape), elements));
}

void expect_finite(const Tensor& tensor, std::span<const float> values) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return;
  throw Error(
      Code::non_finite,
      fmt::format("{} holds {} at [{}], which is not a finite number", where(tensor), *bad, bad - values.begin()),
      "The checkpoint is damaged; take another copy");
}

/// The table in the file must be the one its type stands for: codes decoded with another table are plausible nonsense.
void check_code_table(const Tensor& quant_map, Storage storage) {
  expect_floats(quant_map, 16);
  std::array<float, 16> table{};
  read_floats(quant_map, 0, table);
  const std::array<float, 16>& want = storage == Storage::nf4 ? kNf4Codes : kFp4Codes;
  for (std::size_t code = 0; code < 16; ++code) {
    if (std::abs(table[code] - want[code]) <= kTableTolerance) continue;
    throw Error(Code::unsupported,
                fmt::format("{} gives code {} the value {}; {} has {}", where(quant_map), code, table[code],
                            name_of(storage), want[code]),
                "Duet decodes the standard nf4 and fp4 tables only");
  }
}

std::string read_state_text(const Tensor& state) {
  if (state.dtype != Dtype::u8 || state.bytes == 0 || state.bytes > kLargestState)
    throw Error(Code::bad_file, fmt::format("{} is {} {}; U8 of 1 to {} bytes, a JSON text, was expected", where(state),
                                            name_of(state.dtype), shape_text(state.shape), kLargestState));
  std::string text(state.bytes, '\0');
  read_bytes(state, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

const Tensor& find_state(const TensorLookup& find, std::string_view weight, const Tensor& codes, Storage& storage) {
  const Tensor* nf4 = find(state_name(weight, Storage::nf4));
  const Tensor* fp4 = find(state_name(weight, Storage::fp4));
  if (nf4 != nullptr && fp4 != nullptr)
    throw Error(Code::bad_file,
                fmt::format("{} has a quant_state for nf4 and one for fp4; exactly one was expected", where(codes)));
  storage = fp4 != nullptr ? Storage::fp4 : Storage::nf4;
  if (fp4 != nullptr) return *fp4;
  return nf4 != nullptr ? *nf4 : need(find, state_name(weight, Storage::nf4), codes);
}

void check_shape(const Tensor& codes, const Bnb4State& state, std::int64_t rows, std::int64_t columns) {
  if (state.rows == columns && state.columns == rows && rows != columns)
    throw Error(Code::unsupported,
                fmt::format("{} was quantised as [{}, {}], the transposed of the model's [{}, {}], as "
                            "early versions of bitsandbytes did",
                            where(codes), state.rows, state.columns, rows, columns),
                "Quantise the model again with a current version");
  if (state.rows != rows || state.columns != columns)
    throw Error(Code::bad_file, fmt::format("{} has the shape [{}, {}] in its quant_state; the model needs [{}, {}]",
                                            where(codes), state.rows, state.columns, rows, columns));
}

void check_nested_parts(const TensorLookup& find, std::string_view weight, std::int64_t blocks, Bnb4Tensor& tensor) {
  tensor.nested_absmax = need(find, part(weight, "nested_absmax"), tensor.codes);
  tensor.nested_map = need(find, part(weight, "nested_quant_map"), tensor.codes);
  expect_floats(*tensor.nested_absmax, (blocks + kNestedBlockSize - 1) / kNestedBlockSize);
  expect_floats(*tensor.nested_map, 256);
  if (tensor.absmax.dtype != Dtype::u8)
    throw Error(Code::bad_file, fmt::format("{} is {}; double quantisation keeps U8 codes there", where(tensor.absmax),
                                            name_of(tensor.absmax.dtype)));
}

}  // namespace

Bnb4State parse_bnb4_state(std::string_view json, Storage storage, std::string_view source) {
  // Tensors of text are padded with zeros by some writers.
  while (!json.empty() && json.back() == '\0') json.remove_suffix(1);
  const Json parsed = parse_json(json, source, {.bytes = kLargestState, .depth = 8});
  const JsonObject object(parsed, std::string(source));
  Bnb4State state;
  state.storage = storage;
  if (object.text("quant_type") != name_of(storage))
    object.refuse("quant_type", fmt::format("\"{}\", as its name says,", name_of(storage)));
  const std::string dtype = object.text("dtype");
  if (dtype != "float16" && dtype != "bfloat16" && dtype != "float32")
    object.refuse("dtype", "float16, bfloat16 or float32");
  state.block_size = static_cast<int>(object.integer("blocksize", 1, 1 << 30));
  if (!is_legal_block_size(storage, state.block_size))
    throw Error(Code::unsupported, fmt::format("{} is {}; Duet decodes powers of two from 32 to 4096",
                                               object.where("blocksize"), state.block_size));
  const Json* shape = object.find("shape");
  const bool is_matrix = shape != nullptr && shape->is_array() && shape->size() == 2 &&
                         std::all_of(shape->begin(), shape->end(), [](const Json& size) {
                           return size.is_number_unsigned() && size.get<std::uint64_t>() >= 1 &&
                                  size.get<std::uint64_t>() <= (std::uint64_t{1} << 31);
                         });
  if (!is_matrix) object.refuse("shape", "a list of two positive integers");
  state.rows = shape->at(0).get<std::int64_t>();
  state.columns = shape->at(1).get<std::int64_t>();

  state.nested = object.has("nested_offset") || object.has("nested_blocksize") || object.has("nested_dtype");
  if (!state.nested) return state;
  // The offset is a JSON number and becomes float32 by conversion.
  state.nested_offset = static_cast<float>(object.number("nested_offset"));
  if (!std::isfinite(state.nested_offset)) object.refuse("nested_offset", "a number that float32 can hold");
  if (object.integer("nested_blocksize", 1, 1 << 30) != kNestedBlockSize) object.refuse("nested_blocksize", "256");
  if (object.text("nested_dtype") != "float32") object.refuse("nested_dtype", "float32");
  return state;
}

std::vector<std::string> bnb4_companions(std::string_view weight) {
  return {part(weight, "absmax"),           part(weight, "quant_map"),        part(weight, "nested_absmax"),
          part(weight, "nested_quant_map"), state_name(weight, Storage::nf4), state_name(weight, Storage::fp4)};
}

bool is_bnb4(const TensorLookup& find, std::string_view weight) {
  const std::vector<std::string> names = bnb4_companions(weight);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return find(name) != nullptr; });
}

Bnb4Tensor open_bnb4(const TensorLookup& find, std::string_view weight, std::int64_t rows, std::int64_t columns) {
  const Tensor* codes = find(weight);
  if (codes == nullptr)
    throw Error(Code::bad_file,
                fmt::format("The 4-bit scales of {} are there, but the tensor itself is not", quote(weight)),
                "Download not complete?");
  Bnb4Tensor tensor;
  tensor.codes = *codes;
  Storage storage{};
  const Tensor& state = find_state(find, weight, *codes, storage);
  tensor.state = parse_bnb4_state(read_state_text(state), storage, where(state));
  check_shape(*codes, tensor.state, rows, columns);

  const MatrixLayout layout = layout_of(rows, columns, tensor.spec());
  if (codes->bytes != layout.data_bytes)
    throw Error(Code::bad_file, fmt::format("{} is {} bytes long; [{}, {}] at 4 bits is {}", where(*codes),
                                            codes->bytes, rows, columns, layout.data_bytes));
  check_code_table(need(find, part(weight, "quant_map"), *codes), storage);
  tensor.absmax = need(find, part(weight, "absmax"), *codes);
  if (tensor.absmax.elements != layout.blocks)
    throw Error(Code::bad_file,
                fmt::format("{} holds {} scales; [{}, {}] in blocks of {} has {}", where(tensor.absmax),
                            tensor.absmax.elements, rows, columns, tensor.state.block_size, layout.blocks));
  if (tensor.state.nested) {
    check_nested_parts(find, weight, layout.blocks, tensor);
  } else if (!is_float(tensor.absmax.dtype) || find(part(weight, "nested_absmax")) != nullptr) {
    throw Error(Code::bad_file,
                fmt::format("{} is {}, and the quant_state says nothing of double quantisation", where(tensor.absmax),
                            name_of(tensor.absmax.dtype)),
                "Nested scales need nested_offset, nested_blocksize and nested_dtype there");
  }
  return tensor;
}

void read_bnb4(const Bnb4Tensor& tensor, std::span<std::byte> region) {
  const MatrixLayout layout = layout_of(tensor.state.rows, tensor.state.columns, tensor.spec());
  if (region.size() != layout.bytes) throw Error(Code::internal, "A 4-bit tensor was given a region of another size");
  std::fill(region.begin() + static_cast<std::ptrdiff_t>(layout.data_bytes), region.end(), std::byte{0});
  read_bytes(tensor.codes, 0, region.first(layout.data_bytes));
  const auto floats = [&](std::size_t offset, std::size_t count) {
    return std::span(reinterpret_cast<float*>(region.data() + offset), count);
  };
  const auto blocks = static_cast<std::size_t>(layout.blocks);
  if (!tensor.state.nested) {
    const std::span<float> scales = floats(layout.scales_offset, blocks);
    read_floats(tensor.absmax, 0, scales);
    expect_finite(tensor.absmax, scales);
    return;
  }
  read_bytes(tensor.absmax, 0, region.subspan(layout.scales_offset, blocks));
  const std::span<float> nested = floats(layout.nested_scales_offset, layout.nested_scales_bytes / sizeof(float));
  read_floats(*tensor.nested_absmax, 0, nested);
  expect_finite(*tensor.nested_absmax, nested);
  const std::span<float> map = floats(layout.nested_map_offset, 257);
  read_floats(*tensor.nested_map, 0, map.first(256));
  expect_finite(*tensor.nested_map, map.first(256));
  map[256] = tensor.state.nested_offset;
}

}  // namespace duet::loaders
