#pragma once

#include <cstdint>
#include <string>

#include "duet/engine.h"

/// `engine_bench host`: how fast the host backend decodes and prefills, against what the machine's memory allows.
namespace duet::bench {

struct HostBenchOptions {
  std::string checkpoint;                  ///< Folder or packed file; empty: `synthetic`.
  std::string synthetic = "qwen2.5-0.5b";  ///< Random weights of a real shape, made in memory.
  WeightOptions weights = {.linear = WeightType::as_stored};
  std::string adapter;  ///< PEFT folder, or empty.
  int threads = 0;      ///< 0: all cores.
  int prompt_tokens = 128;
  int decode_tokens = 64;
  int repeats = 5;
  bool json = false;
};

/// Prints a markdown table, or one JSON object. Checks a product of the loaded weights against plain maths before
/// anything is timed. Throws Error.
void run_host_bench(const HostBenchOptions& options);

}  // namespace duet::bench
