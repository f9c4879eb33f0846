// Matrix kernels of the host backend. This file is compiled once per instruction set (Highway's foreach_target).
#include "engine/host/host_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "engine/half.h"
#include "engine/quant_blocks.h"

// Vectors of a length unknown to the compiler cannot be held in arrays, as the kernels below do.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/host/host_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

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
constexpr std::int64_t kLanes = HWY_LANES(float);

// A row is read in groups of 8 vectors. The dot product of one group is summed in a fixed order, then added to the
// row's running sum, lane by lane; the lanes are summed at the row's end. Nothing in this order depends on the call.
constexpr std::int64_t kVectors = 8;
constexpr std::int64_t kGroup = kVectors * kLanes;
constexpr std::int64_t kSlabGroups = 16;  // Groups whose scales (or weights) a reader prepares at one time.
constexpr std::int64_t kTokenTile = 16;   // Tokens that share one unpacking of a row.

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

// ---- kernels ----

/// sum + (dot product of one group), the products in two chains of four.
template <bool kScaled>
HWY_INLINE V add_group(const V* HWY_RESTRICT w, const V* HWY_RESTRICT x, V scale, V sum) {
  V even = hn::Mul(w[0], x[0]);
  V odd = hn::Mul(w[1], x[1]);
  DUET_UNROLL
  for (std::int64_t k = 2; k < kVectors; k += 2) {
    even = hn::MulAdd(w[k], x[k], even);
    odd = hn::MulAdd(w[k + 1], x[k + 1], odd);
  }
  const V dot = hn::Add(even, odd);
  return kScaled ? hn::MulAdd(scale, dot, sum) : hn::Add(sum, dot);
}

HWY_INLINE float lane_sum(V v) { return hn::GetLane(hn::SumOfLanes(D(), v)); }

HWY_INLINE void load_group(const float* HWY_RESTRICT from, V* HWY_RESTRICT x) {
  DUET_UNROLL
  for (std::int64_t k = 0; k < kVectors; ++k) x[k] = hn::LoadU(D(), from + k * kLanes);
}

/// Adds the groups [first, last) of kRows rows, for one token, to sums[r].
template <bool kTail, int kRows, class Reader>
HWY_INLINE void add_groups_of_one(const Reader* HWY_RESTRICT readers, const float* HWY_RESTRICT packed,
                                  std::int64_t first, std::int64_t last, V* HWY_RESTRICT sums) {
  for (std::int64_t g = first; g < last; ++g) {
    V x[kVectors];
    load_group(packed + g * kGroup, x);
    DUET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      V w[kVectors];
      const V scale = readers[r].template load<kTail>(g, w);
      sums[r] = add_group<Reader::kScaled>(w, x, scale, sums[r]);
    }
  }
}

/// kRows rows by one token: the weights are used as they come out of the registers.
template <class Reader, int kRows>
HWY_INLINE void rows_by_one(const Matrix& weight, const float* HWY_RESTRICT packed, std::int64_t row, float* y) {
  const std::int64_t groups = (weight.columns + kGroup - 1) / kGroup;
  Reader readers[std::size_t{kRows}];
  V sums[std::size_t{kRows}];
  for (int r = 0; r < kRows; ++r) {
    readers[r].start(weight, row + r);
    sums[r] = hn::Zero(D());
  }
  const std::int64_t full = readers[0].full_groups;
  for (std::int64_t first = 0; first < groups; first += kSlabGroups) {
    const std::int64_t last = std::min(first + kSlabGroups, groups);
    for (int r = 0; r < kRows; ++r) readers[r].prepare(first, last);
    add_groups_of_one<false, kRows>(readers, packed, first, std::min(last, full), sums);
    if (last > full) add_groups_of_one<true, kRows>(readers, packed, full, last, sums);
  }
  for (int r = 0; r < kRows; ++r) y[row + r] = lane_sum(sums[r]);
}

/// Adds the groups [first, last) of kRows rows, for `tokens` tokens, to sums[t * kRows + r].
template <bool kTail, int kRows, class Reader>
HWY_INLINE void add_groups_of_many(const Reader* HWY_RESTRICT readers, const float* HWY_RESTRICT packed,
                                   std::int64_t packed_stride, std::int64_t tokens, std::int64_t first,
                                   std::int64_t last, V* HWY_RESTRICT sums) {
  for (std::int64_t g = first; g < last; ++g) {
    V w[std::size_t{kRows}][kVectors];
    V scales[std::size_t{kRows}];
    DUET_UNROLL
    for (int r = 0; r < kRows; ++r) scales[r] = readers[r].template load<kTail>(g, w[r]);
    for (std::int64_t t = 0; t < tokens; ++t) {
      V x[kVectors];
      load_group(packed + t * packed_stride + g * kGroup, x);
      DUET_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sums[t * kRows + r] = add_group<Reader::kScaled>(w[r], x, scales[r], sums[t * kRows + r]);
      }
    }
  }
}

