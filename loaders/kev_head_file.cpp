#include "loaders/kev_head_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <system_error>

#include "duet/error.h"
#include "engine/kev_rows.h"
#include "loaders/json_file.h"
#include "loaders/names.h"
#include "loaders/torch_file.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();

/// Files of one spelling. Without `fields`: they stand in `head` itself.
struct Spelling {
  std::string_view head;
  std::string_view fields;
};
constexpr std::array<Spelling, 3> kSpellings = {{
    {"head.safetensors", "meta.json"},
    {"kev_head.safetensors", "kev_config.json"},
    {"head.pt", {}},
}};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_whole(const fs::path& folder, const Spelling& spelling) {
  return is_there(folder / spelling.head) && (spelling.fields.empty() || is_there(folder / spelling.fields));
}

const Spelling& choose(const fs::path& folder, std::vector<std::string>& report) {
  const Spelling* chosen = nullptr;
  for (const Spelling& spelling : kSpellings) {
    if (!is_whole(folder, spelling)) continue;
    if (chosen == nullptr)
      chosen = &spelling;
    else
      report.push_back(
          fmt::format("{} is not used: {} holds the head", quote((folder / spelling.head).string()), chosen->head));
  }
  if (chosen != nullptr) return *chosen;
  for (const Spelling& spelling : kSpellings)
    if (is_there(folder / spelling.head))
      throw Error(Code::not_found,
                  fmt::format("{} has {} without {}", quote(folder.string()), spelling.head, spelling.fields),
                  "Is the download complete?");
  throw Error(Code::not_found, fmt::format("{} has no head.pt", quote(folder.string())),
              "Is this the folder of a Kev checkpoint?");
}

// ---- head.pt ----

/// The fields of the one dict that head.pt holds.
class TorchFields {
 public:
  TorchFields(const TorchValue& root, std::string source) : root_(root), source_(std::move(source)) {
    if (root.kind() != TorchValue::Kind::dict)
      throw Error(Code::bad_file,
                  fmt::format("{} holds {}; a dict was expected", quote(source_), name_of(root.kind())));
  }

  std::optional<std::string> text(std::string_view key) const { return get<std::string>(key, "a text"); }
  std::optional<std::int64_t> integer(std::string_view key) const { return get<std::int64_t>(key, "an integer"); }
  std::optional<bool> boolean(std::string_view key) const { return get<bool>(key, "a boolean"); }
  std::optional<double> number(std::string_view key) const {
    const TorchValue* value = find(key);
    if (value != nullptr && value->kind() == TorchValue::Kind::integer)
      return static_cast<double>(std::get<std::int64_t>(value->data));
    return get<double>(key, "a number");
  }

  std::vector<std::pair<std::string, Tensor>> tensors(std::string_view key) const {
    const auto* items = find(key) == nullptr ? nullptr : std::get_if<TorchValue::Dict>(&find(key)->data);
    if (items == nullptr) refuse(key, "a dict of tensors");
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const TorchItem& item : *items) {
      const auto* tensor = std::get_if<Tensor>(&item.value.data);
      if (tensor == nullptr) refuse(key, "a dict of tensors");
      tensors.emplace_back(item.key, *tensor);
    }
    return tensors;
  }

  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const {
    const TorchValue* value = root_.find(key);
    throw Error(Code::bad_file, fmt::format("{}: {} is {}; {} was expected", quote(source_), key,
                                            value == nullptr ? "missing" : name_of(value->kind()), expected));
  }

 private:
  /// None counts as absent.
  const TorchValue* find(std::string_view key) const {
    const TorchValue* value = root_.find(key);
    return value == nullptr || value->kind() == TorchValue::Kind::none ? nullptr : value;
  }

  template <typename Value>
  std::optional<Value> get(std::string_view key, std::string_view expected) const {
    const TorchValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const auto* held = std::get_if<Value>(&value->data);
    if (held == nullptr) refuse(key, expected);
    return *held;
  }

  const TorchValue& root_;
  std::string source_;
};

