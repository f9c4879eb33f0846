#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

/// The card: whether there is a usable one, what it is, and how much of its memory this process holds.
namespace duet::cuda {

struct Card {
  int device = 0;
  std::string name;          ///< "NVIDIA H200"
  int major = 0, minor = 0;  ///< Compute capability.
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;   ///< All of it.
  std::size_t context_bytes = 0;  ///< What the context and this program's code took, as nvidia-smi counts it.
};

/// Empty when a usable card and driver are there; else the sentence that says why not. Creates no context.
std::optional<std::string> why_no_card();

/// The first visible card, its context created on the first call and kept. Throws Error(device).
const Card& the_card();

/// Memory of the card in use by this process, as nvidia-smi's process list counts it; empty where the driver's
/// management library does not tell (some containers).
std::optional<std::size_t> process_bytes();

/// Memory of the card in use by everybody, and all there is, as nvidia-smi's first line counts it; from the runtime
/// where the management library is missing.
struct CardMemory {
  std::size_t used = 0;
  std::size_t free = 0;
};
CardMemory card_memory();

}  // namespace duet::cuda
