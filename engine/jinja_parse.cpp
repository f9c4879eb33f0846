// Statements of Jinja to a syntax tree; expressions are in jinja_expression.cpp.
#include "engine/jinja_parse.h"

#include <fmt/format.h>

#include "engine/jinja_expression.h"
#include "engine/jinja_lex.h"

namespace duet::jinja {

namespace {

using Kind = Statement::Kind;

constexpr int kMaxNesting = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(lex(text)) {}

  Program run() {
    Program program;
    program.body = block({});
    if (tokens_.peek().kind != Token::Kind::end) tokens_.refuse_here();
    return program;
  }

 private:
  /// Statements up to one of the ending words, whose name is left for the caller to take.
  Block block(std::initializer_list<std::string_view> endings) {
    if (++nesting_ > kMaxNesting) refuse("statements nested too deeply");
    Block made;
    while (tokens_.peek().kind != Token::Kind::end) {
      const Token& token = tokens_.peek();
      if (token.kind == Token::Kind::text) {
        Statement& statement = add(made, Kind::text);
        statement.text = Text(tokens_.take().value, true);
      } else if (token.kind == Token::Kind::output_begin) {
        Statement& statement = add(made, Kind::output);
        tokens_.take();
        statement.expression = parse_tuple(tokens_);
        tokens_.expect(Token::Kind::output_end);
      } else {
        tokens_.expect(Token::Kind::block_begin);
        const std::string word = tokens_.peek().value;
        for (const std::string_view ending : endings) {
          if (word == ending) {
            --nesting_;
            return made;
          }
        }
        statement(made, word);
      }
    }
    if (endings.size() > 0) refuse(fmt::format("a block without its {}", *(endings.end() - 1)));
    --nesting_;
    return made;
  }

  Statement& add(Block& block, Kind kind) {
    block.emplace_back();
    block.back().kind = kind;
    block.back().line = tokens_.peek().line;
    return block.back();
  }

  void statement(Block& made, const std::string& word) {
    if (word == "for") return loop(add(made, Kind::loop));
    if (word == "if") return branches(add(made, Kind::branches));
    if (word == "set") return assign(add(made, Kind::assign));
    if (word == "macro") return macro(add(made, Kind::macro));
    if (word == "break" || word == "continue") {
      add(made, word == "break" ? Kind::break_loop : Kind::continue_loop);
      tokens_.take();
      return tokens_.expect(Token::Kind::block_end);
    }
    if (word == "generation") {  // marks what the assistant wrote, for training; prints nothing
      Statement& group = add(made, Kind::group);
      tokens_.take();
      tokens_.expect(Token::Kind::block_end);
      group.body = block({"endgeneration"});
      return end();
    }
    refuse(fmt::format("the statement '{}' in line {}", word, tokens_.peek().line));
  }

  /// The ending word and the end of its tag.
  void end() {
    tokens_.take();
    tokens_.expect(Token::Kind::block_end);
  }

  void loop(Statement& statement) {
    tokens_.take();
    const bool parenthesis = tokens_.accept("(");
    do {
      statement.targets.push_back(tokens_.name());
    } while (tokens_.accept(","));
    if (parenthesis) tokens_.expect(")");
    tokens_.expect_word("in");
    statement.expression = parse_or(tokens_);  // an `if` behind it is the loop's own
    if (tokens_.accept_word("if")) statement.filter = parse_expression(tokens_);
    if (tokens_.peek().value == "recursive") refuse("a recursive loop");
    tokens_.expect(Token::Kind::block_end);
    statement.body = block({"else", "endfor"});
    if (tokens_.peek().value == "else") {
      end();
      statement.otherwise = block({"endfor"});
    }
    end();
  }

  void branches(Statement& statement) {
    do {
      tokens_.take();
      Branch branch;
      branch.condition = parse_expression(tokens_);
      tokens_.expect(Token::Kind::block_end);
      branch.body = block({"elif", "else", "endif"});
      statement.branches.push_back(std::move(branch));
    } while (tokens_.peek().value == "elif");
    if (tokens_.peek().value == "else") {
      end();
      Branch branch;
      branch.body = block({"endif"});
      statement.branches.push_back(std::move(branch));
    }
    end();
  }

  void assign(Statement& statement) {
    tokens_.take();
    statement.targets.push_back(tokens_.name());
    if (tokens_.accept(".")) {
      statement.attribute = tokens_.name();
    } else {
      while (tokens_.accept(",")) statement.targets.push_back(tokens_.name());
    }
    if (tokens_.accept("=")) {
      statement.expression = parse_tuple(tokens_);
      return tokens_.expect(Token::Kind::block_end);
    }
    if (statement.targets.size() != 1 || !statement.attribute.empty()) tokens_.refuse_here();
    statement.kind = Kind::assign_block;
    tokens_.expect(Token::Kind::block_end);
    statement.body = block({"endset"});
    end();
  }

  void macro(Statement& statement) {
    tokens_.take();
    auto made = std::make_shared<Macro>();
    made->name = tokens_.name();
    statement.targets.push_back(made->name);
    tokens_.expect("(");
    while (!tokens_.accept(")")) {
      if (!made->parameters.empty()) tokens_.expect(",");
      std::string name = tokens_.name();
      made->parameters.emplace_back(std::move(name), tokens_.accept("=") ? parse_expression(tokens_) : nullptr);
    }
    tokens_.expect(Token::Kind::block_end);
    made->body = block({"endmacro"});
    statement.macro = std::move(made);
    end();
  }

  TokenReader tokens_;
  int nesting_ = 0;
};

}  // namespace

std::shared_ptr<const Program> parse(std::string_view text) {
  return std::make_shared<const Program>(Parser(text).run());
}

}  // namespace duet::jinja
