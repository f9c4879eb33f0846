#pragma once

#include <cstddef>
#include <cstdint>

/// Plain structs that the host fills and kernels read. No CUDA header here; layouts are the same on both sides.
namespace duet::cuda {

/// One row of a step: one token of one sequence.
struct StepRow {
  std::int32_t active;  ///< 0: filling of a graph's shape; computed, never stored.
  std::int32_t token;
  std::int32_t position;
  std::int32_t first_page;    ///< Where its sequence's page ids begin in PageLists::pages.
  std::int32_t adapter_slot;  ///< -1: the base alone.
  float adapter_scale;        ///< The request's.
};

/// What an adapter does at one place (place_of(part, layer)); all null: nothing.
struct AdapterPart {
  const void* a;            ///< [rank, in] row-major; on the embedding [rank, vocabulary]. Null: no LoRA here.
  const void* b;            ///< [out, rank] row-major.
  const float* lora_bias;   ///< [out] inside the scaled term, or null.
  const float* row_scale;   ///< [out] DoRA's magnitude over row norm, or null.
  const void* replacement;  ///< Stands in for the base's tensor, or null: vectors float32, matrices row-major.
  float scale;              ///< The module's, without the request's.
  std::int32_t rank;
  std::uint8_t a_storage;  ///< Storage: f16, bf16 or f32.
  std::uint8_t b_storage;
  std::uint8_t replacement_storage;
  std::uint8_t padding[5];
};
static_assert(sizeof(AdapterPart) == 56);

/// The adapters of one model: parts[slot * places + place].
struct AdapterTable {
  const AdapterPart* parts = nullptr;  ///< Device.
  int places = 0;
};

enum class KvType : std::uint8_t { f16, bf16, int8 };

/// The page pool as one model sees it. Inside a page: [layer][K, V][kv_head][token][head_size] elements; int8: behind
/// them, from the next multiple of 16 bytes, float32 scales [layer][K, V][kv_head][token], value = code * scale, scale
/// = absmax of the head / 127.
struct KvPool {
  std::byte* pool = nullptr;
  std::size_t page_bytes = 0;
  std::int32_t tokens_per_page = 0;
  std::int32_t layers = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_size = 0;
  KvType type = KvType::f16;
};

/// How one row's token is chosen; the rules are engine/sampler.h's.
struct SampleRow {
  double temperature;
  double top_p;
  double min_p;
  double repetition_penalty;
  double uniform;       ///< uniform_of(seed, draw), in [0, 1).
  std::int32_t active;  ///< 0: nothing is sampled from this row.
  std::int32_t usable_vocabulary;
  std::int32_t top_k;
  std::int32_t logprobs;
  std::int32_t first_history;  ///< Into SampleLists::history.
  std::int32_t history_count;
  std::int32_t first_bias;  ///< Into SampleLists::biases.
  std::int32_t bias_count;
};

struct SampleBias {
  std::int32_t id;
  float bias;
};

constexpr int kMostBest = 20;

struct SampledRow {
  std::int32_t id;
  float logprob;
  std::int32_t finite;
  std::int32_t best_count;
  std::int32_t best_ids[kMostBest];
  float best_logprobs[kMostBest];
};

/// Marks of non-finite numbers: [rows], the first layer whose numbers were not finite, or kNoBadLayer. Lowered with
/// atomicMin by whichever kernel sees one.
constexpr std::int32_t kNoBadLayer = 0x7FFFFFFF;

}  // namespace duet::cuda
