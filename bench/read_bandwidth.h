#pragma once

#include <cstddef>

#include "bench/statistics.h"

namespace duet::bench {

/// Bytes of the largest cache this system reports, or 32 MiB when it reports none.
std::size_t last_level_cache_bytes();

/// Seconds a byte takes when `threads` threads stream a buffer of `bytes` from memory, each its own part, all starting
/// together. One sample a repeat, after one round that is not counted.
Spread seconds_per_byte_read(int threads, std::size_t bytes, int repeats);

}  // namespace duet::bench
