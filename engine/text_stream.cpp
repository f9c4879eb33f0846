// Text of a running answer.
#include "engine/text_stream.h"

namespace duet {

TextStream::TextStream(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens), stream_(tokenizer.decode_stream()) {}

std::string TextStream::push(std::int32_t id) {
  std::string text;
  const std::string_view token = tokenizer_->token_of(id);
  if (token.empty() || (skip_special_tokens_ && tokenizer_->is_special(id))) return text;
  stream_.push(token, text);
  return text;
}

std::string TextStream::finish() {
  std::string text;
  stream_.finish(text);
  return text;
}

}  // namespace duet
