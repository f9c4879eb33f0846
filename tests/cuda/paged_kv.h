#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "cuda/step_types.h"
#include "engine/half.h"
#include "engine/host/kv_view.h"
#include "tests/support/gpu.h"

/// Sequences in pages for tests of rope and attention: once as the card reads them, once in float32 for the oracle.
namespace duet::test {

inline const char* name_of(cuda::KvType type) {
  return type == cuda::KvType::f16 ? "f16" : type == cuda::KvType::bf16 ? "bf16" : "int8";
}

inline std::size_t scales_offset(const cuda::KvPool& kv) {
  const std::size_t numbers = static_cast<std::size_t>(kv.layers) * 2 * static_cast<std::size_t>(kv.kv_heads) *
                              static_cast<std::size_t>(kv.tokens_per_page) * static_cast<std::size_t>(kv.head_size);
  return (numbers * (kv.type == cuda::KvType::int8 ? 1 : 2) + 15) / 16 * 16;
}

/// Pages of their least size and 48 bytes that belong to nobody.
inline std::size_t padded_page_bytes(const cuda::KvPool& kv) {
  const std::size_t scales = kv.type == cuda::KvType::int8
                                 ? static_cast<std::size_t>(kv.layers * 2 * kv.kv_heads * kv.tokens_per_page) * 4
                                 : 0;
  return (scales_offset(kv) + scales + 15) / 16 * 16 + 48;
}

/// Page lists of sequences with room for `lengths` tokens: ids in random order, more pages than are used. Everything is
/// NaN (0xFF) until it is set; int8 codes are -1 with scales NaN.
class PagedKv {
 public:
  PagedKv(cuda::KvPool shape, const std::vector<std::int64_t>& lengths, std::mt19937& random) : kv(shape) {
    std::int64_t count = 0;
    for (const std::int64_t length : lengths) {
      first_pages.push_back(static_cast<std::int32_t>(count));
      page_counts.push_back((length + kv.tokens_per_page - 1) / kv.tokens_per_page);
      count += page_counts.back();
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count + 3));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), random);
    kv.page_bytes = padded_page_bytes(kv);
    bytes.assign(ids.size() * kv.page_bytes, std::byte{0xFF});
    float_page_bytes_ = static_cast<std::size_t>(kv.layers * 2 * kv.kv_heads * kv.tokens_per_page) *
                        static_cast<std::size_t>(kv.head_size) * sizeof(float);
    floats.assign(ids.size() * float_page_bytes_ / sizeof(float), std::nanf(""));
    ids.resize(static_cast<std::size_t>(count));
    pages = std::move(ids);
  }

  KvView view(std::size_t sequence) {
    return {reinterpret_cast<std::byte*>(floats.data()),
            float_page_bytes_,
            kv.tokens_per_page,
            kv.kv_heads,
            kv.head_size,
            std::span(pages).subspan(static_cast<std::size_t>(first_pages[sequence]),
                                     static_cast<std::size_t>(page_counts[sequence]))};
  }

  /// Rounds `x` [head_size] to the KV type, as the header of cuda/rope.cu says.
  void set(std::size_t sequence, int layer, bool is_value, int kv_head, std::int64_t position,
           std::span<const float> x) {
    float* const decoded =
        is_value ? view(sequence).value(layer, kv_head, position) : view(sequence).key(layer, kv_head, position);
    std::byte* const page = page_of(sequence, position);
    const std::size_t vector = vector_in_page(layer, is_value, kv_head, position);
    float scale = 0;
    if (kv.type == cuda::KvType::int8) {
      for (const float value : x) scale = std::max(scale, std::abs(value));
      scale /= 127.0F;
      std::memcpy(page + scales_offset(kv) + vector * 4, &scale, 4);
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t at = vector * static_cast<std::size_t>(kv.head_size) + i;
      if (kv.type == cuda::KvType::int8) {
        const float code = scale > 0 ? std::clamp(std::nearbyint(x[i] / scale), -127.0F, 127.0F) : 0.0F;
        page[at] = static_cast<std::byte>(static_cast<std::int8_t>(code));
        decoded[i] = static_cast<float>(static_cast<std::int8_t>(code)) * scale;  // no -0 in codes
      } else if (kv.type == cuda::KvType::f16) {
        const Half half = to_half(x[i]);
        std::memcpy(page + at * 2, &half, 2);
        decoded[i] = to_float(half);
      } else {
        const Bfloat16 rounded = to_bfloat16(x[i]);
        std::memcpy(page + at * 2, &rounded, 2);
        decoded[i] = to_float(rounded);
      }
    }
  }

  /// Random keys of size `key_size` and values at positions [first, last): tokens' values differ in size by up to 2^9.
  void fill(std::size_t sequence, int layer, std::int64_t first, std::int64_t last, float key_size,
            std::mt19937& random) {
    std::vector<float> x(static_cast<std::size_t>(kv.head_size));
    const auto uniform = [&] { return static_cast<float>(random()) * 0x1p-31F - 1.0F; };
    for (std::int64_t position = first; position < last; ++position)
      for (int head = 0; head < kv.kv_heads; ++head)
        for (const bool is_value : {false, true}) {
          const float size = is_value ? std::exp2(-static_cast<float>(random() % 10)) : key_size;
          for (float& value : x) value = size * (uniform() + uniform() + uniform());
          set(sequence, layer, is_value, head, position, x);
        }
  }

  std::byte* page_of(std::size_t sequence, std::int64_t position) {
    const std::int32_t page = pages[static_cast<std::size_t>(first_pages[sequence] + position / kv.tokens_per_page)];
    return bytes.data() + static_cast<std::size_t>(page) * kv.page_bytes;
  }
  std::size_t vector_in_page(int layer, bool is_value, int kv_head, std::int64_t position) const {
    return static_cast<std::size_t>(((2 * layer + (is_value ? 1 : 0)) * kv.kv_heads + kv_head) * kv.tokens_per_page +
                                    position % kv.tokens_per_page);
  }

  cuda::KvPool kv;                        ///< pool null.
  std::vector<std::byte> bytes;           ///< All pages, as on the card.
  std::vector<float> floats;              ///< The same in float32.
  std::vector<std::int32_t> pages;        ///< The sequences' lists, one after the other.
  std::vector<std::int32_t> first_pages;  ///< [sequences]
  std::vector<std::int64_t> page_counts;  ///< [sequences]

 private:
  std::size_t float_page_bytes_ = 0;
};

}  // namespace duet::test
