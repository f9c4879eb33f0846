#include "engine/weights.h"

#include <fmt/format.h>

#include "duet/error.h"
#include "engine/quant_blocks.h"

namespace duet {

std::string_view name_of(Storage storage) {
  switch (storage) {
    case Storage::f32:
      return "f32";
    case Storage::f16:
      return "f16";
    case Storage::bf16:
      return "bf16";
    case Storage::nf4:
      return "nf4";
    case Storage::fp4:
      return "fp4";
    case Storage::int8:
      return "int8";
  }
  return "unknown";
}

namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 48;  // Every size below stays far from overflow.

std::size_t aligned(std::size_t bytes) { return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment; }

void check(std::int64_t rows, std::int64_t columns, const StorageSpec& spec) {
  if (rows <= 0 || columns <= 0 || rows > kMostElements / columns)
    throw Error(Code::no_room, fmt::format("A matrix of {} x {} cannot be laid out: both sizes must be positive and "
                                           "their product at most 2^48",
                                           rows, columns));
  if (is_quantised(spec.storage) && !is_legal_block_size(spec.storage, spec.block_size))
    throw Error(Code::unsupported,
                fmt::format("Block size {} is not one that {} can have", spec.block_size, name_of(spec.storage)),
                spec.storage == Storage::int8 ? "Take 32 or 64" : "Take a power of two from 32 to 4096");
  if (spec.nested && spec.storage != Storage::nf4 && spec.storage != Storage::fp4)
    throw Error(
        Code::unsupported,
        fmt::format("Double quantisation was asked of {} blocks; only nf4 and fp4 have it", name_of(spec.storage)),
        "Turn it off, or choose a 4-bit type");
}

}  // namespace

MatrixLayout layout_of(std::int64_t rows, std::int64_t columns, const StorageSpec& spec) {
  check(rows, columns, spec);
  const auto elements = static_cast<std::size_t>(rows * columns);
  MatrixLayout layout;
  switch (spec.storage) {
    case Storage::f32:
      layout.data_bytes = elements * 4;
      break;
    case Storage::f16:
    case Storage::bf16:
      layout.data_bytes = elements * 2;
      break;
    case Storage::nf4:
    case Storage::fp4:
      layout.data_bytes = (elements + 1) / 2;
      break;
    case Storage::int8:
      layout.data_bytes = elements;
      break;
  }
  layout.bytes = layout.data_bytes;
  if (!is_quantised(spec.storage)) return layout;

  const auto block_size = static_cast<std::size_t>(spec.block_size);
  const std::size_t blocks = (elements + block_size - 1) / block_size;
  layout.blocks = static_cast<std::int64_t>(blocks);
  layout.scales_offset = aligned(layout.data_bytes);
  layout.scales_bytes = spec.nested ? blocks : blocks * sizeof(float);
  layout.bytes = layout.scales_offset + layout.scales_bytes;
  if (!spec.nested) return layout;

  layout.nested_scales_offset = aligned(layout.bytes);
  layout.nested_scales_bytes = (blocks + kNestedBlockSize - 1) / kNestedBlockSize * sizeof(float);
  layout.nested_map_offset = aligned(layout.nested_scales_offset + layout.nested_scales_bytes);
  layout.bytes = layout.nested_map_offset + 257 * sizeof(float);
  return layout;
}

Matrix view_of(std::int64_t rows, std::int64_t columns, const StorageSpec& spec, const std::byte* region) {
  const MatrixLayout layout = layout_of(rows, columns, spec);
  Matrix matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.spec = spec;
  matrix.data = region;
  if (!is_quantised(spec.storage)) return matrix;
  if (!spec.nested) {
    matrix.scales = reinterpret_cast<const float*>(region + layout.scales_offset);
    return matrix;
  }
  matrix.scale_codes = reinterpret_cast<const std::uint8_t*>(region + layout.scales_offset);
  matrix.nested_scales = reinterpret_cast<const float*>(region + layout.nested_scales_offset);
  matrix.nested_map = reinterpret_cast<const float*>(region + layout.nested_map_offset);
  matrix.nested_offset = matrix.nested_map + 256;
  return matrix;
}

}  // namespace duet
