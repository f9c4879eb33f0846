#include <fmt/format.h>

#include "duet/error.h"
#include "loaders/checkpoint.h"
#include "loaders/hf_config.h"
#include "loaders/hf_quantisation.h"
#include "loaders/laya_config.h"
#include "loaders/loaders.h"
#include "loaders/mapped_file.h"
#include "loaders/names.h"
#include "loaders/packed_file.h"
#include "loaders/packed_header.h"
#include "loaders/storage_choice.h"

// A path that people give: a Hugging Face folder or a packed file.
namespace duet::loaders {
namespace {

namespace fs = std::filesystem;

/// True for a folder, false for a file; throws for neither.
bool is_folder(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return true;
  if (fs::is_regular_file(path, ignored)) return false;
  throw Error(Code::not_found, fmt::format("There is no model at {}", quote(path.string())),
              "Name the folder of a Hugging Face checkpoint or a .duet file");
}

ConfigOnly read_laya_folder_config(const fs::path& folder, const WeightOptions& options) {
  ConfigOnly result;
  result.spec = read_laya_config(folder, result.report);
  const StorageSpec published{Storage::f16, 0, false};  // Its config says float32, its file never does.
  for (const TensorRow& row : tensors_of(result.spec)) {
    const StorageSpec storage =
        chosen_storage(row, published, options, fmt::format("{}: {}", quote(folder.string()), row.name));
    result.tensors.push_back({row, storage, layout_of(row.rows, row.columns, storage).bytes});
  }
  return result;
}

ConfigOnly read_folder_config(const fs::path& folder, const WeightOptions& options) {
  if (is_laya_folder(folder)) return read_laya_folder_config(folder, options);
  ConfigOnly result;
  result.spec = read_hf_config(folder, result.report);
  const fs::path file = folder / "config.json";
  const Json config = read_json_file(file);
  const auto quantisation = parse_quantisation(config, file.string());
  const StorageSpec dense{parse_dtype(text_model_of(config), file.string(), result.report), 0, false};
  for (const TensorRow& row : tensors_of(result.spec)) {
    const bool is_4bit = quantisation && row.role == TensorRole::linear && !is_skipped(*quantisation, row.name);
    const StorageSpec stored = is_4bit ? quantisation->storage : dense;
    const StorageSpec storage =
        chosen_storage(row, stored, options, fmt::format("{}: {}", quote(folder.string()), row.name));
    result.tensors.push_back({row, storage, layout_of(row.rows, row.columns, storage).bytes});
  }
  return result;
}

}  // namespace

std::shared_ptr<const WeightSource> open_checkpoint(const fs::path& path, const WeightOptions& options) {
  return is_folder(path) ? open_hf_checkpoint(path, options) : open_packed_file(path, options);
}

ConfigOnly read_config_only(const fs::path& path, const WeightOptions& options) {
  check_options(options);
  if (!is_folder(path)) {
    const auto packed = open_packed_file(path, options);
    return {packed->spec(), packed->tensors(), packed->report()};
  }
  ConfigOnly result = read_folder_config(path, options);
  note_ignored_options(options, result.spec.tied_head, result.report);
  return result;
}

std::optional<std::string> read_checkpoint_text(const fs::path& path, std::string_view file_name) {
  if (!is_folder(path)) return read_packed_text(path, file_name);
  fs::path file = path / file_name;
  std::error_code ignored;
  if (!fs::exists(file, ignored) && is_laya_folder(path)) file = path / kLayaTokenizerFolder / file_name;
  if (!fs::exists(file, ignored)) return std::nullopt;
  return read_text_file(file, kLargestText);
}

}  // namespace duet::loaders
