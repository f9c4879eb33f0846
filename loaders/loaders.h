#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "duet/engine.h"
#include "engine/adapter.h"
#include "engine/model.h"
#include "engine/weight_source.h"

/// Files to specs and tensors: one function a format, plain data back. Every failure is an Error that names the file,
/// the tensor or key, what was found and what was expected. Nothing read from a file is trusted.
/// (Tokenizers and chat templates: loaders/tokenizer_json.h, loaders/chat_template_detect.h.)
namespace duet::loaders {

/// A checkpoint is a Hugging Face folder (config.json, *.safetensors) or a packed file of ours (docs/formats.md).
std::shared_ptr<const WeightSource> open_checkpoint(const std::filesystem::path& path, const WeightOptions& options);

/// Spec and planned tensors from config.json (or the packed header) alone: works where no weights lie beside the
/// config.
struct ConfigOnly {
  ModelSpec spec;
  std::vector<WeightTensor> tensors;
  std::vector<std::string> report;
};
ConfigOnly read_config_only(const std::filesystem::path& path, const WeightOptions& options);

/// A small text file of a checkpoint ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", ...), from the
/// folder or from inside a packed file; empty when there is none. Refuses files above 256 MiB.
std::optional<std::string> read_checkpoint_text(const std::filesystem::path& path, std::string_view file_name);

/// A PEFT folder, checked both ways against the base. `base_name` is for messages.
std::unique_ptr<AdapterSource> open_adapter(const std::filesystem::path& path, const ModelSpec& base,
                                            std::string_view base_name);

/// What open_adapter would give of a folder that has its adapter_config.json alone: tensors, bytes and largest rank, no
/// modules. Matrices count as float32, in which PEFT writes them unless told otherwise: files in 16 bits take less.
AdapterSpec read_adapter_config_only(const std::filesystem::path& path, const ModelSpec& base);

}  // namespace duet::loaders