/// kRows rows by up to kTokenTile tokens: a group is unpacked once and used for every token.
template <class Reader, int kRows>
HWY_INLINE void rows_by_many(const Matrix& weight, const float* HWY_RESTRICT packed, std::int64_t packed_stride,
                             std::int64_t tokens, std::int64_t row, float* y, std::int64_t y_stride) {
  const std::int64_t groups = (weight.columns + kGroup - 1) / kGroup;
  Reader readers[std::size_t{kRows}];
  V sums[std::size_t{kTokenTile * kRows}];
  for (int r = 0; r < kRows; ++r) readers[r].start(weight, row + r);
  for (std::int64_t i = 0; i < tokens * kRows; ++i) sums[i] = hn::Zero(D());
  const std::int64_t full = readers[0].full_groups;
  for (std::int64_t first = 0; first < groups; first += kSlabGroups) {
    const std::int64_t last = std::min(first + kSlabGroups, groups);
    for (int r = 0; r < kRows; ++r) readers[r].prepare(first, last);
    add_groups_of_many<false, kRows>(readers, packed, packed_stride, tokens, first, std::min(last, full), sums);
    if (last > full) add_groups_of_many<true, kRows>(readers, packed, packed_stride, tokens, full, last, sums);
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (int r = 0; r < kRows; ++r) y[t * y_stride + row + r] = lane_sum(sums[t * kRows + r]);
  }
}

template <class Reader>
void matmul_with(const Matrix& weight, const float* packed, std::int64_t tokens, std::int64_t first_row,
                 std::int64_t last_row, float* y, std::int64_t y_stride) {
  const std::int64_t stride = packed_columns(weight.columns);
  for (std::int64_t t = 0; t < tokens; t += kTokenTile) {
    const std::int64_t tile = std::min(kTokenTile, tokens - t);
    const float* x = packed + t * stride;
    float* out = y + t * y_stride;
    std::int64_t row = first_row;
    if (tile == 1) {
      for (; row + 4 <= last_row; row += 4) rows_by_one<Reader, 4>(weight, x, row, out);
      for (; row < last_row; ++row) rows_by_one<Reader, 1>(weight, x, row, out);
    } else {
      for (; row + 2 <= last_row; row += 2) rows_by_many<Reader, 2>(weight, x, stride, tile, row, out, y_stride);
      for (; row < last_row; ++row) rows_by_many<Reader, 1>(weight, x, stride, tile, row, out, y_stride);
    }
  }
}

void matmul(const Matrix& weight, const float* packed, std::int64_t tokens, std::int64_t first_row,
            std::int64_t last_row, float* y, std::int64_t y_stride) {
  const auto with = [&](auto kernel) { kernel(weight, packed, tokens, first_row, last_row, y, y_stride); };
  const bool lined_up = !is_quantised(weight.spec.storage) || weight.columns % weight.spec.block_size == 0;
  switch (weight.spec.storage) {
    case Storage::f32:
      return with(matmul_with<DenseReader<float>>);
    case Storage::f16:
      return with(matmul_with<DenseReader<hwy::float16_t>>);
    case Storage::bf16:
      return with(matmul_with<DenseReader<hwy::bfloat16_t>>);
    case Storage::int8:
      if (!lined_up) return with(matmul_with<SlowReader>);
      return weight.spec.block_size == 32 ? with(matmul_with<Int8Reader<32>>) : with(matmul_with<Int8Reader<64>>);
    case Storage::nf4:
    case Storage::fp4:
      if (!lined_up) return with(matmul_with<SlowReader>);
      switch (kGroup / weight.spec.block_size) {
        case 4:
          return with(matmul_with<NibbleReader<std::min<int>(4, std::max<int>(1, kGroup / 32))>>);
        case 2:
          return with(matmul_with<NibbleReader<std::min<int>(2, std::max<int>(1, kGroup / 32))>>);
        default:
          return with(matmul_with<NibbleReader<1>>);
      }
  }
}

