#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// Where keys and values lie in the page pool.
namespace duet {

/// One sequence's pages, seen as keys and values in float32. Page `pages[i]` holds the positions
/// [i * tokens_per_page, (i + 1) * tokens_per_page); inside a page the order is [layer][K,
/// V][kv_head][token][head_size].
struct KvView {
  std::byte* pool = nullptr;
  std::size_t page_bytes = 0;
  std::int64_t tokens_per_page = 0;
  int kv_heads = 0;
  int head_size = 0;
  std::span<const std::int32_t> pages;

  /// [head_size]; followed by those of the next positions up to the end of the page.
  float* key(int layer, int kv_head, std::int64_t position) const { return at(2 * layer, kv_head, position); }
  float* value(int layer, int kv_head, std::int64_t position) const { return at(2 * layer + 1, kv_head, position); }

 private:
  float* at(int plane, int kv_head, std::int64_t position) const {
    const std::int64_t page = pages[static_cast<std::size_t>(position / tokens_per_page)];
    auto* const start = reinterpret_cast<float*>(pool + static_cast<std::size_t>(page) * page_bytes);
    const std::int64_t row = (std::int64_t{plane} * kv_heads + kv_head) * tokens_per_page + position % tokens_per_page;
    return start + row * head_size;
  }
};

}  // namespace duet
