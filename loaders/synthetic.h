#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "duet/engine.h"
#include "engine/weight_source.h"
#include "loaders/packed_file.h"

/// Checkpoints of real shapes with random weights, for benchmarks and proofs of memory. Codes, scales and 16-bit values
/// are drawn directly, never by quantising: uniform codes, scales within a quarter of their mean, standard deviation
/// 0.8 / sqrt(columns), so that activations stay near 1. The same name, seed and options give the same bytes anywhere.
namespace duet::loaders {

std::vector<std::string> synthetic_names();  ///< "qwen2.5-0.5b", ...

/// Throws Error(invalid_argument) for a name that is not one of synthetic_names(), with the nearest. `as_stored` is
/// bf16.
std::shared_ptr<const WeightSource> make_synthetic(std::string_view name, const WeightOptions& options,
                                                   std::uint64_t seed);

/// config.json with the values of the real one, generation_config.json, and a tokenizer of our own: bytes and made-up
/// words up to the real number of ids, the family's control tokens at their real ids, ChatML as the chat template.
TextFiles synthetic_texts(std::string_view name);

/// A Hugging Face folder with the source's tensors in `storage` (f16 or bf16), in shards of at most `shard_bytes`.
void write_hf_folder(const std::filesystem::path& folder, const WeightSource& source, const TextFiles& texts,
                     Storage storage, const Progress& progress = {}, std::uint64_t shard_bytes = 5'000'000'000);

/// A PEFT folder for that shape: `rank` on all seven projections, alpha 2 * rank, float16, B not zero.
void write_synthetic_adapter(const std::filesystem::path& folder, std::string_view name, int rank, std::uint64_t seed);

}  // namespace duet::loaders
