#include "loaders/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "duet/error.h"
#include "engine/half.h"
#include "loaders/json_file.h"
#include "loaders/names.h"

namespace duet::loaders {

static_assert(std::endian::native == std::endian::little, "Tensors are read in the byte order of the format");

namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLargestHeader = 100'000'000;  // The format's own limit.
constexpr int kHeaderDepth = 8;                        // Three are needed.

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DtypeRow, 13> kDtypes = {{{Dtype::f64, "F64", 8},
                                               {Dtype::f32, "F32", 4},
                                               {Dtype::f16, "F16", 2},
                                               {Dtype::bf16, "BF16", 2},
                                               {Dtype::i64, "I64", 8},
                                               {Dtype::i32, "I32", 4},
                                               {Dtype::i16, "I16", 2},
                                               {Dtype::i8, "I8", 1},
                                               {Dtype::u64, "U64", 8},
                                               {Dtype::u32, "U32", 4},
                                               {Dtype::u16, "U16", 2},
                                               {Dtype::u8, "U8", 1},
                                               {Dtype::boolean, "BOOL", 1}}};

const DtypeRow& row_of(Dtype dtype) {
  return *std::find_if(kDtypes.begin(), kDtypes.end(), [dtype](const DtypeRow& row) { return row.dtype == dtype; });
}

[[noreturn]] void refuse(const std::string& what, std::string_view fix = {}) { throw Error(Code::bad_file, what, fix); }

// ---- header ----

std::string read_header(const MappedFile& file) {
  constexpr std::string_view kPointer = "version https://git-lfs";
  std::array<char, kPointer.size()> head{};
  const std::size_t head_bytes = std::min<std::uint64_t>(head.size(), file.size());
  file.read(0, std::as_writable_bytes(std::span(head).first(head_bytes)));
  if (std::string_view(head.data(), head_bytes) == kPointer) {
    refuse(
        fmt::format("{} is a Git LFS pointer of {} bytes, not the file it stands for", quote(file.name()), file.size()),
        "Download the file itself (git lfs pull)");
  }
  if (file.size() < kLengthBytes) {
    refuse(fmt::format("{} has {} bytes; a safetensors file begins with a header length of 8", quote(file.name()),
                       file.size()),
           "Download not complete?");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), sizeof length);
  if (length < 2 || length > kLargestHeader) {
    refuse(fmt::format("{}: header length {} is not from 2 to {}", quote(file.name()), length, kLargestHeader),
           "Is this a safetensors file?");
  }
  if (length > file.size() - kLengthBytes) {
    refuse(fmt::format("{}: header length {} goes past the end of the file, which has {} bytes", quote(file.name()),
                       length, file.size()),
           "Download not complete?");
  }
  std::string header(length, '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(header)));
  return header;
}

std::map<std::string, std::string> parse_metadata(const JsonObject& header) {
  std::map<std::string, std::string> metadata;
  const auto entry = header.object("__metadata__");
  if (!entry) return metadata;
  for (const std::string& key : entry->keys()) metadata[key] = entry->text(key);
  return metadata;
}

Dtype parse_dtype(const JsonObject& entry, const std::string& place) {
  const std::string name = entry.text("dtype");
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  throw Error(
      Code::unsupported,
      fmt::format("{}: dtype {} is not one of F64, F32, F16, BF16, I64 to I8, U64 to U8, BOOL", place, quote(name)),
      "Save the tensor in one of these");
}

/// Elements of a list of non-negative whole numbers.
std::vector<std::int64_t> parse_numbers(const JsonObject& entry, std::string_view key) {
  constexpr std::string_view kExpected = "a list of whole numbers from 0 to 2^63 - 1";
  const Json* list = entry.find(key);
  if (list == nullptr || !list->is_array()) entry.refuse(key, kExpected);
  std::vector<std::int64_t> numbers;
  for (const Json& value : *list) {
    const bool whole = value.is_number_integer();
    const bool small = whole && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
    if (!small || value.get<std::int64_t>() < 0) {
      refuse(fmt::format("{} holds {}; {} was expected", entry.where(key), shown(value), kExpected));
    }
    numbers.push_back(value.get<std::int64_t>());
  }
  return numbers;
}

Tensor parse_tensor(const std::string& name, const Json& value, std::uint64_t data_start,
                    const std::shared_ptr<const MappedFile>& file) {
  const std::string place = fmt::format("{}: tensor {}", quote(file->name()), quote(name));
  const JsonObject entry(value, file->name(), name);
  for (const std::string& key : entry.keys()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      refuse(fmt::format("{}: unknown field {}", place, quote(key)));
  }
  Tensor tensor;
  tensor.name = name;
  tensor.file = file;
  tensor.dtype = parse_dtype(entry, place);
  tensor.shape = parse_numbers(entry, "shape");
  std::int64_t bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  for (const std::int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(tensor.elements, extent, &tensor.elements) ||
        __builtin_mul_overflow(bytes, extent, &bytes)) {
      refuse(fmt::format("{}: shape {} has more bytes than 64 bits can count", place, shape_text(tensor.shape)));
    }
  }
  const std::vector<std::int64_t> offsets = parse_numbers(entry, "data_offsets");
  if (offsets.size() != 2) refuse(fmt::format("{}: data_offsets has {} numbers, not 2", place, offsets.size()));
  const std::uint64_t data_bytes = file->size() - data_start;
  const auto begin = static_cast<std::uint64_t>(offsets[0]);
  const auto end = static_cast<std::uint64_t>(offsets[1]);
  if (begin > end) refuse(fmt::format("{}: data_offsets begins at {} and ends at {}", place, begin, end));
  if (end > data_bytes) {
    refuse(fmt::format("{}: data_offsets ends at {} of {} bytes; the file has {} bytes and should have {}", place, end,
                       data_bytes, file->size(), data_start + end),
           "Download not complete?");
  }
  if (end - begin != static_cast<std::uint64_t>(bytes)) {
    refuse(fmt::format("{}: data_offsets spans {} bytes; shape {} of {} needs {}", place, end - begin,
                       shape_text(tensor.shape), name_of(tensor.dtype), bytes));
  }
  tensor.offset = data_start + begin;
  tensor.bytes = end - begin;
  return tensor;
}

