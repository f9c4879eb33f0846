// Tokens of Jinja.
#include "engine/jinja_lex.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/jinja_value.h"

namespace duet::jinja {

namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c); }

std::string with_plain_line_ends(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      out.push_back(text[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(with_plain_line_ends(valid_utf8(text))) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) data();
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void broken(std::string_view what) const { refuse(fmt::format("{} in line {}", what, line_)); }

  void add(Token::Kind kind, std::string value) { tokens_.push_back({kind, std::move(value), line_}); }

  bool ahead(std::string_view wanted) const { return text_.compare(at_, wanted.size(), wanted) == 0; }

  void advance(std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }

  /// Text up to the next opening, then what it opens.
  void data() {
    std::size_t open = at_;
    while (open + 1 < text_.size() &&
           !(text_[open] == '{' && (text_[open + 1] == '{' || text_[open + 1] == '%' || text_[open + 1] == '#')))
      ++open;
    if (open + 1 >= text_.size()) open = text_.size();
    std::string data = text_.substr(at_, open - at_);
    const bool at_line_start = at_ == 0 || text_[at_ - 1] == '\n';
    const char kind = open < text_.size() ? text_[open + 1] : '\0';
    const char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    if (kind != '\0' && sign == '-') {
      while (!data.empty() && is_space(data.back())) data.pop_back();
    } else if ((kind == '%' || kind == '#') && sign != '+') {
      const std::size_t line_begin = data.rfind('\n') + 1;  // 0 when there is no line end
      if ((line_begin > 0 || at_line_start) &&
          std::all_of(data.begin() + static_cast<std::ptrdiff_t>(line_begin), data.end(), is_space)) {
        data.resize(line_begin);
      }
    }
    if (!data.empty()) add(Token::Kind::text, std::move(data));
    advance(open);
    if (kind == '\0') return;
    const bool signed_open = sign == '-' || (sign == '+' && kind != '{');
    advance(at_ + (signed_open ? 3 : 2));
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      add(Token::Kind::output_begin, "");
      inside("}}", Token::Kind::output_end);
    } else {
      add(Token::Kind::block_begin, "");
      inside("%}", Token::Kind::block_end);
    }
  }

  void comment() {
    const std::size_t close = text_.find("#}", at_);
    if (close == std::string::npos) broken("a comment without its end");
    const char sign = close > at_ ? text_[close - 1] : '\0';
    advance(close + 2);
    skip_behind(sign, true);
  }

  /// White space behind a closing: all of it with `-`, one line end behind a block.
  void skip_behind(char sign, bool is_block) {
    std::size_t end = at_;
    if (sign == '-') {
      while (end < text_.size() && is_space(text_[end])) ++end;
    } else if (is_block && sign != '+' && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    advance(end);
  }

  /// Tokens of an expression or a statement, to its closing.
  void inside(std::string_view close, Token::Kind end_kind) {
    int depth = 0;
    while (true) {
      while (at_ < text_.size() && is_space(text_[at_])) advance(at_ + 1);
      if (at_ >= text_.size()) broken("a tag without its end");
      const char c = text_[at_];
      if (depth == 0) {
        const bool is_signed = c == '-' || (c == '+' && close == "%}");
        const std::size_t sign_size = is_signed && text_.compare(at_ + 1, 2, close) == 0 ? 1 : 0;
        if (text_.compare(at_ + sign_size, 2, close) == 0) {
          add(end_kind, "");
          advance(at_ + sign_size + 2);
          skip_behind(sign_size > 0 ? c : '\0', close == "%}");
          return;
        }
      }
      if (c == '\'' || c == '"') {
        string(c);
      } else if (is_digit(c)) {
        number();
      } else if (is_name(c)) {
        std::size_t end = at_;
        while (end < text_.size() && is_name(text_[end])) ++end;
        add(Token::Kind::name, text_.substr(at_, end - at_));
        advance(end);
      } else {
        symbol(depth);
      }
    }
  }

  void symbol(int& depth) {
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (ahead(two)) {
        add(Token::Kind::symbol, std::string(two));
        advance(at_ + 2);
        return;
      }
    }
    const char c = text_[at_];
    if (std::string_view("+-*/%~<>=.,:|()[]{}").find(c) == std::string_view::npos)
      broken(fmt::format("the character '{}'", c));
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    add(Token::Kind::symbol, std::string(1, c));
    advance(at_ + 1);
  }

  void number() {
    std::size_t end = at_;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    const bool is_float = end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1]);
    if (is_float) {
      ++end;
      while (end < text_.size() && is_digit(text_[end])) ++end;
    }
    if (end - at_ > 18) broken("a number of more than 18 digits");
    add(is_float ? Token::Kind::floating : Token::Kind::integer, text_.substr(at_, end - at_));
    advance(end);
  }

  void string(char quote) {
    std::string value;
    std::size_t i = at_ + 1;
    while (i < text_.size() && text_[i] != quote) {
      if (text_[i] == '\\' && i + 1 < text_.size()) {
        i = escape(i, value);
      } else {
        value.push_back(text_[i++]);
      }
    }
    if (i >= text_.size()) broken("a string without its end");
    add(Token::Kind::string, std::move(value));
    advance(i + 1);
  }

  /// One Python escape at `i`; returns where the string goes on. Unknown ones stay as they are.
  std::size_t escape(std::size_t i, std::string& value) const {
    static constexpr std::string_view kFrom = "ntrfvab\\'\"", kTo = "\n\t\r\f\v\a\b\\'\"";
    const char c = text_[i + 1];
    const std::size_t known = kFrom.find(c);
    if (known != std::string_view::npos) {
      value.push_back(kTo[known]);
      return i + 2;
    }
    if (c == '\n') return i + 2;
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      if (is_digit(c)) broken("an octal escape");
      value.push_back('\\');
      return i + 1;
    }
    char32_t code = 0;
    for (std::size_t k = 0; k < digits; ++k) {
      const char d = i + 2 + k < text_.size() ? text_[i + 2 + k] : '\0';
      const int digit = is_digit(d)            ? d - '0'
                        : d >= 'a' && d <= 'f' ? d - 'a' + 10
                        : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                               : -1;
      if (digit < 0) broken("a broken escape");
      code = code * 16 + static_cast<char32_t>(digit);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) broken("an escape that is no character");
    append_utf8(value, code);
    return i + 2 + digits;
  }

  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(std::string_view text) { return Lexer(text).run(); }

}  // namespace duet::jinja
