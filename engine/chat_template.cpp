// Chat templates: messages to text and ids.
#include "engine/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "duet/error.h"
#include "engine/jinja_parse.h"
#include "engine/jinja_run.h"

namespace duet {

namespace {

/// Names of roles that are the template's own vocabulary: <|user|> is made from one. Any other name is a user's text.
constexpr std::array<std::string_view, 7> kRoles = {"system",    "user",    "assistant", "tool",
                                                    "developer", "ipython", "function"};

jinja::Value message_value(const ChatMessage& message) {
  const bool known = std::find(kRoles.begin(), kRoles.end(), message.role) != kRoles.end();
  auto value = std::make_shared<jinja::Dict>();
  value->set("role", jinja::Text(valid_utf8(message.role), known));
  value->set("content", jinja::Text(valid_utf8(message.content), false));
  return value;
}

/// Runs `work`; what it refuses is told with the template's name and the ways out.
template <typename Work>
auto naming(std::string_view name, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() != Code::unsupported) throw;
    std::string_view sentence = error.what();
    if (!sentence.empty() && sentence.back() == '.') sentence.remove_suffix(1);
    throw Error(Code::unsupported, fmt::format("{}: {}", name, sentence), chat_template_ways_out());
  }
}

}  // namespace

std::string chat_template_ways_out() {
  return fmt::format("Pass a family with --chat-template ({}), or use raw prompts (--raw)",
                     fmt::join(chat_family_names(), ", "));
}

ChatTemplate::ChatTemplate(std::string_view jinja_text, std::string_view name, ChatVariables variables)
    : program_(naming(name, [&] { return jinja::parse(jinja_text); })), name_(name), variables_(std::move(variables)) {}

ChatTemplate ChatTemplate::with_thinking(bool thinking) const {
  ChatTemplate copy = *this;
  copy.variables_.thinking = thinking;
  return copy;
}

std::vector<ChatPiece> ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  jinja::List list;
  for (const ChatMessage& message : messages) list.push_back(message_value(message));
  jinja::Dict globals;
  globals.set("messages", jinja::make_list(std::move(list)));
  globals.set("tools", jinja::None());
  globals.set("documents", jinja::None());
  globals.set("add_generation_prompt", add_generation_prompt);
  if (!variables_.thinking) globals.set("enable_thinking", false);
  for (const auto& [key, text] : {std::pair<std::string_view, const std::string&>{"bos_token", variables_.bos_token},
                                  {"eos_token", variables_.eos_token},
                                  {"unk_token", variables_.unk_token},
                                  {"pad_token", variables_.pad_token}}) {
    if (!text.empty()) globals.set(key, jinja::make_text(text));
  }
  const jinja::Text text = naming(name_, [&] { return jinja::run(*program_, globals, variables_.date); });
  std::vector<ChatPiece> pieces;
  for (std::size_t begin = 0; begin < text.bytes.size();) {
    const std::size_t change = text.flags.find(text.flags[begin] != 0 ? '\0' : '\1', begin);
    const std::size_t end = std::min(change, text.bytes.size());
    pieces.push_back({text.bytes.substr(begin, end - begin), text.flags[begin] != 0});
    begin = end;
  }
  return pieces;
}

std::string ChatTemplate::render_text(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  std::string text;
  for (const ChatPiece& piece : render(messages, add_generation_prompt)) text += piece.text;
  return text;
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                      std::span<const ChatMessage> messages, bool add_generation_prompt) {
  return encode_chat(tokenizer, chat_template.render(messages, add_generation_prompt));
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatPiece> pieces) {
  std::vector<TextPart> parts;
  parts.reserve(pieces.size());
  for (const ChatPiece& piece : pieces) parts.push_back({piece.text, piece.is_template});
  std::vector<std::int32_t> ids = tokenizer.encode_parts(parts);
  const std::span<const std::int32_t> prefix = tokenizer.prefix_ids();
  const bool has_prefix = ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
  if (!has_prefix) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  return ids;
}

}  // namespace duet
