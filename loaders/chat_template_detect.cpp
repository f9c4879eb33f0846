// The chat template of a checkpoint.
#include "loaders/chat_template_detect.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "duet/error.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer_parts.h"

namespace duet::loaders {

namespace {

struct FoundTemplate {
  std::string text, place;
};

/// `chat_template` is a text, or a list of {"name", "template"} of which "default" is the one for chats.
std::optional<FoundTemplate> template_in_config(const JsonNode& config) {
  if (!config.has("chat_template")) return std::nullopt;
  const JsonNode node = config.at("chat_template");
  if (node.json().is_string()) return FoundTemplate{node.text(), node.place()};
  for (std::size_t i = 0; i < node.size(); ++i) {
    if (node.item(i).text("name") == "default")
      return FoundTemplate{node.item(i).text("template"), node.item(i).place()};
  }
  throw Error(Code::unsupported, fmt::format("{} is a list without one named 'default'", node.place()),
              chat_template_ways_out());
}

std::string token_in_config(const JsonNode& config, const char* key) {
  if (!config.has(key)) return {};
  const JsonNode node = config.at(key);
  return node.json().is_object() ? node.text("content") : node.text();
}

/// Renders one exchange, so that a template with an unknown construct is refused now and not at the first request.
void try_out(const ChatTemplate& chat_template) {
  const ChatMessage messages[] = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
  try {
    chat_template.render(messages, true);
  } catch (const Error& error) {
    if (error.code() == Code::unsupported) throw;  // a template may well refuse this exchange
  }
}

}  // namespace

ChatTemplate load_chat_template(const std::filesystem::path& checkpoint_directory, std::string_view override_name) {
  const std::string config_name = (checkpoint_directory / "tokenizer_config.json").string();
  nlohmann::json json = nlohmann::json::object();
  if (const auto text = read_checkpoint_text(checkpoint_directory, "tokenizer_config.json"))
    json = parse_tokenizer_text(*text, config_name);
  const JsonNode config(json, config_name);
  ChatVariables variables;
  variables.bos_token = token_in_config(config, "bos_token");
  variables.eos_token = token_in_config(config, "eos_token");
  variables.unk_token = token_in_config(config, "unk_token");
  variables.pad_token = token_in_config(config, "pad_token");

  if (!override_name.empty()) {
    return ChatTemplate(chat_family_template(override_name), override_name, std::move(variables));
  }
  std::optional<FoundTemplate> found;
  if (auto text = read_checkpoint_text(checkpoint_directory, "chat_template.jinja")) {
    found = FoundTemplate{std::move(*text), (checkpoint_directory / "chat_template.jinja").string()};
  } else {
    found = template_in_config(config);
  }
  if (!found) {
    throw Error(Code::not_found, fmt::format("'{}' has no chat template", checkpoint_directory.string()),
                chat_template_ways_out());
  }
  ChatTemplate chat_template(found->text, found->place, std::move(variables));
  try_out(chat_template);
  return chat_template;
}

}  // namespace duet::loaders
