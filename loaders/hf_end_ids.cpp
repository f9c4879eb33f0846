#include "loaders/hf_end_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

#include "loaders/names.h"

namespace duet::loaders {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLargestTokenizer = std::uint64_t{256} << 20;

std::optional<Json> read_if_there(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  return read_json_file(path, {.bytes = kLargestTokenizer});
}

/// A token as tokenizer_config.json writes it: a string, or an object with "content".
std::optional<std::string> token_text(const JsonObject& object, std::string_view key) {
  const Json* value = object.find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return object.object(key)->text("content");
  return object.text(key);
}

/// added_tokens_decoder: {"151645": {"content": "<|im_end|>", ...}, ...}
std::optional<std::int64_t> id_in_decoder(const JsonObject& tokenizer_config, std::string_view token) {
  const auto decoder = tokenizer_config.object("added_tokens_decoder");
  if (!decoder) return std::nullopt;
  for (const std::string& key : decoder->keys()) {
    const auto entry = decoder->object(key);
    if (!entry || entry->text_or("content", "") != token) continue;
    std::int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size())
      decoder->refuse(key, "a token id as the key");
    return id;
  }
  return std::nullopt;
}

/// tokenizer.json: "added_tokens" [{"id", "content"}], then the vocabulary of the model.
std::optional<std::int64_t> id_in_tokenizer(const fs::path& path, const std::string& token) {
  const auto json = read_if_there(path);
  if (!json) return std::nullopt;
  const JsonObject tokenizer(*json, path.string());
  if (const Json* added = tokenizer.find("added_tokens"); added != nullptr && added->is_array()) {
    for (const Json& element : *added) {
      const JsonObject entry(element, path.string(), "added_tokens");
      if (entry.text_or("content", "") == token) return entry.integer("id", 0, INT32_MAX);
    }
  }
  const auto model = tokenizer.object("model");
  if (!model || model->find("vocab") == nullptr || !model->find("vocab")->is_object()) return std::nullopt;
  const auto vocabulary = model->object("vocab");
  if (!vocabulary->has(token)) return std::nullopt;
  return vocabulary->integer(token, 0, INT32_MAX);
}

void append_in_range(std::vector<std::int32_t>& ids, std::int64_t id, int vocabulary, const std::string& where,
                     std::vector<std::string>& report) {
  if (id < 0 || id >= vocabulary) {
    report.push_back(
        fmt::format("{} names token {}, but the model has ids 0 to {}; it is not used", where, id, vocabulary - 1));
    return;
  }
  ids.push_back(static_cast<std::int32_t>(id));
}

std::vector<std::int32_t> tokenizer_end_ids(const fs::path& folder, int vocabulary, std::vector<std::string>& report) {
  const fs::path path = folder / "tokenizer_config.json";
  std::vector<std::int32_t> ids;
  const auto json = read_if_there(path);
  if (!json) return ids;
  const JsonObject config(*json, path.string());
  const auto token = token_text(config, "eos_token");
  if (!token) return ids;
  auto id = id_in_decoder(config, *token);
  if (!id) id = id_in_tokenizer(folder / "tokenizer.json", *token);
  if (!id) {
    report.push_back(
        fmt::format("{} is {}, which has no id here; it is not used", config.where("eos_token"), quote(*token)));
    return ids;
  }
  append_in_range(ids, *id, vocabulary, config.where("eos_token"), report);
  return ids;
}

}  // namespace

std::vector<std::int32_t> read_ids(const JsonObject& object, std::string_view key, int vocabulary,
                                   std::vector<std::string>& report) {
  constexpr std::string_view kExpected = "a token id or a list of token ids";
  std::vector<std::int32_t> ids;
  const Json* value = object.find(key);
  if (value == nullptr) return ids;
  const auto add = [&](const Json& element) {
    if (!element.is_number_integer()) object.refuse(key, kExpected);
    const bool huge = element.is_number_unsigned() && element.get<std::uint64_t>() > INT64_MAX;
    append_in_range(ids, huge ? INT64_MAX : element.get<std::int64_t>(), vocabulary, object.where(key), report);
  };
  if (value->is_array()) {
    for (const Json& element : *value) add(element);
  } else {
    add(*value);
  }
  return ids;
}

void add_end_ids(const fs::path& folder, bool named_by_config, ModelSpec& spec, std::vector<std::string>& report) {
  std::vector<std::int32_t> ids;
  const fs::path generation_path = folder / "generation_config.json";
  if (const auto json = read_if_there(generation_path)) {
    ids = read_ids(JsonObject(*json, generation_path.string()), "eos_token_id", spec.vocabulary, report);
  }
  const std::vector<std::int32_t> of_tokenizer = tokenizer_end_ids(folder, spec.vocabulary, report);
  ids.insert(ids.end(), of_tokenizer.begin(), of_tokenizer.end());
  if (named_by_config || ids.empty()) ids.insert(ids.end(), spec.end_ids.begin(), spec.end_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.empty())
    report.push_back(fmt::format("{} names no end of text: generation stops at its limit", quote(folder.string())));
  spec.end_ids = std::move(ids);
}

}  // namespace duet::loaders
