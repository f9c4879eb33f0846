#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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

/// Cuts one block into regions, each aligned to kRegionAlignment. Counting and placing are the same lines: without a
/// base `take` only counts (arrays come back empty), with one it also hands out the memory. The base itself must be
/// aligned to kRegionAlignment.
class Carver {
 public:
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

  /// Throws Error(internal) when `base` is not aligned.
  explicit Carver(std::size_t limit = kUnlimited, std::byte* base = nullptr);

  /// Throws Error(no_room), naming the region, when fewer than `bytes` are left.
  Region take(std::string_view name, std::size_t bytes);

  /// `count` elements; an empty span while counting. T needs no construction.
  template <class T>
  std::span<T> take_array(std::string_view name, std::size_t count) {
    static_assert(std::is_trivial_v<T>, "the arena holds plain data only");
    const std::size_t offset = take_offset(name, bytes_of(name, count, sizeof(T)));
    return base_ == nullptr ? std::span<T>() : std::span<T>(reinterpret_cast<T*>(base_ + offset), count);
  }

  std::size_t used() const { return used_; }

 private:
  static std::size_t bytes_of(std::string_view name, std::size_t count, std::size_t size);
  std::size_t take_offset(std::string_view name, std::size_t bytes);

  std::size_t limit_;
  std::byte* base_;
  std::size_t used_ = 0;
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
  std::string name;  ///< "host", "cuda"
  KvStorage kv_storage = KvStorage::f32;
  bool encoders = false;          ///< Runs ModelKind::encoder.
  bool hybrids = false;           ///< Runs models with ModelSpec::is_hybrid().
  bool own_memory = false;        ///< The device's memory is not the host's: an embedding may stay with the host.
  std::size_t context_bytes = 0;  ///< Outside the arena but inside the budget (CUDA context); 0 on the host.
  /// What one model adds to the context (its captured graphs). Null: nothing.
  std::size_t (*model_context_bytes)(const ModelSpec&, const StepLimits&) = nullptr;
  /// What the backend keeps of one model beside weights and adapters, for `adapter_slots` slots. Null: nothing.
  std::size_t (*model_state_bytes)(const ModelSpec&, const StepLimits&, int adapter_slots) = nullptr;
  /// Scratch one model's steps need; the region is the largest of all models. Null: none.
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
  bool embedding_on_host = false;  ///< The embedding lies in the host's memory, read row by row; untied heads only.
};

struct PlanRequest {
  std::vector<PlanModel> models;
  BackendFacts backend;
  std::uint64_t budget = 0;
  std::int64_t kv_tokens = 0;  ///< Per model if alone; see Options::kv_tokens.
  int max_sequences = 8;
  int kept_states = 0;  ///< State slots of each hybrid beyond max_sequences: for prefixes that are kept.
  int prefill_chunk_tokens = 256;
};

struct PlannedBase {
  std::string identity;
  std::string path;
  ModelSpec spec;
  std::vector<WeightTensor> tensors;
  std::vector<Region> regions;     ///< One per tensor.
  bool embedding_on_host = false;  ///< Then the embedding's region is empty.
};

struct PlannedModel {
  std::string name;
  int base = 0;  ///< Index into Plan::bases.
  std::int64_t tokens_per_page = 0;
  std::int64_t kv_bytes_per_token = 0;
  std::int64_t max_context_tokens =
      0;  ///< min(model's positions, whole pool); an encoder's positions: its longest row.
  std::vector<Region> adapter_slots;
  Region state;                     ///< Of the backend's own.
  std::vector<Region> state_slots;  ///< Hybrids: room for the recurrent state of one sequence each.
};

struct Plan {
  std::string backend;
  KvStorage kv_storage = KvStorage::f32;
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

constexpr std::int64_t kDefaultKvTokens = 4096;
constexpr std::int64_t kFewestTokensPerPage = 16;

/// Lays the arena out:
///   bases     one region a tensor; models of equal `base_identity` share one base.
///   adapters  `adapter_slots` regions of `adapter_slot_bytes` for each model.
///   states    hybrids: max_sequences + kept_states regions of state_bytes for each model.
///   pages     none for encoders. page_bytes = kFewestTokensPerPage tokens of the model whose tokens cost most, rounded
///   up to
///             kRegionAlignment; every model fits tokens_per_page = page_bytes / kv_bytes_per_token into one.
///             page_count = the largest over models of ceil(kv_tokens / tokens_per_page), so each model could hold
///             `kv_tokens` if it had the pool alone. kv_tokens 0: kDefaultKvTokens, less for a model with fewer
///             positions. A model's longest sequence (max_context_tokens) always fits the pool.
///   scratch   the largest of all models.
/// `limits.prefill_chunk_tokens` never exceeds the longest sequence.
/// Throws Error(no_room) with the sum, the budget and what would make it fit; Error(invalid_argument) for a request
/// that makes no sense.
Plan make_plan(const PlanRequest& request);

/// The table of `--plan`: regions grouped by model with bytes, total against budget, KV cost per 1,000 tokens. Equal
/// regions of consecutive layers share a line.
std::string table_of(const Plan& plan);

/// "1.50 GiB", "12.0 MiB", "512 B".
std::string human_bytes(std::uint64_t bytes);

/// "6,442,450,944".
std::string grouped_digits(std::uint64_t value);

}  // namespace duet
