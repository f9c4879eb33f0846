#pragma once

#include <cstddef>

#include "bench/statistics.h"

namespace duet::bench {

/// Seconds a byte of reading `bytes` of the card's memory, by every multiprocessor, into sums. Throws Error.
Spread seconds_per_byte_read_on_card(std::size_t bytes, int repeats);

}  // namespace duet::bench
