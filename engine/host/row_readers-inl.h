// How a row of a matrix is unpacked to vectors of float32, for each storage. Part of host_kernels.cpp, compiled once
// per instruction set: hence Highway's include guard, which lets the file in again for each.
#if defined(DUET_ENGINE_HOST_ROW_READERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DUET_ENGINE_HOST_ROW_READERS_INL_H_
#undef DUET_ENGINE_HOST_ROW_READERS_INL_H_
#else
#define DUET_ENGINE_HOST_ROW_READERS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "engine/quant_blocks.h"
#include "engine/weights.h"

// Loops over vectors and rows must disappear, or the weights go through memory.
#ifndef DUET_UNROLL
#if defined(__clang__)
#define DUET_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DUET_UNROLL _Pragma("GCC unroll 8")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace duet::host::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using Words = hn::Rebind<std::uint32_t, D>;
inline constexpr std::int64_t kLanes = HWY_LANES(float);

// A row is read in groups of 8 vectors. The dot product of one group is summed in a fixed order, then added to the
// row's running sum, lane by lane; the lanes are summed at the row's end. Nothing in this order depends on the call.
inline constexpr std::int64_t kVectors = 8;
inline constexpr std::int64_t kGroup = kVectors * kLanes;
inline constexpr std::int64_t kSlabGroups = 16;  // Groups whose scales (or weights) a reader prepares at one time.

// ---- readers: one row of a matrix as groups of 8 vectors ----
//
// start(weight, row)       points the reader at a row
// prepare(first, last)     called before the groups [first, last) of a slab are read
// load<kTail>(group, w)    unpacks the weights of a group; returns by what their sum is to be multiplied (kScaled).
//                          kTail: the group is the last one and not full

template <class T>
HWY_INLINE V promote(const T* from) {
  const D d;
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<T, std::int8_t>) {
    const hn::Rebind<std::int32_t, D> d32;
    return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(hn::Rebind<std::int8_t, D>(), from)));
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from));
  }
}

/// How far ahead of a row's codes to fetch: short rows are read four at a time, so the next four come next.
HWY_INLINE std::int64_t prefetch_distance_of(std::int64_t row_bytes) {
  return row_bytes <= 1024 ? 4 * row_bytes : 1024;
}

/// Fetches what a group of `kBytes` at `from` will be followed by.
template <std::int64_t kBytes>
HWY_INLINE void prefetch(const void* from, std::int64_t distance) {
  DUET_UNROLL
  for (std::int64_t line = 0; line < kBytes; line += 64)
    hwy::Prefetch(static_cast<const char*>(from) + distance + line);
}

/// f32, f16, bf16.
template <class T>
struct DenseReader {
  static constexpr bool kScaled = false;
  const T* row = nullptr;
  std::int64_t full_groups = 0;
  std::int64_t ahead = 0;
  alignas(64) T tail[std::size_t{kGroup}];  // The columns after the last full group, zeros behind them.

  HWY_INLINE void start(const Matrix& weight, std::int64_t index) {
    row = reinterpret_cast<const T*>(weight.data) + index * weight.columns;
    ahead = prefetch_distance_of(weight.columns * static_cast<std::int64_t>(sizeof(T)));
    full_groups = weight.columns / kGroup;
    const std::int64_t rest = weight.columns % kGroup;
    if (rest == 0) return;
    std::memset(tail, 0, sizeof(tail));
    std::memcpy(tail, row + full_groups * kGroup, static_cast<std::size_t>(rest) * sizeof(T));
  }
  HWY_INLINE void prepare(std::int64_t, std::int64_t) {}
  template <bool kTail>
  HWY_INLINE V load(std::int64_t group, V* HWY_RESTRICT w) const {
    const T* from = kTail ? tail : row + group * kGroup;
    if (!kTail) prefetch<kGroup* static_cast<std::int64_t>(sizeof(T))>(from, ahead);
    DUET_UNROLL
    for (std::int64_t k = 0; k < kVectors; ++k) w[k] = promote(from + k * kLanes);
    return hn::Zero(D());
  }
};

/// int8 whose blocks do not cross row ends; kBlock is 32 or 64.
template <std::int64_t kBlock>
struct Int8Reader {
  static constexpr bool kScaled = false;  // Every vector lies in one block, so the scale goes to the weights at once.
  const std::int8_t* row = nullptr;
  const float* scales = nullptr;
  std::int64_t full_groups = 0;
  std::int64_t ahead = 0;
  alignas(64) std::int8_t tail[kGroup];
  float tail_scales[std::size_t{(kGroup + kBlock - 1) / kBlock}];

