#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decision_answer.h"
#include "engine/laya_rows.h"
#include "engine/model.h"

/// A Laya checkpoint as published: rl_agent_config.json, model.safetensors, encoder/config.json (ModernBERT) and
/// tokenizer/. It is known by the first and the third, never by a config.json at its root.
namespace duet::loaders {

constexpr std::string_view kLayaAgentFile = "rl_agent_config.json";
constexpr std::string_view kLayaTokenizerFolder = "tokenizer";

bool is_laya_folder(const std::filesystem::path& folder);

/// Encoder and decision head. `max_position_tokens` is the checkpoint's max_len: no row is longer.
/// Throws Error(unsupported) naming a feature that ModernBERT has and Laya's encoders do not use.
ModelSpec read_laya_config(const std::filesystem::path& folder, std::vector<std::string>& report);

/// What rl_agent_config.json says of rows and answers.
struct LayaSettings {
  LayaBudget budget;
  LayaCalibration calibration;
};
LayaSettings parse_laya_settings(std::string_view agent_json, const std::string& source);

/// Special tokens by the names in tokenizer_config.json. Throws Error(bad_file) when the tokenizer lacks one.
LayaTokens laya_tokens(const Tokenizer& tokenizer, std::string_view tokenizer_config_json, const std::string& source);

}  // namespace duet::loaders
