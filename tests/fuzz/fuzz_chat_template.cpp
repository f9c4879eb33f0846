// A Jinja text, and after a byte 0xFF a message: valid UTF-8 in which the message's own text is never the template's,
// or an Error.
#include <cstdlib>
#include <string>
#include <vector>

#include "duet/error.h"
#include "engine/chat_template.h"
#include "engine/unicode.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto pieces = duet::test::pieces_of(duet::test::text_of(data, size), 2);
  const std::string content = "\xE2\x98\x82" + std::string(pieces.size() > 1 ? pieces[1].substr(0, 1000) : "");
  const std::vector<duet::ChatMessage> messages = {
      {"system", content}, {"user", "a\xE2\x98\x82 <think>b</think>"}, {"assistant", content}, {"user", content}};
  const bool template_has_it =
      pieces[0].find("\xE2\x98\x82") != std::string_view::npos || pieces[0].find('\\') != std::string_view::npos;
  duet::ChatVariables variables;
  variables.bos_token = "<s>";
  variables.date = "26 Jul 2024";
  try {
    const duet::ChatTemplate chat_template(pieces[0], "fuzz", variables);
    for (const duet::ChatPiece& piece : chat_template.render(messages, true)) {
      if (piece.text != duet::valid_utf8(piece.text)) std::abort();
      if (piece.is_template && !template_has_it && piece.text.find("\xE2\x98\x82") != std::string::npos) std::abort();
    }
  } catch (const duet::Error& error) {
    if (error.code() != duet::Code::invalid_argument && error.code() != duet::Code::unsupported) std::abort();
  }
  return 0;
}
