#pragma once

#include <filesystem>
#include <string_view>

#include "engine/chat_template.h"

namespace duet::loaders {

/// The chat template of a checkpoint: chat_template.jinja, else `chat_template` of tokenizer_config.json (a string, or
/// a list of named ones, of which "default" is taken). `override_name`, when not empty, takes a family by name instead
/// (chat_family_names). Start and end token come from tokenizer_config.json.
/// Throws Error(not_found) when there is none and Error(unsupported) when it is one Duet cannot render; both say how to
/// pass a family by name or use raw prompts.
ChatTemplate load_chat_template(const std::filesystem::path& checkpoint_directory, std::string_view override_name);

}  // namespace duet::loaders