/// The format wants every byte of the data part to belong to exactly one tensor.
void check_coverage(const std::vector<Tensor>& tensors, const MappedFile& file, std::uint64_t data_start) {
  std::vector<const Tensor*> order;
  order.reserve(tensors.size());
  for (const Tensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  std::uint64_t covered = data_start;
  const Tensor* before = nullptr;
  for (const Tensor* tensor : order) {
    if (tensor->offset < covered) {
      refuse(fmt::format("{}: data_offsets overlaps tensor {} by {} bytes", where(*tensor), quote(before->name),
                         covered - tensor->offset));
    }
    if (tensor->offset > covered) {
      refuse(fmt::format("{}: data_offsets leaves a hole of {} bytes before it", where(*tensor),
                         tensor->offset - covered));
    }
    covered = tensor->offset + tensor->bytes;
    before = tensor;
  }
  if (covered != file.size()) {
    refuse(fmt::format("{} has {} bytes, {} of them after its last tensor", quote(file.name()), file.size(),
                       file.size() - covered),
           "Download the file again");
  }
}

// ---- conversion ----

template <typename Stored, typename Convert>
void convert(std::span<const std::byte> bytes, std::span<float> destination, Convert to_float32) {
  for (std::size_t i = 0; i < destination.size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    destination[i] = to_float32(value);
  }
}

template <typename Stored>
void convert_integers(std::span<const std::byte> bytes, std::span<float> destination) {
  convert<Stored>(bytes, destination, [](Stored value) { return static_cast<float>(value); });
}

void convert_doubles(const Tensor& tensor, std::int64_t first, std::span<const std::byte> bytes,
                     std::span<float> destination) {
  convert<double>(bytes, destination, [&](double value) {
    // The cast of a double beyond float32 is undefined in C++; a value that rounds into range is not.
    constexpr double kLimit = 0x1.ffffffp127;  // Halfway between the largest float32 and what would follow.
    if (std::isfinite(value) && std::abs(value) >= kLimit) {
      throw Error(Code::non_finite,
                  fmt::format("{} holds {} in elements {} to {}, which float32 cannot", where(tensor), value, first,
                              first + static_cast<std::int64_t>(destination.size()) - 1));
    }
    return static_cast<float>(value);
  });
}

void convert_chunk(const Tensor& tensor, std::int64_t first, std::span<const std::byte> bytes,
                   std::span<float> destination) {
  switch (tensor.dtype) {
    case Dtype::f64:
      return convert_doubles(tensor, first, bytes, destination);
    case Dtype::f32:
      std::memcpy(destination.data(), bytes.data(), bytes.size());
      return;
    case Dtype::f16:
      return convert<std::uint16_t>(bytes, destination,
                                    [](std::uint16_t bits) { return to_float(static_cast<Half>(bits)); });
    case Dtype::bf16:
      return convert<std::uint16_t>(bytes, destination,
                                    [](std::uint16_t bits) { return to_float(static_cast<Bfloat16>(bits)); });
    case Dtype::i64:
      return convert_integers<std::int64_t>(bytes, destination);
    case Dtype::i32:
      return convert_integers<std::int32_t>(bytes, destination);
    case Dtype::i16:
      return convert_integers<std::int16_t>(bytes, destination);
    case Dtype::i8:
      return convert_integers<std::int8_t>(bytes, destination);
    case Dtype::u64:
      return convert_integers<std::uint64_t>(bytes, destination);
    case Dtype::u32:
      return convert_integers<std::uint32_t>(bytes, destination);
    case Dtype::u16:
      return convert_integers<std::uint16_t>(bytes, destination);
    case Dtype::u8:
      return convert_integers<std::uint8_t>(bytes, destination);
    case Dtype::boolean:
      return convert<std::uint8_t>(bytes, destination, [](std::uint8_t value) { return value == 0 ? 0.0F : 1.0F; });
  }
}

}  // namespace

