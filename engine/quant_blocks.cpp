#include "engine/quant_blocks.h"

#include <algorithm>
#include <cstddef>

#include "engine/half.h"

namespace duet {

// Both tables are the float32 values that bitsandbytes writes into `quant_map`, to the last bit.
const std::array<float, 16> kNf4Codes = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

// 0, 1/192, 2/3, 1, 1/3, 1/2, 1/6, 1/4, then the same with a minus.
const std::array<float, 16> kFp4Codes = {
    0.0F,
    0.0052083334885537624F,
    0.6666666865348816F,
    1.0F,
    0.3333333432674408F,
    0.5F,
    0.1666666716337204F,
    0.25F,
    0.0F,
    -0.0052083334885537624F,
    -0.6666666865348816F,
    -1.0F,
    -0.3333333432674408F,
    -0.5F,
    -0.1666666716337204F,
    -0.25F,
};

namespace {

CodeLadder make_ladder(const std::array<float, 16>& table, const std::array<std::uint8_t, 16>& ascending) {
  CodeLadder ladder;
  ladder.codes = ascending;
  for (std::size_t i = 0; i < 15; ++i) ladder.midpoints[i] = (table[ascending[i]] + table[ascending[i + 1]]) / 2;
  return ladder;
}

}  // namespace

const CodeLadder& ladder_of(Storage storage) {
  static const CodeLadder kNf4 = make_ladder(kNf4Codes, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  static const CodeLadder kFp4 = make_ladder(kFp4Codes, {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3});
  return storage == Storage::nf4 ? kNf4 : kFp4;
}

bool is_legal_block_size(Storage storage, int block_size) {
  if (storage == Storage::int8) return block_size == 32 || block_size == 64;
  const bool power_of_two = block_size > 0 && (block_size & (block_size - 1)) == 0;
  return is_quantised(storage) && power_of_two && block_size >= 32 && block_size <= 4096;
}

float scale_of(const Matrix& matrix, std::int64_t block) {
  if (!matrix.spec.nested) return matrix.scales[block];
  // Two roundings, product then sum, as bitsandbytes does it; never a fused multiply-add.
  const float spread = matrix.nested_map[matrix.scale_codes[block]] * matrix.nested_scales[block / kNestedBlockSize];
  return spread + *matrix.nested_offset;
}

namespace {

/// Elements [first, first + count), all of one block.
void decode_codes(const Matrix& matrix, std::int64_t first, std::int64_t count, float scale, float* destination) {
  if (matrix.spec.storage == Storage::int8) {
    const auto* codes = reinterpret_cast<const std::int8_t*>(matrix.data) + first;
    for (std::int64_t i = 0; i < count; ++i) destination[i] = static_cast<float>(codes[i]) * scale;
    return;
  }
  const std::array<float, 16>& table = matrix.spec.storage == Storage::nf4 ? kNf4Codes : kFp4Codes;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t element = first + i;
    const auto both = std::to_integer<unsigned>(matrix.data[element / 2]);
    const unsigned code = element % 2 == 0 ? both >> 4 : both & 0xFU;
    destination[i] = table[code] * scale;
  }
}

}  // namespace

void dequantise(const Matrix& matrix, std::int64_t first, std::span<float> destination) {
  const auto count = static_cast<std::int64_t>(destination.size());
  switch (matrix.spec.storage) {
    case Storage::f32:
      std::copy_n(reinterpret_cast<const float*>(matrix.data) + first, count, destination.data());
      return;
    case Storage::f16:
      for (std::int64_t i = 0; i < count; ++i)
        destination[static_cast<std::size_t>(i)] = to_float(reinterpret_cast<const Half*>(matrix.data)[first + i]);
      return;
    case Storage::bf16:
      for (std::int64_t i = 0; i < count; ++i)
        destination[static_cast<std::size_t>(i)] = to_float(reinterpret_cast<const Bfloat16*>(matrix.data)[first + i]);
      return;
    case Storage::nf4:
    case Storage::fp4:
    case Storage::int8:
      break;
  }
  const std::int64_t block_size = matrix.spec.block_size;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t element = first + done;
    const std::int64_t block = element / block_size;
    const std::int64_t in_block = std::min(count - done, (block + 1) * block_size - element);
    decode_codes(matrix, element, in_block, scale_of(matrix, block), destination.data() + done);
    done += in_block;
  }
}

}  // namespace duet
