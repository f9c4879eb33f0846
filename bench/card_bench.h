#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "duet/engine.h"

/// `engine_bench card`: whole steps on the card, against what its memory allows.
namespace duet::bench {

struct CardBenchOptions {
  std::string synthetic = "qwen2.5-1.5b";
  WeightOptions weights;
  int lora_rank = 16;  ///< 0: without the rows that have an adapter.
  std::vector<int> contexts = {512, 8192};
  std::vector<int> batches = {1, 2, 4, 8};
  std::vector<int> prompts = {128, 512, 4096};
  int decode_tokens = 64;
  int repeats = 5;
  bool json = false;
};

/// Decode by context, batch and adapter; prefill by length; time to load and to the first token. Medians. Throws Error.
void run_card_bench(const CardBenchOptions& options);

}  // namespace duet::bench