  HWY_INLINE void start(const Matrix& weight, std::int64_t index) {
    row = reinterpret_cast<const std::int8_t*>(weight.data) + index * weight.columns;
    scales = weight.scales + index * (weight.columns / kBlock);
    ahead = prefetch_distance_of(weight.columns);
    full_groups = weight.columns / kGroup;
    const std::int64_t rest = weight.columns % kGroup;
    if (rest == 0) return;
    std::memset(tail, 0, sizeof(tail));
    std::memset(tail_scales, 0, sizeof(tail_scales));
    std::memcpy(tail, row + full_groups * kGroup, static_cast<std::size_t>(rest));
    std::memcpy(tail_scales, scales + full_groups * kGroup / kBlock,
                static_cast<std::size_t>(rest / kBlock) * sizeof(float));
  }
  HWY_INLINE void prepare(std::int64_t, std::int64_t) {}
  template <bool kTail>
  HWY_INLINE V load(std::int64_t group, V* HWY_RESTRICT w) const {
    const D d;
    const std::int8_t* from = kTail ? tail : row + group * kGroup;
    if (!kTail) prefetch<kGroup>(from, ahead);
    // A group may be part of a block (4 lanes and fewer): every vector of it then has the same scale.
    const float* scale = kTail ? tail_scales : scales + group * kGroup / kBlock;
    DUET_UNROLL
    for (std::int64_t k = 0; k < kVectors; ++k) {
      w[k] = hn::Mul(promote(from + k * kLanes), hn::Set(d, scale[k * kLanes / kBlock]));
    }
    return hn::Zero(d);
  }
};

// Three ways to look codes up: 32-bit words through register permutes (8 and 16 lanes), bytes through four byte tables
// (4 lanes), and plainly from memory (Highway's scalar target).
#if HWY_TARGET == HWY_SCALAR
#define DUET_NIBBLE_WORDS 1
struct CodeTable {
  const float* values;
};
HWY_INLINE CodeTable code_table(const float* values) { return {values}; }

#elif HWY_MAX_BYTES >= 64
#define DUET_NIBBLE_WORDS 1
struct CodeTable {
  V all;
};
HWY_INLINE CodeTable code_table(const float* values) { return {hn::LoadU(D(), values)}; }

#elif HWY_MAX_BYTES == 32
#define DUET_NIBBLE_WORDS 1
struct CodeTable {
  V low, high;
};
HWY_INLINE CodeTable code_table(const float* values) { return {hn::LoadU(D(), values), hn::LoadU(D(), values + 8)}; }

#else
#define DUET_NIBBLE_WORDS 0
struct CodeTable {
  hn::Vec<hn::Repartition<std::uint8_t, D>> planes[4];  // Plane p holds byte p of each of the 16 values.
};
HWY_INLINE CodeTable code_table(const float* values) {
  std::uint8_t bytes[4][16];
  for (std::size_t code = 0; code < 16; ++code) {
    const auto bits = std::bit_cast<std::uint32_t>(values[code]);
    for (std::uint32_t plane = 0; plane < 4; ++plane)
      bytes[plane][code] = static_cast<std::uint8_t>(bits >> (8 * plane));
  }
  CodeTable table;
  for (int plane = 0; plane < 4; ++plane)
    table.planes[plane] = hn::LoadU(hn::Repartition<std::uint8_t, D>(), bytes[plane]);
  return table;
}
#endif

#if DUET_NIBBLE_WORDS
/// Values of the codes in bits [kShift, kShift + 4) of every word.
template <int kShift>
HWY_INLINE V look_up(const CodeTable& table, hn::Vec<Words> words) {
  const D d;
  auto codes = words;
  if constexpr (kShift != 0) codes = hn::ShiftRight<kShift>(words);
    // The permutes read only the low bits of an index; Highway's debug builds insist on indices in range.
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, table.values[hn::GetLane(codes) & 15U]);
#elif HWY_MAX_BYTES >= 64
  const auto index = HWY_IS_DEBUG_BUILD ? hn::And(codes, hn::Set(Words(), 15U)) : codes;
  return hn::TableLookupLanes(table.all, hn::IndicesFromVec(d, index));
#else
  const auto index = hn::IndicesFromVec(d, HWY_IS_DEBUG_BUILD ? hn::And(codes, hn::Set(Words(), 7U)) : codes);
  const V bit3_as_sign = hn::BitCast(d, hn::ShiftLeft<28>(codes));
  return hn::IfNegativeThenElse(bit3_as_sign, hn::TableLookupLanes(table.high, index),
                                hn::TableLookupLanes(table.low, index));
#endif
}

HWY_INLINE hn::Vec<Words> load_words(const std::uint8_t* from) {
#if HWY_TARGET == HWY_SCALAR
  std::uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return hn::Set(Words(), word);
#else
  return hn::BitCast(Words(), hn::LoadU(hn::Repartition<std::uint8_t, D>(), from));
#endif
}
#endif  // DUET_NIBBLE_WORDS

