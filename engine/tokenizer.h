#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer_spec.h"

namespace duet {

class DecodeStream;

struct EncodeOptions {
  bool add_special_tokens = true;  ///< What the post-processor adds, such as the start token.
  /// Whether spellings of control tokens (Tokenizer::is_control) in the text become those tokens. False: no id of a
  /// control token comes from the text, however it is spelt, normalized or merged (but a character that the vocabulary
  /// lacks is the unknown token, and one whose only token is a control token stays that).
  bool parse_special_tokens = false;
};

/// A stretch of a text that comes partly from a template and partly from a user.
struct TextPart {
  std::string_view text;
  bool is_template =
      false;  ///< Control tokens are found in template parts only, never across a border to a user's part.
};

/// A BPE tokenizer: text to ids and back. Immutable after construction; any number of threads may use it.
/// Text that is not valid UTF-8 is read as if every broken part were U+FFFD.
class Tokenizer {
 public:
  /// Compiles the spec. Throws Error (bad_file, unsupported) naming `spec.name` and the part that is wrong.
  explicit Tokenizer(TokenizerSpec spec);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options) const;

  /// The parts are one text: normalizing, splitting and merging work across their borders as the reference does on the
  /// joined text. No special tokens are added.
  std::vector<std::int32_t> encode_parts(std::span<const TextPart> parts) const;

  /// Ids in gaps of the vocabulary or beyond it (a head padded past the vocabulary gives them) decode to nothing.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const;

  /// Decodes token by token; the joined pieces are what `decode` gives. Wrapped by TextStream.
  DecodeStream decode_stream() const;

  std::int32_t vocabulary_size() const;  ///< Highest id + 1.
  std::optional<std::int32_t> id_of(std::string_view token) const;
  std::string_view token_of(std::int32_t id) const;  ///< Empty for ids that are no token.
  bool is_special(std::int32_t id) const;            ///< Left out by `decode` with `skip_special_tokens`.

  /// Special tokens, and added tokens that structure a chat: those spelt <|like this|>, the families' turn, tool and
  /// thinking marks, and every added token that the checkpoint's own chat template spells.
  bool is_control(std::int32_t id) const;

  /// Ids that the post-processor puts before a text: the start token, for most tokenizers that have one.
  std::span<const std::int32_t> prefix_ids() const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace duet