std::string_view name_of(Dtype dtype) { return row_of(dtype).name; }
std::size_t size_of(Dtype dtype) { return row_of(dtype).size; }
bool is_float(Dtype dtype) { return dtype <= Dtype::bf16; }

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string where(const Tensor& tensor) {
  return fmt::format("{}: tensor {}", quote(tensor.file->name()), quote(tensor.name));
}

void read_bytes(const Tensor& tensor, std::uint64_t first, std::span<std::byte> destination) {
  if (first > tensor.bytes || destination.size() > tensor.bytes - first) {
    throw Error(Code::internal, fmt::format("{} has {} bytes; {} at {} were asked", where(tensor), tensor.bytes,
                                            destination.size(), first));
  }
  tensor.file->read(tensor.offset + first, destination);
}

void read_floats(const Tensor& tensor, std::int64_t first, std::span<float> destination) {
  const auto count = static_cast<std::int64_t>(destination.size());
  if (first < 0 || first > tensor.elements || count > tensor.elements - first) {
    throw Error(Code::internal,
                fmt::format("{} has {} elements; {} at {} were asked", where(tensor), tensor.elements, count, first));
  }
  const std::size_t size = size_of(tensor.dtype);
  if (tensor.dtype == Dtype::f32) {
    return read_bytes(tensor, static_cast<std::uint64_t>(first) * size, std::as_writable_bytes(destination));
  }
  std::array<std::byte, 32768> chunk;
  while (!destination.empty()) {
    const std::size_t elements = std::min(destination.size(), chunk.size() / size);
    const std::span bytes = std::span(chunk).first(elements * size);
    read_bytes(tensor, static_cast<std::uint64_t>(first) * size, bytes);
    convert_chunk(tensor, first, bytes, destination.first(elements));
    destination = destination.subspan(elements);
    first += static_cast<std::int64_t>(elements);
  }
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, Symlinks symlinks)
    : file_(std::make_shared<const MappedFile>(path, symlinks)) {
  const std::string text = read_header(*file_);
  const std::uint64_t data_start = kLengthBytes + text.size();
  const Json json = parse_json(text, file_->name() + " (header)", {.bytes = kLargestHeader, .depth = kHeaderDepth});
  const JsonObject header(json, file_->name());
  metadata_ = parse_metadata(header);
  for (const auto& [name, value] : json.get_ref<const Json::object_t&>()) {
    if (name == "__metadata__") continue;
    tensors_.push_back(parse_tensor(name, value, data_start, file_));
  }
  check_coverage(tensors_, *file_, data_start);
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace duet::loaders
