#include "loaders/hf_quantisation.h"

#include <fmt/format.h>

#include <algorithm>

namespace duet::loaders {
namespace {

std::string_view without_prefix(std::string_view name) {
  constexpr std::string_view kPrefix = "model.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  return name;
}

std::vector<std::string> parse_skipped(const JsonObject& settings) {
  constexpr std::string_view kKey = "llm_int8_skip_modules";
  const Json* list = settings.find(kKey);
  if (list == nullptr || (list->is_string() && list->get<std::string>() == "null")) return {"lm_head"};
  return settings.texts(kKey);
}

}  // namespace

std::optional<HfQuantisation> parse_quantisation(const Json& config, const std::string& source) {
  const JsonObject root(config, source);
  const auto settings = root.object("quantization_config");
  if (!settings) return std::nullopt;
  if (!settings->boolean_or("load_in_4bit", false) && !settings->boolean_or("_load_in_4bit", false))
    return std::nullopt;
  const std::string type = settings->text_or("bnb_4bit_quant_type", "fp4");
  if (type != "nf4" && type != "fp4") settings->refuse("bnb_4bit_quant_type", "nf4 or fp4");
  HfQuantisation quantisation;
  quantisation.storage = {type == "nf4" ? Storage::nf4 : Storage::fp4, 64,
                          settings->boolean_or("bnb_4bit_use_double_quant", false)};
  quantisation.skipped = parse_skipped(*settings);
  return quantisation;
}

std::optional<HfQuantisation> read_quantisation(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  return parse_quantisation(read_json_file(file), file.string());
}

bool is_skipped(const HfQuantisation& quantisation, std::string_view tensor) {
  const std::string_view module = without_prefix(tensor.substr(0, tensor.rfind('.')));
  return std::any_of(quantisation.skipped.begin(), quantisation.skipped.end(), [&](const std::string& listed) {
    const std::string_view entry = without_prefix(listed);
    if (entry.empty()) return false;
    if (module == entry) return true;
    if (module.starts_with(entry)) return module[entry.size()] == '.';
    return module.ends_with(entry) && module[module.size() - entry.size() - 1] == '.';
  });
}

Storage parse_dtype(const Json& config, const std::string& source, std::vector<std::string>& report) {
  const JsonObject root(config, source);
  const std::string_view key = root.has("dtype") ? "dtype" : "torch_dtype";
  std::string dtype = root.text_or(key, "");
  constexpr std::string_view kModule = "torch.";
  if (dtype.starts_with(kModule)) dtype.erase(0, kModule.size());
  if (dtype == "bfloat16") return Storage::bf16;
  if (dtype == "float16") return Storage::f16;
  if (dtype.empty())
    report.push_back(fmt::format("{} names no dtype: float32 is planned, as transformers would take it", source));
  else if (dtype != "float32" && dtype != "float64")
    root.refuse(key, "float32, float16 or bfloat16");
  return Storage::f32;
}

}  // namespace duet::loaders
