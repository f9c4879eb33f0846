#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/adapter.h"
#include "engine/model.h"
#include "engine/weight_source.h"

/// The arena's plan: every region from specs alone, before a byte is loaded. The same function counts and places.
namespace duet {

constexpr std::size_t kRegionAlignment = 256;

struct Region {
  std::string name;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

/// Limits every step keeps; scratch is sized by them.
struct StepLimits {
  int prefill_chunk_tokens = 256;
  int max_batch_sequences = 8;          ///< Sequences of one decode.
  std::int64_t max_context_tokens = 0;  ///< Longest sequence of any model.
  int max_adapter_rank = 0;
};

/// What the plan must know of a backend.
struct BackendFacts {
  std::string name;               ///< "host", "cuda"
  int kv_element_bytes = 4;       ///< host 4 (the oracle), cuda 2.
  std::size_t context_bytes = 0;  ///< Outside the arena but inside the budget (CUDA context); 0 on the host.
  /// Scratch one model's steps need; the region is the largest of all models.
  std::size_t (*scratch_bytes)(const ModelSpec&, const StepLimits&) = nullptr;
};

struct PlanModel {
  std::string name;
  std::string base_identity;  ///< Equal ones share weights.
  std::string base_path;
  ModelSpec spec;
  std::vector<WeightTensor> tensors;  ///< In the order of tensors_of(spec).
  int adapter_slots = 0;
  std::size_t adapter_slot_bytes = 0;
  int largest_adapter_rank = 0;
};

struct PlanRequest {
  std::vector<PlanModel> models;
  BackendFacts backend;
  std::uint64_t budget = 0;
  std::int64_t kv_tokens = 0;  ///< Per model if alone; see Options::kv_tokens.
  int max_sequences = 8;
  int prefill_chunk_tokens = 256;
};

struct PlannedBase {
  std::string identity;
  std::string path;
  ModelSpec spec;
  std::vector<WeightTensor> tensors;
  std::vector<Region> regions;  ///< One per tensor.
};

struct PlannedModel {
  std::string name;
  int base = 0;  ///< Index into Plan::bases.
  std::int64_t tokens_per_page = 0;
  std::int64_t kv_bytes_per_token = 0;
  std::int64_t max_context_tokens = 0;  ///< min(model's positions, whole pool).
  std::vector<Region> adapter_slots;
};

struct Plan {
  std::string backend;
  std::uint64_t budget = 0;
  std::size_t context_bytes = 0;
  std::vector<PlannedBase> bases;
  std::vector<PlannedModel> models;
  Region pages;
  std::size_t page_bytes = 0;
  std::int64_t page_count = 0;
  Region scratch;
  StepLimits limits;
  std::size_t arena_bytes = 0;
  std::size_t total_bytes() const { return arena_bytes + context_bytes; }
};

/// Throws Error(no_room) with the sum, the budget and what would make it fit.
Plan make_plan(const PlanRequest& request);

/// The table of `--plan`: regions grouped by model with bytes, total against budget, KV cost per 1,000 tokens.
std::string table_of(const Plan& plan);

/// "1.50 GiB", "12.0 MiB", "512 B".
std::string human_bytes(std::uint64_t bytes);

}  // namespace duet
