#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "duet/engine.h"
#include "engine/model.h"
#include "engine/pointer_head.h"
#include "engine/tokenizer.h"

/// A Kev checkpoint as published (github.com/jaredpalmer/kev): a pointer head beside a PEFT adapter for a decoder that
/// is a checkpoint of its own, or beside the whole weights of one. Either folder opens as what it is beside the head:
/// open_adapter, open_checkpoint (loaders/loaders.h).
namespace duet::loaders {

enum class KevWeights : std::uint8_t { lora, full };
std::string_view name_of(KevWeights weights);  ///< "lora", "full".

/// Head and what is said beside it: head.pt, or head.safetensors with meta.json, or kev_head.safetensors with
/// kev_config.json. Of several the last two are read first.
struct KevCheckpoint {
  PointerHead head;
  KevWeights weights = KevWeights::lora;
  std::string base;            ///< Hub name of the decoder it was trained on; empty: not said.
  std::string base_revision;   ///< Likewise.
  std::string weights_dtype;   ///< "fp32", "bf16": of the decoder in training.
  int lora_rank = 0;           ///< 0: not said.
  std::string head_file = {};  ///< For messages.
};

/// There is a head, and an adapter_config.json or a config.json.
bool is_kev_folder(const std::filesystem::path& folder);

/// The model itself, or one of its adapters, is a Kev.
bool is_kev(const ModelOptions& options);

/// Throws Error(not_found, bad_file) for what is missing, contradicts itself or contradicts what lies in the folder;
/// Error(unsupported), naming the field, for option_isolation and special_embeddings; Error(non_finite).
KevCheckpoint read_kev_checkpoint(const std::filesystem::path& folder, std::vector<std::string>& report);

/// Throws Error(bad_file) when the head reads rows of another width than `base` makes.
void check_kev_base(const KevCheckpoint& kev, const ModelSpec& base, std::string_view base_name);

/// The tokenizer of `base`, which for full weights is the folder itself. Files of another one beside the adapter are
/// not used; a line of the report says when they differ.
std::shared_ptr<const Tokenizer> load_kev_tokenizer(const std::filesystem::path& base,
                                                    const std::filesystem::path& folder,
                                                    std::vector<std::string>& report);

}  // namespace duet::loaders
