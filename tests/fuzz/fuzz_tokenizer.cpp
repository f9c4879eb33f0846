// tokenizer.json, tokenizer_config.json and a text, with bytes 0xFF between them: a tokenizer whose ids lie in its
// vocabulary and whose streamed text is its decoded text, or an Error.
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "duet/error.h"
#include "engine/text_stream.h"
#include "engine/tokenizer.h"
#include "loaders/tokenizer_json.h"
#include "tests/fuzz/fuzz_support.h"

namespace {

constexpr std::string_view kText =
    "Hello w\xC3\xB6rld \xE4\xBB\x8A\xE5\xA4\xA9 <s>a</s>  1234\n\xF0\x9F\x8C\x8D e\xCC\x81\xCC\xA3 \xFF.";

void check_ids(const duet::Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  duet::TextStream stream(tokenizer, false);
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocabulary_size() || tokenizer.token_of(id).empty()) std::abort();
    text += stream.push(id);
  }
  text += stream.finish();
  if (text != tokenizer.decode(ids, false) || text != duet::valid_utf8(text)) std::abort();
}

void use(const duet::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse : {false, true}) check_ids(tokenizer, tokenizer.encode(text, {true, parse}));
  const duet::TextPart parts[] = {{text.substr(0, text.size() / 2), true}, {text.substr(text.size() / 2), false}};
  check_ids(tokenizer, tokenizer.encode_parts(parts));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto pieces = duet::test::pieces_of(duet::test::text_of(data, size), 3);
  try {
    duet::TokenizerSpec spec = duet::loaders::read_tokenizer_spec(pieces[0], "tokenizer.json");
    if (pieces.size() > 1) duet::loaders::apply_tokenizer_config(spec, pieces[1], "tokenizer_config.json");
    const duet::Tokenizer tokenizer(std::move(spec));
    use(tokenizer, kText);
    if (pieces.size() > 2) use(tokenizer, pieces[2].substr(0, 1000));
  } catch (const duet::Error& error) {
    if (error.code() != duet::Code::bad_file && error.code() != duet::Code::unsupported) std::abort();
  }
  return 0;
}
