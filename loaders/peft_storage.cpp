#include "loaders/peft_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "duet/error.h"
#include "engine/half.h"

namespace duet::loaders {

namespace {

/// Calls `use(first, values)` for the tensor in float32, chunk by chunk.
template <typename Use>
void for_each_chunk(const Tensor& tensor, Use use) {
  std::array<float, 8192> chunk;
  for (std::int64_t first = 0; first < tensor.elements; first += static_cast<std::int64_t>(chunk.size())) {
    const auto count =
        static_cast<std::size_t>(std::min(tensor.elements - first, static_cast<std::int64_t>(chunk.size())));
    const std::span values = std::span(chunk).first(count);
    read_floats(tensor, first, values);
    use(first, std::span<const float>(values));
  }
}

struct Range {
  bool all_half = true;      // Every value is a binary16 number.
  bool all_bfloat16 = true;  // Every value is a bfloat16 number.
};

Range measure(const Tensor& tensor) {
  Range range;
  for_each_chunk(tensor, [&](std::int64_t first, std::span<const float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float value = values[i];
      if (!std::isfinite(value)) {
        throw Error(Code::non_finite,
                    fmt::format("{}: element {} is {}", where(tensor), first + static_cast<std::int64_t>(i), value),
                    "Train or export the adapter again");
      }
      range.all_half = range.all_half && to_float(to_half(value)) == value;
      range.all_bfloat16 = range.all_bfloat16 && to_float(to_bfloat16(value)) == value;
    }
  });
  return range;
}

}  // namespace

Storage choose_storage(const Tensor& tensor) {
  if (!is_float(tensor.dtype)) {
    throw Error(Code::bad_file,
                fmt::format("{} is of type {}; a float type was expected", where(tensor), name_of(tensor.dtype)));
  }
  const Range range = measure(tensor);
  if (tensor.dtype == Dtype::f16) return Storage::f16;
  if (tensor.dtype == Dtype::bf16) return Storage::bf16;
  if (range.all_half) return Storage::f16;
  if (range.all_bfloat16) return Storage::bf16;
  return Storage::f32;
}

void read_as(const Tensor& tensor, Storage storage, std::span<std::byte> destination) {
  const std::size_t size = storage == Storage::f32 ? 4 : 2;
  for_each_chunk(tensor, [&](std::int64_t first, std::span<const float> values) {
    std::byte* out = destination.data() + static_cast<std::size_t>(first) * size;
    for (const float value : values) {
      if (storage == Storage::f32) {
        std::memcpy(out, &value, size);
      } else {
        const std::uint16_t bits = storage == Storage::f16 ? static_cast<std::uint16_t>(to_half(value))
                                                           : static_cast<std::uint16_t>(to_bfloat16(value));
        std::memcpy(out, &bits, size);
      }
      out += size;
    }
  });
}

}  // namespace duet::loaders
