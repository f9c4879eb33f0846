#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/jinja_value.h"

/// The syntax tree of a chat template.
namespace duet::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Expression {
  enum class Kind {
    constant,     // value
    name,         // name
    list,         // parts
    dict,         // parts: key, value, key, value, ...
    attribute,    // parts[0].name
    item,         // parts[0][parts[1]]
    slice,        // parts[0][parts[1]:parts[2]:parts[3]], absent ones null
    call,         // parts[0](parts[1...], named)
    filter,       // parts[0] | name(parts[1...], named)
    test,         // parts[0] is name(parts[1...])
    logical_not,  // not parts[0]
    negate,       // -parts[0]
    binary,       // parts[0] name parts[1]: arithmetic, ~
    compare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    logical_and,
    logical_or,
    conditional  // parts[0] if parts[1] else parts[2] (may be null)
  };
  Kind kind = Kind::constant;
  int line = 1;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

struct Statement;
using Block = std::vector<Statement>;

struct Branch {
  ExpressionPtr condition;  // null: else
  Block body;
};

struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with defaults, or null
  Block body;
};

struct Statement {
  enum class Kind { text, output, loop, branches, assign, assign_block, macro, break_loop, continue_loop, group };
  Kind kind = Kind::text;
  int line = 1;
  Text text;                         // text
  ExpressionPtr expression;          // output; loop: what it goes through; assign: the value
  ExpressionPtr filter;              // loop: the condition behind `if`
  std::vector<std::string> targets;  // loop, assign, assign_block
  std::string attribute;             // assign: targets[0].attribute
  Block body, otherwise;             // loop, assign_block, group
  std::vector<Branch> branches;
  std::shared_ptr<const Macro> macro;
};

struct Program {
  Block body;
};

/// Throws Error(unsupported) naming line and construct.
std::shared_ptr<const Program> parse(std::string_view text);

}  // namespace duet::jinja
