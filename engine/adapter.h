#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model.h"

/// A LoRA adapter: what it changes and how its tensors lie inside one adapter slot. Never merged into the base.
///   y = W x + b + s * (B (A x) + c)                      plain (c only with lora_bias)
///   y = g .* (W x + s * B (A x)) + b,  g = m / |W + s B A| by output row      DoRA (arXiv:2402.09353)
namespace duet {

enum class AdapterTensorKind : std::uint8_t {
  lora_a,      ///< [rank, in]; on the embedding [rank, vocabulary]: a token picks a column.
  lora_b,      ///< [out, rank]
  lora_bias,   ///< [out]  c above
  magnitude,   ///< [out]  m above, float32
  replacement  ///< Replaces the base tensor of this part for this adapter only (modules_to_save, trained biases);
               ///< matrix or vector.
};

struct AdapterTensor {
  AdapterTensorKind kind = AdapterTensorKind::lora_a;
  Part part = Part::query;
  int layer = -1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  Storage storage = Storage::f16;  ///< lora_a, lora_b: f16 or bf16, or f32 where a value does not fit; vectors f32.
  std::size_t offset = 0;          ///< In the slot, aligned to kPartAlignment.
  std::size_t bytes = 0;
};

/// One LoRA pair (and its DoRA magnitude, bias) on one part of one layer.
struct AdapterModule {
  Part part = Part::query;
  int layer = -1;  ///< -1: embedding or head.
  int rank = 0;
  float scale =
      0;  ///< alpha / rank, or alpha / sqrt(rank) (rsLoRA); patterns applied. The adapter's own scale is not in it.
  bool dora = false;
  int lora_a = -1, lora_b = -1, lora_bias = -1, magnitude = -1;  ///< Indices into tensors; -1: none.
};

struct AdapterSpec {
  std::vector<AdapterModule> modules;
  std::vector<AdapterTensor> tensors;  ///< Replacements are here too.
  std::size_t bytes = 0;               ///< Of one slot that holds it.
  std::string content_hash;            ///< Of config and tensor bytes: identity for prefix reuse.
  int largest_rank = 0;
  bool has_dora() const;
};

/// Bytes of a plain adapter of `rank` on all projections of every layer, 16-bit: what an empty slot keeps ready.
std::size_t slot_bytes_for_rank(const ModelSpec& spec, int rank);

/// Assigns offsets and bytes to `tensors`, sets `spec.bytes`. One function for counting and placing.
void lay_out(AdapterSpec& spec);

}  // namespace duet
