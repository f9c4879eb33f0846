#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace duet::jinja {

struct Token {
  enum class Kind {
    text,
    output_begin,
    output_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    floating,
    symbol,
    end
  };
  Kind kind = Kind::end;
  std::string value;  // of text, name, string (escapes decoded), number, symbol
  int line = 1;
};

/// Cuts a template into tokens, white space control done: trim_blocks and lstrip_blocks are on, as in Hugging Face's
/// environment, a `-` eats white space and line ends, a `+` keeps them, and one line end at the very end is dropped.
/// Throws Error(unsupported) for what is no template.
std::vector<Token> lex(std::string_view text);

}  // namespace duet::jinja
