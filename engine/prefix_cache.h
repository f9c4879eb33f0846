#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv_pages.h"

namespace duet {

/// Hands out the pool's pages and remembers what whole pages hold, so that a request with the same beginning reuses
/// them. A page is found again only for the same base weights, adapter content, effective scale and tokens from the
/// first on: hashes only narrow the search, identity, parent page and tokens are compared.
///
/// A page nobody holds but that is remembered is *cached*; cached pages are taken back least recently used first when
/// the free ones run out. A chain of pages is held from its beginning and let go from its end, so a page always goes
/// before the page it continues.
///
/// Nothing is allocated after construction but room for identities never seen at the same time before. Not thread-safe.
class PrefixCache {
 public:
  /// `pages` must outlive the cache and be used through it alone. Pages hold at most `most_tokens_per_page`.
  /// `hash_mask` is for tests: 0 makes all hashes collide.
  PrefixCache(KvPages& pages, std::int64_t most_tokens_per_page, std::uint64_t hash_mask = ~std::uint64_t{0});

  /// What pages were computed with. An identity stays the same number while anybody holds it or a page remembers it.
  int hold_identity(int base, std::string_view adapter_hash, float scale);
  void drop_identity(int identity);

  /// A page to write to, held once: a free one, else the least recently used cached one; -1 when all are held.
  std::int32_t take();

  /// Appends to `chain` the remembered pages that hold the longest beginning of `tokens`, whole pages only, and holds
  /// each once more.
  void match(int identity, std::span<const std::int32_t> tokens, std::int64_t tokens_per_page,
             std::vector<std::int32_t>& chain);

  /// Remembers that `page`, held by the caller, is full and holds `tokens`, continuing `parent` (remembered and held
  /// too; -1: the first page). Returns the page to go on with: `page`, or one that already held the same; then `page`
  /// has been let go and the other is held in its place.
  std::int32_t remember(int identity, std::int32_t parent, std::span<const std::int32_t> tokens, std::int32_t page);

  /// Lets go of a sequence's pages, last first.
  void release(std::span<const std::int32_t> chain);

  /// Frees all cached pages.
  void clear();

  std::int64_t available() const { return pages_.free_count() + cached_; }  ///< Pages that `take` could hand out now.
  std::int64_t cached() const { return cached_; }
  std::uint64_t evicted() const { return evicted_; }  ///< Cached pages that `take` took back, ever.
  int identities() const;

 private:
  struct Identity {
    int base = 0;
    std::string adapter_hash;
    std::uint32_t scale_bits = 0;
    int holders = 0;  ///< Sequences and remembered pages; 0: the entry is free.
  };
  struct Node {  ///< What one page holds.
    bool remembered = false;
    int identity = -1;
    std::int32_t parent = -1;
    std::int32_t token_count = 0;
    std::uint64_t hash = 0;               ///< Of identity and all tokens up to this page's end.
    std::int32_t next_in_bucket = -1;     ///< Chain of the hash table.
    std::int32_t older = -1, newer = -1;  ///< Neighbours among cached pages.
  };

  Node& node(std::int32_t page) { return nodes_[static_cast<std::size_t>(page)]; }
  std::span<std::int32_t> tokens_of(std::int32_t page);
  std::int32_t& bucket_of(std::uint64_t hash) {
    return buckets_[static_cast<std::size_t>(hash) & (buckets_.size() - 1)];
  }
  std::uint64_t hash_of(int identity, std::int32_t parent, std::span<const std::int32_t> tokens);
  std::int32_t find(std::uint64_t hash, int identity, std::int32_t parent, std::span<const std::int32_t> tokens);
  void hold(std::int32_t page);
  void let_go(std::int32_t page);
  void forget(std::int32_t page);
  void link_newest(std::int32_t page);
  void unlink(std::int32_t page);

  KvPages& pages_;
  std::size_t most_tokens_per_page_;
  std::uint64_t hash_mask_;
  std::vector<Identity> identities_;
  std::vector<Node> nodes_;            ///< [pages]
  std::vector<std::int32_t> tokens_;   ///< [pages, most_tokens_per_page]
  std::vector<std::int32_t> buckets_;  ///< First page of each bucket; a power of two of them.
  std::int32_t oldest_ = -1, newest_ = -1;
  std::int64_t cached_ = 0;
  std::uint64_t evicted_ = 0;
};

}  // namespace duet