/// Which of the kBlocks blocks of a group lane i lies in.
template <int kBlocks>
struct BlockOfLane {
  alignas(64) std::int32_t lanes[std::size_t{kLanes}];
  constexpr BlockOfLane() : lanes() {
    for (std::int32_t i = 0; i < kLanes; ++i) lanes[i] = i * kBlocks / static_cast<std::int32_t>(kLanes);
  }
};
template <int kBlocks>
[[maybe_unused]] inline constexpr BlockOfLane<kBlocks> kBlockOfLane;

/// nf4 and fp4 whose blocks do not cross row ends. kBlocks: blocks a group holds, 1 also for a part of one.
///
/// With 8 or 16 lanes a group is one register of 32-bit words: word i holds the codes of elements [8 i, 8 i + 8), and
/// vector k takes the k-th code of every word, so unpacking costs a shift and a permute. With 4 lanes a group is 16
/// bytes, looked up byte by byte. `nibble_order` says which element each lane of each vector is.
template <int kBlocks>
struct NibbleReader {
  static constexpr bool kScaled = true;
  CodeTable table;
  const std::uint8_t* row = nullptr;
  const Matrix* matrix = nullptr;
  std::int64_t first_block = 0;     // Of this row.
  std::int64_t prepared_block = 0;  // Block of the row whose scale is scales[0].
  const float* scales = nullptr;
  std::int64_t block_shift = 0;
  std::int64_t full_groups = 0;
  std::int64_t last_row_block = 0;
  std::int64_t ahead = 0;
  alignas(64) std::uint8_t tail[kGroup / 2 + 4];
  float decoded[kSlabGroups * kGroup / 32 + 1];

  HWY_INLINE void start(const Matrix& weight, std::int64_t index) {
    if (matrix == nullptr) table = code_table((weight.spec.storage == Storage::nf4 ? kNf4Codes : kFp4Codes).data());
    matrix = &weight;
    block_shift = std::countr_zero(static_cast<std::uint32_t>(weight.spec.block_size));
    row = reinterpret_cast<const std::uint8_t*>(weight.data) + index * (weight.columns / 2);
    const std::int64_t row_blocks = weight.columns >> block_shift;
    first_block = index * row_blocks;
    last_row_block = row_blocks - 1;
    scales = weight.scales == nullptr ? nullptr : weight.scales + first_block;
    ahead = prefetch_distance_of(weight.columns / 2);
    full_groups = weight.columns / kGroup;
    const std::int64_t rest = weight.columns % kGroup;
    if (rest == 0) return;
    std::memset(tail, 0, sizeof(tail));
    std::memcpy(tail, row + full_groups * kGroup / 2, static_cast<std::size_t>(rest / 2));
  }

  HWY_INLINE void prepare(std::int64_t first_group, std::int64_t last_group) {
    if (!matrix->spec.nested) return;
    prepared_block = first_group * kGroup >> block_shift;
    const std::int64_t last_block = std::min((last_group * kGroup - 1) >> block_shift, last_row_block);
    const float offset = *matrix->nested_offset;
    const float* map = matrix->nested_map;
    for (std::int64_t b = prepared_block; b <= last_block; ++b) {
      const auto block = static_cast<std::uint64_t>(first_block + b);
      const float centred = map[matrix->scale_codes[block]] * matrix->nested_scales[block / kNestedBlockSize];
      decoded[b - prepared_block] = centred + offset;
    }
    scales = decoded;
  }

  /// The scale of each lane's block; lanes hold neighbouring elements.
  template <bool kTail>
  HWY_INLINE V lane_scales(std::int64_t group) const {
    const D d;
    const std::int64_t block = group * kGroup >> block_shift;
    const float* s = scales + (block - prepared_block);
    if constexpr (kBlocks == 1) {
      return hn::Set(d, *s);
    } else {
      // One load of all of them, then a permute. What lies behind the row's last block is multiplied by zeros.
      using Few = std::conditional_t<kBlocks == 2, std::uint64_t, hwy::uint128_t>;
      Few few = {};
      std::memcpy(&few, s, static_cast<std::size_t>(kTail ? last_row_block + 1 - block : kBlocks) * sizeof(float));
      V packed;
      if constexpr (kBlocks == 2) {
        packed = hn::BitCast(d, hn::Set(hn::Repartition<std::uint64_t, D>(), few));
      } else {
        packed = hn::LoadDup128(d, reinterpret_cast<const float*>(&few));
      }
      return hn::TableLookupLanes(packed, hn::SetTableIndices(d, kBlockOfLane<kBlocks>.lanes));
    }
  }

