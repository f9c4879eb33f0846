#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "engine/tokenizer.h"

namespace duet::loaders {

/// The tokenizer of a checkpoint (a Hugging Face folder or a packed file): tokenizer.json, with what
/// tokenizer_config.json says on top: tokens it adds, which are special, `add_bos_token` and `add_eos_token`.
/// Throws Error(not_found, bad_file, unsupported).
std::shared_ptr<const Tokenizer> load_tokenizer(const std::filesystem::path& checkpoint_directory);

/// A tokenizer.json alone; `name` is for messages.
std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string_view json_text, std::string_view name);

/// The plain data of a tokenizer.json, before it is compiled.
TokenizerSpec read_tokenizer_spec(std::string_view json_text, std::string_view name);

/// Applies a tokenizer_config.json to it; see load_tokenizer.
void apply_tokenizer_config(TokenizerSpec& spec, std::string_view config_json, std::string_view name);

}  // namespace duet::loaders
