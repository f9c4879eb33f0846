#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer.h"

namespace duet {

struct ChatMessage {
  std::string role;
  std::string content;
};

/// A stretch of a rendered chat: written by the template (and the fixed names of roles), or by a user.
struct ChatPiece {
  std::string text;
  bool is_template = false;
};

/// What a template may ask for beside the messages.
struct ChatVariables {
  std::string bos_token, eos_token, unk_token, pad_token;
  std::string date;      ///< What strftime_now gives, such as "26 Jul 2024"; empty: today, in the format asked for.
  bool thinking = true;  ///< False sets `enable_thinking` to false; true leaves it undefined, as the reference does.
};

namespace jinja {
struct Program;
}

/// A chat template in the Jinja language of Hugging Face checkpoints, compiled once; thread-safe to render.
///
/// Every character remembers whether it came from the template or from a message, through concatenation, slicing,
/// trimming and the rest, so that a user's text can never become a control token (Tokenizer::encode_parts).
class ChatTemplate {
 public:
  /// Throws Error(unsupported) naming the line and the construct when the template uses something that Duet's Jinja
  /// does not know, with the ways out (a family by name, or raw prompts). `name` says where the text came from.
  ChatTemplate(std::string_view jinja_text, std::string_view name, ChatVariables variables);

  /// Throws Error(invalid_argument) with the template's own message when it raises one (roles that do not alternate,
  /// no system role, ...).
  std::vector<ChatPiece> render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;
  std::string render_text(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

  const std::string& name() const { return name_; }
  const ChatVariables& variables() const { return variables_; }
  ChatTemplate with_thinking(bool thinking) const;

 private:
  std::shared_ptr<const jinja::Program> program_;
  std::string name_;
  ChatVariables variables_;
};

/// Ids of a chat. What the template prints, template parts parsed and users' text never; where the tokenizer puts a
/// start token before every text and the template prints none, it is added: exactly one stands in front.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                      std::span<const ChatMessage> messages, bool add_generation_prompt);

/// The same for a chat that is rendered already.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatPiece> pieces);

/// The families that can be asked for by name: "chatml", "qwen2", "qwen2.5", "qwen3", "llama2", "llama3", "llama3.1",
/// "mistral", "zephyr", "gemma".
std::span<const std::string_view> chat_family_names();

/// What a person can do about a template that is missing or not understood; for messages.
std::string chat_template_ways_out();

/// Jinja text of a family; throws Error(not_found) listing the names.
std::string_view chat_family_template(std::string_view name);

}  // namespace duet
