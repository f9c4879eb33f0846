#include "bench/read_bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/host/host_arena.h"
#include "engine/host/thread_pool.h"

namespace duet::bench {
namespace {

constexpr std::size_t kBytesPerItem = std::size_t{1} << 20;  // Neighbouring pieces go to whoever is free, as in matmul.

/// Reads every 64-bit word once; eight sums, so that adding is never what takes the time.
std::uint64_t sum_of(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    for (std::size_t k = 0; k < 8; ++k) sums[k] += words[i + k];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

std::size_t last_level_cache_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const long bytes = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
  if (bytes > 0) return static_cast<std::size_t>(bytes);
#endif
  return std::size_t{32} << 20;
}

Spread seconds_per_byte_read(int threads, std::size_t bytes, int repeats) {
  const auto items = static_cast<std::int64_t>(std::max<std::size_t>(bytes / kBytesPerItem, 1));
  const std::size_t used = static_cast<std::size_t>(items) * kBytesPerItem;
  const host::HostArena memory(used);
  auto* const words = reinterpret_cast<std::uint64_t*>(memory.data());
  std::fill(words, words + used / sizeof(std::uint64_t), std::uint64_t{1});

  host::ThreadPool pool(threads);
  std::atomic<std::uint64_t> total{0};
  std::vector<double> samples;
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(items, 1, [&](std::int64_t first, std::int64_t last) {
      const std::size_t words_per_item = kBytesPerItem / sizeof(std::uint64_t);
      for (std::int64_t i = first; i < last; ++i) {
        total += sum_of(words + static_cast<std::size_t>(i) * words_per_item, words_per_item);
      }
    });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (repeat > 0) samples.push_back(taken.count() / static_cast<double>(used));
  }
  // The sum is used, so that the reads cannot be left out.
  if (total != static_cast<std::uint64_t>(repeats + 1) * (used / sizeof(std::uint64_t))) return {};
  return spread_of(samples);
}

}  // namespace duet::bench
