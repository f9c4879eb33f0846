#pragma once

#include <cstdint>
#include <string>

#include "engine/tokenizer.h"
#include "engine/tokenizer_decode.h"

namespace duet {

/// Text of a running answer. Each `push` gives the text that became certain with this token, cut at character borders;
/// joined together, with `finish`, the pieces are exactly `Tokenizer::decode` of all ids. Bytes of a character that is
/// not complete yet wait; only bytes that can never become a character, or are left over at the end, turn into U+FFFD.
/// Time and memory per token do not grow with the answer.
class TextStream {
 public:
  /// `tokenizer` must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special_tokens = true);

  std::string push(std::int32_t id);
  std::string finish();  ///< What was held back. Afterwards the stream is fresh.

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  DecodeStream stream_;
};

}  // namespace duet
