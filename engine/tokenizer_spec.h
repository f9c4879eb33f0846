#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/unicode.h"

/// What a tokenizer is, as plain data: what loaders read from a tokenizer.json and Tokenizer compiles.
/// Names and meanings are those of the Hugging Face `tokenizers` library.
namespace duet {

/// A string or an Oniguruma regular expression.
struct TextPattern {
  std::string text;
  bool is_regex = false;
};

struct NormalizerStep {
  enum class Kind { unicode, lower_case, prepend, replace, strip, strip_accents, byte_level };
  Kind kind = Kind::unicode;
  UnicodeForm form = UnicodeForm::nfc;  // unicode
  std::string content;                  // prepend, replace
  TextPattern pattern;                  // replace
  bool left = false, right = false;     // strip
};

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
enum class PrependScheme { first, always, never };

struct PreTokenizerStep {
  enum class Kind { split, byte_level, metaspace, digits, punctuation, whitespace, whitespace_split };
  Kind kind = Kind::split;
  TextPattern pattern;                                   // split
  SplitBehavior behavior = SplitBehavior::isolated;      // split, punctuation
  bool invert = false;                                   // split
  bool add_prefix_space = false, use_regex = true;       // byte_level
  char32_t replacement = U'\u2581';                      // metaspace
  PrependScheme prepend_scheme = PrependScheme::always;  // metaspace
  bool split = true;                                     // metaspace
  bool individual_digits = false;                        // digits
};

struct DecoderStep {
  enum class Kind { byte_level, byte_fallback, fuse, replace, strip, metaspace };
  Kind kind = Kind::byte_level;
  TextPattern pattern;                                   // replace
  std::string content;                                   // replace
  char32_t character = U' ';                             // strip, metaspace (the replacement)
  std::size_t start = 0, stop = 0;                       // strip: at most so many characters
  PrependScheme prepend_scheme = PrependScheme::always;  // metaspace
};

/// One post-processor: the sequence itself or fixed ids, in order.
struct TemplateItem {
  bool is_sequence = false;
  std::vector<std::int32_t> ids;
};
using SequenceTemplate = std::vector<TemplateItem>;

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;     ///< Takes the white space on its left.
  bool rstrip = false;     ///< Takes the white space on its right.
  bool normalized = true;  ///< Looked for in the normalized text, as its own normalized content.
  bool special = false;
};

struct BpeSpec {
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;  ///< Ids may have gaps; each id and token once.
  std::vector<std::pair<std::string, std::string>> merges;       ///< Best first.
  std::optional<std::string> unknown_token;
  std::string continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};

struct TokenizerSpec {
  std::string name;  ///< For messages: the file it came from.
  BpeSpec model;
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizers;
  std::vector<DecoderStep> decoders;
  std::vector<SequenceTemplate> post_processors;
  std::vector<AddedToken> added_tokens;
  /// Texts that say which added tokens structure a chat (the checkpoint's chat templates): see Tokenizer::is_control.
  std::string template_text;
};

}  // namespace duet
