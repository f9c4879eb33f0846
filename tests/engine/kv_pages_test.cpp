#include "engine/kv_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "engine/prefix_cache.h"

namespace duet {
namespace {

constexpr std::int64_t kTokensPerPage = 4;

std::vector<std::int32_t> tokens_from(std::int32_t first, std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<std::int32_t>(i);
  return tokens;
}

/// Takes and remembers all whole pages of `tokens` beyond those that match; returns the chain.
std::vector<std::int32_t> run_through(PrefixCache& cache, int identity, std::span<const std::int32_t> tokens,
                                      std::size_t* matched = nullptr) {
  std::vector<std::int32_t> chain;
  cache.match(identity, tokens, kTokensPerPage, chain);
  if (matched != nullptr) *matched = chain.size();
  while ((chain.size() + 1) * kTokensPerPage <= tokens.size()) {
    const std::int32_t page = cache.take();
    if (page < 0) break;
    const std::int32_t parent = chain.empty() ? -1 : chain.back();
    chain.push_back(
        cache.remember(identity, parent, tokens.subspan(chain.size() * kTokensPerPage, kTokensPerPage), page));
  }
  return chain;
}

TEST(KvPages, HandsOutEveryPageOnceAndTakesThemBack) {
  KvPages pages(5);
  std::set<std::int32_t> taken;
  for (int i = 0; i < 5; ++i) taken.insert(pages.take());
  EXPECT_EQ(taken, (std::set<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pages.take(), -1);
  pages.add_reference(3);
  EXPECT_EQ(pages.drop_reference(3), 1);
  EXPECT_EQ(pages.drop_reference(3), 0);
  EXPECT_EQ(pages.free_count(), 0) << "idle is not free";
  pages.free(3);
  EXPECT_EQ(pages.free_count(), 1);
  EXPECT_EQ(pages.take(), 3);
}

TEST(KvPages, RandomTakesAndFreesKeepTheirPatterns) {
  // Each page taken is filled with a pattern of its own; as long as it is held nobody else may write over it.
  std::mt19937_64 random(7);
  KvPages pages(64);
  std::vector<std::uint64_t> content(64, 0);
  std::vector<std::pair<std::int32_t, std::uint64_t>> held;
  for (int i = 0; i < 100000; ++i) {
    if (random() % 2 == 0) {
      const std::int32_t page = pages.take();
      ASSERT_EQ(page < 0, held.size() == 64);
      if (page < 0) continue;
      held.emplace_back(page, random());
      content[static_cast<std::size_t>(page)] = held.back().second;
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const auto [page, pattern] = held.back();
      held.pop_back();
      ASSERT_EQ(content[static_cast<std::size_t>(page)], pattern);
      ASSERT_EQ(pages.drop_reference(page), 0);
      pages.free(page);
    }
    ASSERT_EQ(pages.free_count() + static_cast<std::int64_t>(held.size()), 64);
  }
}

TEST(PrefixCache, FindsWholePagesOfTheSameBeginning) {
  KvPages pages(8);
  PrefixCache cache(pages, kTokensPerPage);
  const int identity = cache.hold_identity(0, "adapter", 1.0F);
  const auto first = run_through(cache, identity, tokens_from(0, 12));
  cache.release(first);
  EXPECT_EQ(cache.cached(), 3);
  EXPECT_EQ(cache.available(), 8);

  std::vector<std::int32_t> chain;
  cache.match(identity, tokens_from(0, 11), kTokensPerPage, chain);
  EXPECT_EQ(chain, (std::vector<std::int32_t>{first[0], first[1]})) << "two whole pages of eleven tokens";
  EXPECT_EQ(cache.cached(), 1);
  cache.release(chain);
  chain.clear();

  std::vector<std::int32_t> other = tokens_from(0, 12);
  other[5] = 99;
  cache.match(identity, other, kTokensPerPage, chain);
  EXPECT_EQ(chain, (std::vector<std::int32_t>{first[0]}));
  cache.release(chain);
}

TEST(PrefixCache, AnIdentityIsBaseAdapterContentAndScale) {
  KvPages pages(8);
  PrefixCache cache(pages, kTokensPerPage, 0);  // All hashes collide: only the comparison keeps them apart.
  const int identity = cache.hold_identity(0, "adapter", 1.0F);
  cache.release(run_through(cache, identity, tokens_from(0, 8)));
  for (const auto& [base, adapter, scale] : {std::tuple(1, "adapter", 1.0F), std::tuple(0, "adapteR", 1.0F),
                                             std::tuple(0, "", 1.0F), std::tuple(0, "adapter", 0.5F)}) {
    const int other = cache.hold_identity(base, adapter, scale);
    EXPECT_NE(other, identity);
    std::vector<std::int32_t> chain;
    cache.match(other, tokens_from(0, 8), kTokensPerPage, chain);
    EXPECT_TRUE(chain.empty()) << base << adapter << scale;
    cache.drop_identity(other);
  }
  EXPECT_EQ(cache.hold_identity(0, "adapter", 1.0F), identity);
}

TEST(PrefixCache, EvictsTheLeastRecentlyUsedPageAndTheEndOfAChainFirst) {
  KvPages pages(4);
  PrefixCache cache(pages, kTokensPerPage);
  const int identity = cache.hold_identity(0, "", 1.0F);
  const auto old_chain = run_through(cache, identity, tokens_from(0, 8));
  const auto new_chain = run_through(cache, identity, tokens_from(100, 8));
  cache.release(old_chain);
  cache.release(new_chain);
  EXPECT_EQ(cache.take(), old_chain[1]);
  EXPECT_EQ(cache.take(), old_chain[0]);
  EXPECT_EQ(cache.take(), new_chain[1]);
  EXPECT_EQ(cache.evicted(), 3U);
  EXPECT_EQ(cache.available(), 1);
}

TEST(PrefixCache, AnEvictedBeginningIsNeverTheParentOfWhatIsLeft) {
  KvPages pages(2);
  PrefixCache cache(pages, kTokensPerPage, 0);
  const int identity = cache.hold_identity(0, "", 1.0F);
  cache.release(run_through(cache, identity, tokens_from(0, 8)));
  // Other tokens take both pages over; the old chain must be gone although the page ids are the same.
  cache.release(run_through(cache, identity, tokens_from(50, 8)));
  std::vector<std::int32_t> chain;
  cache.match(identity, tokens_from(0, 8), kTokensPerPage, chain);
  EXPECT_TRUE(chain.empty());
}

TEST(PrefixCache, TwoThatComputedTheSameShareOnePageAfterwards) {
  KvPages pages(4);
  PrefixCache cache(pages, kTokensPerPage);
  const int identity = cache.hold_identity(0, "", 1.0F);
  const auto tokens = tokens_from(0, 4);
  const std::int32_t first = cache.take();
  const std::int32_t second = cache.take();
  EXPECT_EQ(cache.remember(identity, -1, tokens, first), first);
  EXPECT_EQ(cache.remember(identity, -1, tokens, second), first);
  EXPECT_EQ(pages.references(first), 2);
  EXPECT_EQ(cache.available(), 3);
}

TEST(PrefixCache, ClearFreesWhatNobodyHolds) {
  KvPages pages(4);
  PrefixCache cache(pages, kTokensPerPage);
  const int identity = cache.hold_identity(0, "", 1.0F);
  const auto held = run_through(cache, identity, tokens_from(0, 4));
  cache.release(run_through(cache, identity, tokens_from(10, 8)));
  EXPECT_EQ(cache.cached(), 2);
  cache.clear();
  EXPECT_EQ(cache.cached(), 0);
  EXPECT_EQ(pages.free_count(), 3);
  cache.release(held);
  cache.drop_identity(identity);
  EXPECT_EQ(cache.identities(), 1) << "the remembered page";
  cache.clear();
  EXPECT_EQ(cache.identities(), 0);
}

/// Against a plain model: whatever is matched must be what was written, whatever collides.
TEST(PrefixCache, RandomUseNeverGivesAPageOfOtherTokens) {
  for (const std::uint64_t hash_mask : {~std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{0}}) {
    std::mt19937_64 random(13);
    KvPages pages(24);
    PrefixCache cache(pages, kTokensPerPage, hash_mask);
    using Content = std::pair<int, std::vector<std::int32_t>>;  // Identity key and all tokens up to the page's end.
    std::map<std::int32_t, Content> content;
    struct Held {
      int identity;
      std::vector<std::int32_t> chain;
    };
    std::vector<Held> held;
    std::size_t matches = 0;
    for (int round = 0; round < 20000; ++round) {
      if (held.size() > 3 || (!held.empty() && random() % 2 == 0)) {
        std::swap(held[random() % held.size()], held.back());
        cache.release(held.back().chain);
        cache.drop_identity(held.back().identity);
        held.pop_back();
        if (random() % 50 == 0) cache.clear();
        continue;
      }
      const int key = static_cast<int>(random() % 3);
      std::vector<std::int32_t> tokens(random() % 25);
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 8 == 0);
      Held entry{cache.hold_identity(key, "", 1.0F), {}};
      cache.match(entry.identity, tokens, kTokensPerPage, entry.chain);
      matches += entry.chain.size();
      for (std::size_t i = 0; i < entry.chain.size(); ++i) {
        const Content want(key,
                           {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * kTokensPerPage)});
        ASSERT_EQ(content.at(entry.chain[i]), want);
      }
      while ((entry.chain.size() + 1) * kTokensPerPage <= tokens.size()) {
        const std::int32_t page = cache.take();
        if (page < 0) break;
        for (const Held& other : held)
          ASSERT_EQ(std::count(other.chain.begin(), other.chain.end(), page), 0) << "a held page was handed out";
        const std::size_t at = entry.chain.size() * kTokensPerPage;
        const Content written(key, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(at + kTokensPerPage)});
        content[page] = written;
        const std::int32_t kept =
            cache.remember(entry.identity, entry.chain.empty() ? -1 : entry.chain.back(),
                           std::span<const std::int32_t>(tokens).subspan(at, kTokensPerPage), page);
        ASSERT_EQ(content.at(kept), written);
        entry.chain.push_back(kept);
      }
      held.push_back(std::move(entry));
    }
    EXPECT_GT(matches, 1000U) << "the test must exercise reuse";
    for (const Held& entry : held) {
      cache.release(entry.chain);
      cache.drop_identity(entry.identity);
    }
    EXPECT_EQ(cache.available(), 24);
    cache.clear();
    EXPECT_EQ(pages.free_count(), 24);
    EXPECT_EQ(cache.identities(), 0);
  }
}

}  // namespace
}  // namespace duet
