// Matrix kernels of the host backend. This file is compiled once per instruction set (Highway's foreach_target).
#include "engine/host/host_kernels.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "engine/half.h"

// Vectors of a length unknown to the compiler cannot be held in arrays, as the kernels below do. SSSE3 alone is not
// worth a sixth compilation: x86 has had SSE4 since 2008.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/host/host_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
//
#include <hwy/highway.h>

#include "engine/host/row_readers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace duet::host::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kTokenTile = 16;  // Tokens that share one unpacking of a row.

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
