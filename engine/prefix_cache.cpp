// Reuse of whole KV pages.
#include "engine/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace duet {

namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes every output bit.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

}  // namespace

PrefixCache::PrefixCache(KvPages& pages, std::int64_t most_tokens_per_page, std::uint64_t hash_mask)
    : pages_(pages),
      most_tokens_per_page_(static_cast<std::size_t>(most_tokens_per_page)),
      hash_mask_(hash_mask),
      nodes_(static_cast<std::size_t>(pages.count())),
      tokens_(nodes_.size() * most_tokens_per_page_),
      buckets_(std::bit_ceil(std::max<std::size_t>(16, 2 * nodes_.size())), -1) {
  identities_.reserve(64);
}

// ---- identities ----

int PrefixCache::hold_identity(int base, std::string_view adapter_hash, float scale) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  std::size_t unused = identities_.size();
  for (std::size_t i = 0; i < identities_.size(); ++i) {
    Identity& entry = identities_[i];
    if (entry.holders == 0) {
      unused = std::min(unused, i);
    } else if (entry.base == base && entry.scale_bits == bits && entry.adapter_hash == adapter_hash) {
      ++entry.holders;
      return static_cast<int>(i);
    }
  }
  if (unused == identities_.size()) identities_.emplace_back();
  Identity& entry = identities_[unused];
  entry.base = base;
  entry.adapter_hash = adapter_hash;
  entry.scale_bits = bits;
  entry.holders = 1;
  return static_cast<int>(unused);
}

void PrefixCache::drop_identity(int identity) {
  assert(identities_[static_cast<std::size_t>(identity)].holders > 0);
  --identities_[static_cast<std::size_t>(identity)].holders;
}

int PrefixCache::identities() const {
  return static_cast<int>(
      std::count_if(identities_.begin(), identities_.end(), [](const Identity& entry) { return entry.holders > 0; }));
}

// ---- pages in and out ----

std::int32_t PrefixCache::take() {
  const std::int32_t page = pages_.take();
  if (page >= 0 || oldest_ < 0) return page;
  forget(oldest_);
  ++evicted_;
  return pages_.take();
}

void PrefixCache::match(int identity, std::span<const std::int32_t> tokens, std::int64_t tokens_per_page,
                        std::vector<std::int32_t>& chain) {
  const auto size = static_cast<std::size_t>(tokens_per_page);
  std::int32_t parent = -1;
  while (tokens.size() >= size) {
    const auto head = tokens.first(size);
    const std::int32_t page = find(hash_of(identity, parent, head), identity, parent, head);
    if (page < 0) return;
    hold(page);
    chain.push_back(page);
    parent = page;
    tokens = tokens.subspan(size);
  }
}

std::int32_t PrefixCache::remember(int identity, std::int32_t parent, std::span<const std::int32_t> tokens,
                                   std::int32_t page) {
  assert(parent < 0 || node(parent).remembered);
  assert(tokens.size() <= most_tokens_per_page_ && !node(page).remembered && pages_.references(page) == 1);
  const std::uint64_t hash = hash_of(identity, parent, tokens);
  if (const std::int32_t same = find(hash, identity, parent, tokens); same >= 0) {
    hold(same);
    let_go(page);
    return same;
  }
  Node& entry = node(page);
  entry.remembered = true;
  entry.identity = identity;
  entry.parent = parent;
  entry.token_count = static_cast<std::int32_t>(tokens.size());
  entry.hash = hash;
  entry.next_in_bucket = bucket_of(hash);
  bucket_of(hash) = page;
  std::copy(tokens.begin(), tokens.end(), tokens_of(page).begin());
  ++identities_[static_cast<std::size_t>(identity)].holders;
  return page;
}

void PrefixCache::release(std::span<const std::int32_t> chain) {
  for (auto page = chain.rbegin(); page != chain.rend(); ++page) let_go(*page);
}

void PrefixCache::clear() {
  while (oldest_ >= 0) forget(oldest_);
}

void PrefixCache::hold(std::int32_t page) {
  if (pages_.references(page) == 0) unlink(page);
  pages_.add_reference(page);
}

void PrefixCache::let_go(std::int32_t page) {
  if (pages_.drop_reference(page) > 0) return;
  if (node(page).remembered)
    link_newest(page);
  else
    pages_.free(page);
}

// ---- the table ----

std::span<std::int32_t> PrefixCache::tokens_of(std::int32_t page) {
  return std::span(tokens_).subspan(static_cast<std::size_t>(page) * most_tokens_per_page_,
                                    static_cast<std::size_t>(node(page).token_count));
}

std::uint64_t PrefixCache::hash_of(int identity, std::int32_t parent, std::span<const std::int32_t> tokens) {
  std::uint64_t hash = parent < 0 ? mixed(static_cast<std::uint64_t>(identity)) : node(parent).hash;
  for (const std::int32_t token : tokens) hash = mixed(hash ^ static_cast<std::uint32_t>(token));
  return hash & hash_mask_;
}

std::int32_t PrefixCache::find(std::uint64_t hash, int identity, std::int32_t parent,
                               std::span<const std::int32_t> tokens) {
  for (std::int32_t page = bucket_of(hash); page >= 0; page = node(page).next_in_bucket) {
    const Node& entry = node(page);
    if (entry.hash == hash && entry.identity == identity && entry.parent == parent &&
        std::equal(tokens.begin(), tokens.end(), tokens_of(page).begin(), tokens_of(page).end()))
      return page;
  }
  return -1;
}

/// Frees a cached page.
void PrefixCache::forget(std::int32_t page) {
  Node& entry = node(page);
  std::int32_t* link = &bucket_of(entry.hash);
  while (*link != page) link = &node(*link).next_in_bucket;
  *link = entry.next_in_bucket;
  unlink(page);
  entry.remembered = false;
  drop_identity(entry.identity);
  pages_.free(page);
}

void PrefixCache::link_newest(std::int32_t page) {
  Node& entry = node(page);
  entry.older = newest_;
  entry.newer = -1;
  (newest_ >= 0 ? node(newest_).newer : oldest_) = page;
  newest_ = page;
  ++cached_;
}

void PrefixCache::unlink(std::int32_t page) {
  const Node& entry = node(page);
  (entry.older >= 0 ? node(entry.older).newer : oldest_) = entry.newer;
  (entry.newer >= 0 ? node(entry.newer).older : newest_) = entry.older;
  --cached_;
}

}  // namespace duet
