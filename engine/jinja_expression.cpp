// Expressions of Jinja, by precedence: conditional, or, and, not, comparison, + -, ~, * / // %, **, unary, postfix.
#include "engine/jinja_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace duet::jinja {

const Token& TokenReader::take() {
  const Token& token = peek();
  if (token.kind == Token::Kind::output_begin || token.kind == Token::Kind::block_begin) links_ = 0;
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

void TokenReader::count_link() {
  constexpr int kMaxLinks = 1000;
  if (++links_ > kMaxLinks)
    refuse(fmt::format("an expression of more than {} parts in line {}", kMaxLinks, peek().line));
}

bool TokenReader::accept(std::string_view symbol) {
  if (!is_symbol(symbol)) return false;
  take();
  return true;
}

bool TokenReader::accept_word(std::string_view word) {
  if (!is_word(word)) return false;
  take();
  return true;
}

void TokenReader::refuse_here() const {
  const Token& token = peek();
  const bool closing =
      token.kind == Token::Kind::block_end || token.kind == Token::Kind::output_end || token.kind == Token::Kind::end;
  refuse(fmt::format("'{}' in line {}, where something else was expected", closing ? "the end of the tag" : token.value,
                     token.line));
}

void TokenReader::expect(std::string_view symbol) {
  if (!accept(symbol)) refuse_here();
}

void TokenReader::expect(Token::Kind kind) {
  if (peek().kind != kind) refuse_here();
  take();
}

void TokenReader::expect_word(std::string_view word) {
  if (!accept_word(word)) refuse_here();
}

std::string TokenReader::name() {
  if (peek().kind != Token::Kind::name) refuse_here();
  return take().value;
}

namespace {

using Kind = Expression::Kind;

constexpr int kMaxDepth = 200;

std::unique_ptr<Expression> make(TokenReader& tokens, Kind kind) {
  if (kind != Kind::constant && kind != Kind::name) tokens.count_link();
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = tokens.peek().line;
  return made;
}

template <typename... Parts>
ExpressionPtr make(TokenReader& tokens, Kind kind, std::string name, Parts... parts) {
  auto made = make(tokens, kind);
  made->name = std::move(name);
  (made->parts.push_back(std::move(parts)), ...);
  return made;
}

ExpressionPtr constant(TokenReader& tokens, Value value) {
  auto made = make(tokens, Kind::constant);
  made->value = std::move(value);
  return made;
}

/// Behind the opening parenthesis of a call.
void read_arguments(TokenReader& tokens, Expression& call) {
  while (!tokens.accept(")")) {
    if (call.parts.size() + call.named.size() > 1) tokens.expect(",");
    if (tokens.accept(")")) return;
    if (tokens.is_symbol("*") || tokens.is_symbol("**")) tokens.refuse_here();
    if (tokens.peek().kind == Token::Kind::name && tokens.peek(1).kind == Token::Kind::symbol &&
        tokens.peek(1).value == "=") {
      std::string name = tokens.name();
      tokens.take();
      call.named.emplace_back(std::move(name), parse_expression(tokens));
    } else {
      call.parts.push_back(parse_expression(tokens));
    }
  }
}

ExpressionPtr read_number(TokenReader& tokens) {
  const Token token = tokens.take();
  if (token.kind == Token::Kind::floating) return constant(tokens, std::strtod(token.value.c_str(), nullptr));
  std::int64_t number = 0;
  std::from_chars(token.value.data(), token.value.data() + token.value.size(), number);
  return constant(tokens, number);
}

ExpressionPtr read_primary(TokenReader& tokens) {
  const Token& token = tokens.peek();
  switch (token.kind) {
    case Token::Kind::integer:
    case Token::Kind::floating:
      return read_number(tokens);
    case Token::Kind::string: {
      std::string text;
      while (tokens.peek().kind == Token::Kind::string) text += tokens.take().value;
      return constant(tokens, make_text(std::move(text)));
    }
    case Token::Kind::name: {
      const std::string name = tokens.name();
      if (name == "true" || name == "True") return constant(tokens, true);
      if (name == "false" || name == "False") return constant(tokens, false);
      if (name == "none" || name == "None") return constant(tokens, None());
      return make(tokens, Kind::name, name);
    }
    default:
      break;
  }
  if (tokens.accept("(")) {
    ExpressionPtr inner = tokens.is_symbol(")") ? make(tokens, Kind::list, "") : parse_tuple(tokens);
    tokens.expect(")");
    return inner;
  }
  if (tokens.accept("[")) {
    auto list = make(tokens, Kind::list);
    while (!tokens.accept("]")) {
      if (!list->parts.empty()) tokens.expect(",");
      if (tokens.accept("]")) break;
      list->parts.push_back(parse_expression(tokens));
    }
    return list;
  }
  if (tokens.accept("{")) {
    auto dict = make(tokens, Kind::dict);
    while (!tokens.accept("}")) {
      if (!dict->parts.empty()) tokens.expect(",");
      if (tokens.accept("}")) break;
      dict->parts.push_back(parse_expression(tokens));
      tokens.expect(":");
      dict->parts.push_back(parse_expression(tokens));
    }
    return dict;
  }
  tokens.refuse_here();
}

ExpressionPtr read_subscript(TokenReader& tokens, ExpressionPtr object) {
  ExpressionPtr bounds[3];
  std::size_t colons = 0;
  while (!tokens.is_symbol("]")) {
    if (tokens.accept(":")) {
      if (++colons > 2) tokens.refuse_here();
    } else {
      if (bounds[colons]) tokens.refuse_here();
      bounds[colons] = parse_expression(tokens);
    }
  }
  tokens.take();
  if (colons > 0)
    return make(tokens, Kind::slice, "", std::move(object), std::move(bounds[0]), std::move(bounds[1]),
                std::move(bounds[2]));
  if (!bounds[0]) tokens.refuse_here();
  return make(tokens, Kind::item, "", std::move(object), std::move(bounds[0]));
}

ExpressionPtr read_call(TokenReader& tokens, ExpressionPtr callee) {
  auto call = make(tokens, Kind::call);
  call->parts.push_back(std::move(callee));
  read_arguments(tokens, *call);
  return call;
}

ExpressionPtr read_postfix(TokenReader& tokens, ExpressionPtr value) {
  while (true) {
    if (tokens.accept(".")) {
      if (tokens.peek().kind == Token::Kind::integer) {
        ExpressionPtr index = read_number(tokens);
        value = make(tokens, Kind::item, "", std::move(value), std::move(index));
      } else {
        std::string name = tokens.name();
        value = make(tokens, Kind::attribute, std::move(name), std::move(value));
      }
    } else if (tokens.accept("[")) {
      value = read_subscript(tokens, std::move(value));
    } else if (tokens.accept("(")) {
      value = read_call(tokens, std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr read_filter(TokenReader& tokens, ExpressionPtr value) {
  auto filter = make(tokens, Kind::filter);
  filter->name = tokens.name();
  filter->parts.push_back(std::move(value));
  if (tokens.accept("(")) read_arguments(tokens, *filter);
  return filter;
}

/// Behind `is`: a name, and an argument in parentheses or bare (is divisibleby 2).
ExpressionPtr read_test(TokenReader& tokens, ExpressionPtr value) {
  const bool negated = tokens.accept_word("not");
  auto test = make(tokens, Kind::test);
  test->name = tokens.name();
  test->parts.push_back(std::move(value));
  const Token& next = tokens.peek();
  const bool bare =
      next.kind == Token::Kind::string || next.kind == Token::Kind::integer || next.kind == Token::Kind::floating ||
      tokens.is_symbol("[") || tokens.is_symbol("{") ||
      (next.kind == Token::Kind::name && next.value != "else" && next.value != "or" && next.value != "and" &&
       next.value != "if" && next.value != "is" && next.value != "in" && next.value != "not");
  if (tokens.accept("(")) {
    read_arguments(tokens, *test);
  } else if (bare) {
    ExpressionPtr primary = read_primary(tokens);
    test->parts.push_back(read_postfix(tokens, std::move(primary)));
  }
  if (!negated) return test;
  return make(tokens, Kind::logical_not, "", ExpressionPtr(std::move(test)));
}

ExpressionPtr read_unary(TokenReader& tokens, bool with_filters) {
  if (++tokens.depth > kMaxDepth) refuse("an expression nested too deeply");
  ExpressionPtr value;
  if (tokens.accept("-")) {
    ExpressionPtr operand = read_unary(tokens, false);
    value = make(tokens, Kind::negate, "", std::move(operand));
  } else if (tokens.accept("+")) {
    value = read_unary(tokens, false);
  } else {
    value = read_primary(tokens);
  }
  value = read_postfix(tokens, std::move(value));
  while (with_filters) {
    if (tokens.accept("|")) {
      value = read_filter(tokens, std::move(value));
    } else if (tokens.accept_word("is")) {
      value = read_test(tokens, std::move(value));
    } else if (tokens.accept("(")) {
      value = read_call(tokens, std::move(value));
    } else {
      break;
    }
  }
  --tokens.depth;
  return value;
}

/// One level of left-associative operators; the next level binds tighter.
ExpressionPtr read_level(TokenReader& tokens, std::size_t level) {
  static const std::vector<std::string_view> kLevels[] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
  if (level == std::size(kLevels)) return read_unary(tokens, true);
  ExpressionPtr left = read_level(tokens, level + 1);
  while (tokens.peek().kind == Token::Kind::symbol &&
         std::find(kLevels[level].begin(), kLevels[level].end(), tokens.peek().value) != kLevels[level].end()) {
    std::string name = tokens.take().value;
    ExpressionPtr right = read_level(tokens, level + 1);
    left = make(tokens, Kind::binary, std::move(name), std::move(left), std::move(right));
  }
  return left;
}

ExpressionPtr read_compare(TokenReader& tokens) {
  ExpressionPtr first = read_level(tokens, 0);
  auto compare = std::make_unique<Expression>();
  compare->kind = Kind::compare;
  compare->line = tokens.peek().line;
  while (true) {
    std::string name;
    for (const std::string_view symbol : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (tokens.accept(symbol)) {
        name = symbol;
        break;
      }
    }
    if (name.empty() && tokens.accept_word("in")) name = "in";
    if (name.empty() && tokens.is_word("not") && tokens.peek(1).kind == Token::Kind::name &&
        tokens.peek(1).value == "in") {
      tokens.take();
      tokens.take();
      name = "not in";
    }
    if (name.empty()) break;
    compare->operators.push_back(std::move(name));
    compare->parts.push_back(read_level(tokens, 0));
  }
  if (compare->operators.empty()) return first;
  tokens.count_link();
  compare->parts.insert(compare->parts.begin(), std::move(first));
  return compare;
}

ExpressionPtr read_not(TokenReader& tokens) {
  bool negated = false, any = false;
  while (tokens.accept_word("not")) {
    negated = !negated;
    any = true;
  }
  ExpressionPtr value = read_compare(tokens);
  if (!any) return value;
  value = make(tokens, Kind::logical_not, "", std::move(value));
  return negated ? std::move(value) : make(tokens, Kind::logical_not, "", std::move(value));
}

ExpressionPtr read_and(TokenReader& tokens) {
  ExpressionPtr left = read_not(tokens);
  while (tokens.accept_word("and")) {
    ExpressionPtr right = read_not(tokens);
    left = make(tokens, Kind::logical_and, "", std::move(left), std::move(right));
  }
  return left;
}

}  // namespace

ExpressionPtr parse_or(TokenReader& tokens) {
  ExpressionPtr left = read_and(tokens);
  while (tokens.accept_word("or")) {
    ExpressionPtr right = read_and(tokens);
    left = make(tokens, Kind::logical_or, "", std::move(left), std::move(right));
  }
  return left;
}

ExpressionPtr parse_expression(TokenReader& tokens) {
  if (++tokens.depth > kMaxDepth) refuse("an expression nested too deeply");
  ExpressionPtr value = parse_or(tokens);
  while (tokens.accept_word("if")) {
    ExpressionPtr condition = parse_or(tokens);
    ExpressionPtr otherwise = tokens.accept_word("else") ? parse_expression(tokens) : nullptr;
    value = make(tokens, Kind::conditional, "", std::move(value), std::move(condition), std::move(otherwise));
  }
  --tokens.depth;
  return value;
}

ExpressionPtr parse_tuple(TokenReader& tokens) {
  ExpressionPtr first = parse_expression(tokens);
  if (!tokens.is_symbol(",")) return first;
  auto list = make(tokens, Kind::list);
  list->parts.push_back(std::move(first));
  while (tokens.accept(",")) {
    if (tokens.is_symbol(")")) break;
    list->parts.push_back(parse_expression(tokens));
  }
  return list;
}

}  // namespace duet::jinja
