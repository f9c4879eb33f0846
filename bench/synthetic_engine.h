#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "duet/engine.h"
#include "engine/backend.h"
#include "engine/plan.h"
#include "engine/runtime.h"

/// Models of random weights in real shapes on a backend: what benchmarks and memory proofs drive.
namespace duet::bench {

struct SyntheticModel {
  std::string shape = "qwen2.5-1.5b";
  std::uint64_t seed = 1;  ///< Equal shape, weights and seed: one shared base.
  int lora_rank = 0;       ///< Of an adapter on all seven projections in slot 0; 0: none.
};

struct SyntheticOptions {
  Device device = Device::cuda;
  WeightOptions weights;
  std::uint64_t budget = std::uint64_t{6} << 30;
  std::int64_t kv_tokens = 8192;
  int max_sequences = 8;
  int prefill_chunk_tokens = 256;
  KvStorage kv_storage = KvStorage::f16;
  std::uint64_t poisoned_seed =
      0;  ///< The base of this seed has a NaN in the middle of a matrix of its last layer; 0: none.
};

/// Planned, loaded and started. Throws Error.
struct SyntheticEngine {
  std::vector<std::shared_ptr<const WeightSource>> sources;  ///< [models]
  std::vector<std::unique_ptr<AdapterSource>> adapters;      ///< [models], null where none.
  Plan plan;
  std::unique_ptr<Backend> backend;
  double load_seconds = 0;

  SyntheticEngine(const std::vector<SyntheticModel>& models, const SyntheticOptions& options);

  /// The adapters get the name "lora".
  std::unique_ptr<Runtime> runtime(const RuntimeOptions& options) const;
};

/// What a plan must know of the models; no weight is made.
std::vector<PlanModel> planned_models(const std::vector<SyntheticModel>& models, const WeightOptions& weights);

/// Opened from a folder that is gone again when this returns.
std::unique_ptr<AdapterSource> synthetic_adapter(const WeightSource& base, const std::string& shape, int rank,
                                                 std::uint64_t seed);

/// nf4 blocks of 64 with an int8 head and embedding: what a 6 GB card would hold.
WeightOptions small_card_weights();

}  // namespace duet::bench