void read_torch(const fs::path& path, KevHeadFile& file) {
  file.source = path.string();
  file.is_torch_file = true;
  const TorchValue root = read_torch_file(path);
  const TorchFields fields(root, file.source);
  file.tensors = fields.tensors("head");
  file.base = fields.text("base");
  if (!file.base) fields.refuse("base", "the name of the model that it was trained on");
  file.base_revision = fields.text("base_revision");
  file.weights = fields.text("weights");
  file.weights_dtype = fields.text("weights_dtype");
  file.lora_rank = fields.integer("lora");
  file.head_size = fields.integer("head_dim");
  file.option_isolation = fields.boolean("option_isolation");
  file.special_embeddings = fields.boolean("special_embeddings");
  file.temperature = fields.number("temperature");
}

// ---- JSON ----

std::optional<std::string> text_of(const JsonObject& fields, std::string_view key) {
  return fields.has(key) ? std::optional(fields.text(key)) : std::nullopt;
}
std::optional<std::int64_t> size_of(const JsonObject& fields, std::string_view key) {
  return fields.has(key) ? std::optional(fields.integer(key, 0, kLargest)) : std::nullopt;
}
std::optional<bool> flag_of(const JsonObject& fields, std::string_view key) {
  return fields.has(key) ? std::optional(fields.boolean_or(key, false)) : std::nullopt;
}

/// What kev_config.json has beside the fields of meta.json.
void check_format(const JsonObject& fields) {
  if (fields.text_or("format", "kev") != "kev") fields.refuse("format", "'kev'");
  if (const std::int64_t version = fields.integer_or("format_version", 1, 0, kLargest); version != 1)
    throw Error(Code::unsupported, fmt::format("{} is {}; Duet reads 1", fields.where("format_version"), version));
  constexpr std::array<std::string_view, kKevMarkers.size()> kRoles = {"state", "question", "option", "option_end",
                                                                       "decide"};
  const auto delimiters = fields.object("delimiters");
  if (!delimiters) return;
  for (std::size_t i = 0; i < kRoles.size(); ++i)
    if (const std::string text = delimiters->text(kRoles[i]); text != kKevMarkers[i])
      throw Error(Code::unsupported, fmt::format("{} is {}; Kev's is {}", delimiters->where(kRoles[i]), quote(text),
                                                 quote(kKevMarkers[i])));
}

void read_json(const fs::path& head, const fs::path& path, KevHeadFile& file) {
  file.source = path.string();
  const SafetensorsFile tensors(head);
  for (const Tensor& tensor : tensors.tensors()) file.tensors.emplace_back(tensor.name, tensor);
  const Json json = read_json_file(path);
  const JsonObject fields(json, file.source);
  check_format(fields);
  const JsonObject origin = fields.object("source").value_or(fields);
  file.base = text_of(origin, "base");
  file.base_revision = text_of(origin, "base_revision");
  file.weights = text_of(fields, "weights");
  file.weights_dtype = text_of(fields, "weights_dtype");
  file.lora_rank = size_of(fields, "lora");
  file.head_size = size_of(fields, "head_dim");
  file.option_isolation = flag_of(fields, "option_isolation");
  file.special_embeddings = flag_of(fields, "special_embeddings");
  if (fields.has("temperature")) file.temperature = fields.number("temperature");
}

}  // namespace

bool has_kev_head(const fs::path& folder) {
  return std::any_of(kSpellings.begin(), kSpellings.end(),
                     [&](const Spelling& spelling) { return is_there(folder / spelling.head); });
}

KevHeadFile read_kev_head_file(const fs::path& folder, std::vector<std::string>& report) {
  const Spelling& spelling = choose(folder, report);
  KevHeadFile file;
  if (spelling.fields.empty())
    read_torch(folder / spelling.head, file);
  else
    read_json(folder / spelling.head, folder / spelling.fields, file);
  return file;
}

}  // namespace duet::loaders
