// tokenizer_config.json on top of tokenizer.json, and the tokenizer of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "duet/error.h"
#include "engine/tokenizer_bpe.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer_json.h"
#include "loaders/tokenizer_parts.h"

namespace duet::loaders {

namespace {

/// A token is written as its text or as an object with `content` and flags.
std::string content_of(const JsonNode& node) { return node.json().is_object() ? node.text("content") : node.text(); }

void read_flags(const JsonNode& node, AddedToken& token) {
  token.single_word = node.boolean_or("single_word", token.single_word);
  token.lstrip = node.boolean_or("lstrip", token.lstrip);
  token.rstrip = node.boolean_or("rstrip", token.rstrip);
  token.normalized = node.boolean_or("normalized", token.normalized);
  token.special = node.boolean_or("special", token.special);
}

/// Tokens by content. The vocabulary does not change while a config is applied, the added tokens do.
class TokenIndex {
 public:
  explicit TokenIndex(TokenizerSpec& spec) : spec_(&spec) {
    for (const auto& [token, id] : spec.model.vocabulary) model_.emplace(token, id);
    for (std::size_t i = 0; i < spec.added_tokens.size(); ++i) added_.emplace(spec.added_tokens[i].content, i);
  }

  AddedToken* find_added(const std::string& content) {
    const auto found = added_.find(content);
    return found == added_.end() ? nullptr : &spec_->added_tokens[found->second];
  }
  AddedToken& add(AddedToken token) {
    added_.emplace(token.content, spec_->added_tokens.size());
    return spec_->added_tokens.emplace_back(std::move(token));
  }
  std::optional<std::int32_t> id_in_model(const std::string& content) const {
    const auto found = model_.find(content);
    return found == model_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  TokenizerSpec* spec_;
  std::unordered_map<std::string_view, std::int32_t> model_;
  std::unordered_map<std::string, std::size_t> added_;
};

/// "added_tokens_decoder": {"151665": {"content": "<tool_response>", flags}, ...}. Their flags win over those of
/// tokenizer.json; tokens it does not have are added under the id given here.
void apply_added_tokens(TokenIndex& tokens, const JsonNode& decoder) {
  if (!decoder.json().is_object()) decoder.refuse("an object of ids and tokens");
  for (const auto& [key, value] : decoder.json().items()) {
    const JsonNode node = decoder.entry(key, value);
    const bool is_number = !key.empty() && key.size() <= 8 &&
                           std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    const std::int64_t id = is_number ? std::stoll(key) : -1;
    if (id < 0 || id >= kMaxTokenIds) node.refuse("an id as its key");
    const std::string content = content_of(node);
    AddedToken* token = tokens.find_added(content);
    if (token == nullptr) {
      token = &tokens.add({static_cast<std::int32_t>(id), content, false, false, false, true, false});
    }
    if (value.is_object()) read_flags(node, *token);
  }
}

/// A named special token ("eos_token", ...) is special even where tokenizer.json does not say so. One that is in no
/// vocabulary is left out: an id invented for it would lie beyond the model's embedding.
void apply_named_token(TokenIndex& tokens, const JsonNode& node) {
  const std::string content = content_of(node);
  if (AddedToken* token = tokens.find_added(content)) {
    token->special = true;
  } else if (const auto id = tokens.id_in_model(content)) {
    AddedToken made{*id, content, false, false, false, false, true};
    if (node.json().is_object()) read_flags(node, made);
    made.special = true;
    tokens.add(std::move(made));
  }
}

/// With either flag in the config the reference builds the post-processor anew from both; a missing one is false.
void apply_start_and_end(TokenizerSpec& spec, TokenIndex& tokens, const JsonNode& root) {
  if (!root.has("add_bos_token") && !root.has("add_eos_token")) return;
  SequenceTemplate items;
  const auto put = [&](const char* flag, const char* name) {
    if (!root.boolean_or(flag, false) || !root.has(name)) return;
    const std::string content = content_of(root.at(name));
    const AddedToken* added = tokens.find_added(content);
    const auto id = added != nullptr ? std::optional(added->id) : tokens.id_in_model(content);
    if (!id) {
      throw Error(Code::bad_file,
                  fmt::format("{} is '{}', which the tokenizer does not have", root.at(name).place(), content),
                  fmt::format("Add it to tokenizer.json or set {} to false", flag));
    }
    items.push_back({false, {*id}});
  };
  put("add_bos_token", "bos_token");
  items.push_back({true, {}});
  put("add_eos_token", "eos_token");
  spec.post_processors = {std::move(items)};
}

/// Every text under "chat_template": a string, or a list of {"name", "template"}.
void collect_template_text(const JsonNode& root, std::string& text) {
  if (!root.has("chat_template")) return;
  const JsonNode node = root.at("chat_template");
  if (node.json().is_string()) {
    text += node.text();
    return;
  }
  for (std::size_t i = 0; i < node.size(); ++i) {
    if (node.item(i).has("template")) text += node.item(i).text("template");
  }
}

}  // namespace

void apply_tokenizer_config(TokenizerSpec& spec, std::string_view config_json, std::string_view name) {
  const nlohmann::json json = parse_tokenizer_text(config_json, name);
  const JsonNode root(json, std::string(name));
  TokenIndex tokens(spec);
  if (root.has("added_tokens_decoder")) apply_added_tokens(tokens, root.at("added_tokens_decoder"));
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (root.has(key)) apply_named_token(tokens, root.at(key));
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    if (!root.has(key) || !root.at(key).json().is_array()) continue;
    const JsonNode list = root.at(key);
    for (std::size_t i = 0; i < list.size(); ++i) apply_named_token(tokens, list.item(i));
  }
  apply_start_and_end(spec, tokens, root);
  collect_template_text(root, spec.template_text);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::filesystem::path& checkpoint_directory) {
  const auto text = read_checkpoint_text(checkpoint_directory, "tokenizer.json");
  if (!text) {
    throw Error(Code::not_found, fmt::format("'{}' has no tokenizer.json", checkpoint_directory.string()),
                "Save the tokenizer with transformers' save_pretrained, which writes it");
  }
  TokenizerSpec spec = read_tokenizer_spec(*text, (checkpoint_directory / "tokenizer.json").string());
  if (const auto config = read_checkpoint_text(checkpoint_directory, "tokenizer_config.json")) {
    apply_tokenizer_config(spec, *config, (checkpoint_directory / "tokenizer_config.json").string());
  }
  if (const auto chat = read_checkpoint_text(checkpoint_directory, "chat_template.jinja")) spec.template_text += *chat;
  return std::make_shared<const Tokenizer>(std::move(spec));
}

}  // namespace duet::loaders