  template <bool kTail>
  HWY_INLINE V load(std::int64_t group, V* HWY_RESTRICT w) const {
    const std::uint8_t* from = kTail ? tail : row + group * (kGroup / 2);
    if (!kTail) prefetch<kGroup / 2>(from, ahead);
#if DUET_NIBBLE_WORDS
    // Loads that start a byte later stand in for shifts by 8: on many cores loads are free where shifts are not. They
    // reach three bytes beyond the codes, where the scales lie.
    const auto words0 = load_words(from);
    const auto words1 = load_words(from + 1);
    const auto words2 = load_words(from + 2);
    const auto words3 = load_words(from + 3);
    w[0] = look_up<0>(table, words0);
    w[1] = look_up<4>(table, words0);
    w[2] = look_up<0>(table, words1);
    w[3] = look_up<4>(table, words1);
    w[4] = look_up<0>(table, words2);
    w[5] = look_up<4>(table, words2);
    w[6] = look_up<0>(table, words3);
    w[7] = look_up<4>(table, words3);
#else
    const hn::Repartition<std::uint8_t, D> d8;
    const auto bytes = hn::LoadU(d8, from);
    const auto fifteen = hn::Set(d8, std::uint8_t{15});
    const auto halves = hn::BitCast(hn::Repartition<std::uint16_t, D>(), bytes);
    look_up_bytes(hn::And(bytes, fifteen), w);
    look_up_bytes(hn::And(hn::BitCast(d8, hn::ShiftRight<4>(halves)), fifteen), w + 4);
#endif
    return lane_scales<kTail>(group);
  }

#if !DUET_NIBBLE_WORDS
  /// w[m] = values of codes [4 m, 4 m + 4).
  HWY_INLINE void look_up_bytes(hn::Vec<hn::Repartition<std::uint8_t, D>> codes, V* HWY_RESTRICT w) const {
    const D d;
    const hn::Repartition<std::uint8_t, D> d8;
    const hn::Repartition<std::uint16_t, D> d16;
    const auto b0 = hn::TableLookupBytes(table.planes[0], codes);
    const auto b1 = hn::TableLookupBytes(table.planes[1], codes);
    const auto b2 = hn::TableLookupBytes(table.planes[2], codes);
    const auto b3 = hn::TableLookupBytes(table.planes[3], codes);
    const auto low_a = hn::BitCast(d16, hn::InterleaveLower(d8, b0, b1));
    const auto low_b = hn::BitCast(d16, hn::InterleaveLower(d8, b2, b3));
    const auto high_a = hn::BitCast(d16, hn::InterleaveUpper(d8, b0, b1));
    const auto high_b = hn::BitCast(d16, hn::InterleaveUpper(d8, b2, b3));
    w[0] = hn::BitCast(d, hn::InterleaveLower(d16, low_a, low_b));
    w[1] = hn::BitCast(d, hn::InterleaveUpper(d16, low_a, low_b));
    w[2] = hn::BitCast(d, hn::InterleaveLower(d16, high_a, high_b));
    w[3] = hn::BitCast(d, hn::InterleaveUpper(d16, high_a, high_b));
  }
#endif
};

/// Which element of its group lane `lane` of vector `vector` holds in NibbleReader's order. The earlier element of a
/// byte is in its high half.
constexpr std::int64_t nibble_order(std::int64_t vector, std::int64_t lane) {
#if DUET_NIBBLE_WORDS
  return 8 * lane + (vector ^ 1);
#else
  return 2 * (4 * (vector % 4) + lane) + (vector < 4 ? 1 : 0);
#endif
}

/// Anything else: a slab of the row is unpacked to memory first.
struct SlowReader {
  static constexpr bool kScaled = false;
  const Matrix* matrix = nullptr;
  std::int64_t index = 0;
  std::int64_t first_group = 0;
  std::int64_t full_groups = 0;
  alignas(64) float slab[kSlabGroups * kGroup];

  HWY_INLINE void start(const Matrix& weight, std::int64_t row) {
    matrix = &weight;
    index = row;
    full_groups = (weight.columns + kGroup - 1) / kGroup;  // The slab pads the last one.
  }
  HWY_INLINE void prepare(std::int64_t first, std::int64_t last) {
    first_group = first;
    const std::int64_t columns = std::min(last * kGroup, matrix->columns) - first * kGroup;
    dequantise(*matrix, index * matrix->columns + first * kGroup, {slab, static_cast<std::size_t>(columns)});
    std::fill(slab + columns, slab + (last - first) * kGroup, 0.0F);
  }
  template <bool kTail>
  HWY_INLINE V load(std::int64_t group, V* HWY_RESTRICT w) const {
    const float* from = slab + (group - first_group) * kGroup;
    DUET_UNROLL
    for (std::int64_t k = 0; k < kVectors; ++k) w[k] = hn::Load(D(), from + k * kLanes);
    return hn::Zero(D());
  }
};

#undef DUET_NIBBLE_WORDS

}  // namespace
}  // namespace duet::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, per target
