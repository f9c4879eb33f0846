#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/model.h"
#include "loaders/json_file.h"

/// config.json (and the small files beside it) of a Hugging Face folder to a ModelSpec.
///
/// Families: llama (Llama 1 to 3.x, SmolLM, TinyLlama), qwen2 (Qwen2, Qwen2.5), qwen3, mistral, qwen3_5 (the text model
/// of Qwen3.5, alone or inside a picture model's text_config), and the same without their head ("Qwen2Model"). A value
/// is taken from the config first, from the family's default in transformers second, worked out from others last; every
/// default taken and every key ignored leaves a sentence in the report. What would change the maths and is not
/// implemented is refused by name: Error(unsupported). Contradictions and absurd numbers: Error(bad_file).
namespace duet::loaders {

/// Reads config.json, and generation_config.json, tokenizer_config.json and tokenizer.json where they are there: ends
/// of text are the union of what all of them say.
ModelSpec read_hf_config(const std::filesystem::path& folder, std::vector<std::string>& report);

/// config.json alone, already parsed; `source` names it in messages.
ModelSpec parse_hf_config(const Json& config, const std::string& source, std::vector<std::string>& report);

/// What a config says of the text model: its text_config, or the whole of it.
const Json& text_model_of(const Json& config);

}  // namespace duet::loaders
