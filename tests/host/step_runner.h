#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/backend.h"
#include "engine/plan.h"
#include "engine/weight_source.h"

namespace duet::test {

struct RunnerOptions {
  int threads = 2;
  int chunk_tokens = 16;
  int max_sequences = 4;
  std::int64_t kv_tokens = 512;
  int adapter_slots = 2;
  std::size_t adapter_slot_bytes = std::size_t{4} << 20;
  int adapter_rank = 16;
  std::optional<KvStorage> kv_storage = {};  ///< The device's own when empty.
  bool embedding_on_host = false;
};

/// Models on the device under test, planned by make_plan, with the smallest driving code a test needs.
struct StepRunner {
  Plan plan;
  std::unique_ptr<Backend> backend;

  explicit StepRunner(const WeightSource& source, const RunnerOptions& options = {});
  StepRunner(const std::vector<const WeightSource*>& sources, const RunnerOptions& options);

  /// Page ids for `tokens` tokens of model `model`, from `first` on, in reverse order so that nothing may rely on
  /// neighbours.
  std::vector<std::int32_t> pages(std::int32_t first, std::int64_t tokens, int model = 0) const;

  /// `slot` for a hybrid, -1 for a model without recurrent state.
  int state_slot(int slot, int model = 0) const;

  /// Logits [tokens, vocabulary] of a prompt, prefilled in chunks of at most `chunk` tokens.
  std::vector<float> logits(std::span<const std::int32_t> tokens, int chunk, int adapter_slot = -1,
                            float adapter_scale = 1.0F, std::int32_t first_page = 0, int model = 0, int slot = 0);

  /// `count` ids by arg-max after a prompt, prefilled and then decoded token by token.
  std::vector<std::int32_t> greedy(std::span<const std::int32_t> prompt, std::size_t count, int adapter_slot = -1);
};

}  // namespace duet::test
