#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "engine/half.h"
#include "engine/weights.h"

namespace duet::test {

inline std::uint16_t bits16_of(float value, Storage storage) {
  return storage == Storage::f16 ? static_cast<std::uint16_t>(to_half(value))
                                 : static_cast<std::uint16_t>(to_bfloat16(value));
}

/// A region in rows, layout_of(rows, columns, spec): normal numbers times `size`, or random codes under such scales.
inline std::vector<std::byte> random_matrix(std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
                                            std::mt19937& random, float size = 0.5F) {
  const MatrixLayout layout = layout_of(rows, columns, spec);
  std::vector<std::byte> region(layout.bytes);
  std::normal_distribution<float> normal(0.0F, size);
  const auto fill = [&](std::size_t offset, std::size_t count, float shift) {
    auto* values = reinterpret_cast<float*>(region.data() + offset);
    for (std::size_t i = 0; i < count; ++i) values[i] = shift + normal(random);
  };
  if (spec.storage == Storage::f32) {
    fill(0, static_cast<std::size_t>(rows * columns), 0);
  } else if (!is_quantised(spec.storage)) {
    auto* values = reinterpret_cast<std::uint16_t*>(region.data());
    for (std::int64_t i = 0; i < rows * columns; ++i) values[i] = bits16_of(normal(random), spec.storage);
  } else {
    for (std::byte& byte : region) byte = static_cast<std::byte>(random() & 0xFFU);
    if (spec.nested) {
      fill(layout.nested_scales_offset, layout.nested_scales_bytes / sizeof(float), 0);
      fill(layout.nested_map_offset, 257, 0);
    } else {
      fill(layout.scales_offset, layout.scales_bytes / sizeof(float), 0);
    }
    if (spec.storage == Storage::int8) {  // -128 is no code of ours; scales are absmax / 127.
      for (std::int64_t i = 0; i < rows * columns; ++i)
        if (region[static_cast<std::size_t>(i)] == std::byte{0x80}) region[static_cast<std::size_t>(i)] = std::byte{0};
      auto* scales = reinterpret_cast<float*>(region.data() + layout.scales_offset);
      for (std::size_t i = 0; i < layout.scales_bytes / sizeof(float); ++i) scales[i] /= 127;
    }
  }
  return region;
}

}  // namespace duet::test