void pack_nibbles(const float* HWY_RESTRICT x, std::int64_t columns, float* HWY_RESTRICT packed) {
  const std::int64_t full = columns / kGroup * kGroup;
  for (std::int64_t c = 0; c < full; c += kGroup) {
    for (std::int64_t k = 0; k < kVectors; ++k) {
      for (std::int64_t i = 0; i < kLanes; ++i) packed[c + k * kLanes + i] = x[c + nibble_order(k, i)];
    }
  }
  std::fill(packed + full, packed + packed_columns(columns), 0.0F);
  for (std::int64_t k = 0; k < kVectors && full < columns; ++k) {
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const std::int64_t element = full + nibble_order(k, i);
      if (element < columns) packed[full + k * kLanes + i] = x[element];
    }
  }
}

// ---- LoRA ----

template <class T>
HWY_INLINE float small_to_float(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, hwy::float16_t>) {
    return to_float(std::bit_cast<Half>(value));
  } else {
    return to_float(std::bit_cast<Bfloat16>(value));
  }
}

/// a . b, [size]: full vectors, then vectors of four, then single elements.
template <class T>
HWY_INLINE float short_dot(const T* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t size) {
  const D d;
  const hn::CappedTag<float, 4> d4;
  std::int64_t i = 0;
  float total = 0.0F;
  if (size >= kLanes) {
    V sum = hn::Zero(d);
    for (; i + kLanes <= size; i += kLanes) sum = hn::MulAdd(promote(a + i), hn::LoadU(d, b + i), sum);
    total = lane_sum(sum);
  }
  if constexpr (kLanes > 4) {
    auto sum = hn::Zero(d4);
    for (; i + 4 <= size; i += 4) {
      float four[4];
      for (std::int64_t k = 0; k < 4; ++k) four[k] = small_to_float(a[i + k]);
      sum = hn::MulAdd(hn::LoadU(d4, four), hn::LoadU(d4, b + i), sum);
    }
    total += hn::GetLane(hn::SumOfLanes(d4, sum));
  }
  for (; i < size; ++i) total += small_to_float(a[i]) * b[i];
  return total;
}

template <class T>
void add_lora_with(const Matrix& b, const float* u, const float* c, float scale, std::int64_t first_row,
                   std::int64_t last_row, float* y) {
  const T* rows = reinterpret_cast<const T*>(b.data);
  for (std::int64_t r = first_row; r < last_row; ++r) {
    float delta = short_dot(rows + r * b.columns, u, b.columns);
    if (c != nullptr) delta += c[r];
    y[r] += scale * delta;
  }
}

void add_lora(const Matrix& b, const float* u, const float* c, float scale, std::int64_t first_row,
              std::int64_t last_row, float* y) {
  switch (b.spec.storage) {
    case Storage::f16:
      return add_lora_with<hwy::float16_t>(b, u, c, scale, first_row, last_row, y);
    case Storage::bf16:
      return add_lora_with<hwy::bfloat16_t>(b, u, c, scale, first_row, last_row, y);
    default:
      return add_lora_with<float>(b, u, c, scale, first_row, last_row, y);
  }
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

#undef DUET_NIBBLE_WORDS

}  // namespace
}  // namespace duet::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace duet::host {

HWY_EXPORT(matmul);
HWY_EXPORT(pack_nibbles);
HWY_EXPORT(add_lora);
HWY_EXPORT(target_name);

const char* instruction_set_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

Packing packing_of(const Matrix& weight) {
  const bool four_bits = weight.spec.storage == Storage::nf4 || weight.spec.storage == Storage::fp4;
  return four_bits && weight.columns % weight.spec.block_size == 0 ? Packing::nibbles : Packing::natural;
}

std::int64_t packed_columns(std::int64_t columns) {
  constexpr std::int64_t kLargestGroup = 128;  // 8 vectors of 16 lanes.
  return (columns + kLargestGroup - 1) / kLargestGroup * kLargestGroup;
}

void pack(Packing packing, const float* x, std::int64_t columns, float* packed) {
  if (packing == Packing::nibbles) {
    HWY_DYNAMIC_DISPATCH(pack_nibbles)(x, columns, packed);
    return;
  }
  std::copy(x, x + columns, packed);
  std::fill(packed + columns, packed + packed_columns(columns), 0.0F);
}

void matmul(const Matrix& weight, const float* packed, std::int64_t tokens, std::int64_t first_row,
            std::int64_t last_row, float* y, std::int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(matmul)(weight, packed, tokens, first_row, last_row, y, y_stride);
}

void add_lora(const Matrix& b, const float* u, const float* c, float scale, std::int64_t first_row,
              std::int64_t last_row, float* y) {
  HWY_DYNAMIC_DISPATCH(add_lora)(b, u, c, scale, first_row, last_row, y);
}

}  // namespace duet::host
#endif  // HWY_ONCE
