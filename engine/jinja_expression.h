#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/jinja_lex.h"
#include "engine/jinja_parse.h"

namespace duet::jinja {

/// A list of tokens being read. What does not fit is refused with its line.
class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& take();
  bool accept(std::string_view symbol);
  bool accept_word(std::string_view word);
  bool is_symbol(std::string_view symbol) const { return peek().kind == Token::Kind::symbol && peek().value == symbol; }
  bool is_word(std::string_view word) const { return peek().kind == Token::Kind::name && peek().value == word; }
  void expect(std::string_view symbol);
  void expect(Token::Kind kind);
  void expect_word(std::string_view word);
  std::string name();
  [[noreturn]] void refuse_here() const;

  /// Called for every operator, call or filter that makes the tree one level deeper. Bounded in each tag, so that no
  /// template makes walking the tree overflow the stack.
  void count_link();

  int depth = 0;  ///< Of nested expressions; bounded.

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int links_ = 0;
};

ExpressionPtr parse_expression(TokenReader& tokens);
ExpressionPtr parse_or(TokenReader& tokens);     ///< Without `a if b else c`.
ExpressionPtr parse_tuple(TokenReader& tokens);  ///< a, b is a list.

}  // namespace duet::jinja
