#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/unicode.h"

/// Values of the Jinja that chat templates are written in. Python's rules, as far as templates see them.
namespace duet::jinja {

/// A string that knows, byte by byte, whether the template wrote it (flag 1) or it came from a message (flag 0).
struct Text {
  std::string bytes;
  ByteFlags flags;

  Text() = default;
  Text(std::string text, bool from_template)
      : bytes(std::move(text)), flags(bytes.size(), from_template ? '\1' : '\0') {}
  void append(const Text& other) {
    bytes += other.bytes;
    flags += other.flags;
  }
  Text part(std::size_t begin, std::size_t end) const;  ///< Bytes [begin, end).
};

struct Value;
struct Dict;
struct Macro;
using List = std::vector<Value>;
/// Lists and dicts know how deep they nest, which is bounded, and hold no namespace: values are shallow trees.
struct SharedList {
  List items;
  int depth = 0;
};

struct Undefined {
  std::string name;  ///< What was not there.
};
struct None {};
/// Something that can be called: a macro of the template, or a function by name.
struct Callable {
  std::shared_ptr<const Macro> macro;
  std::string function;
};

struct Value {
  std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<SharedList>, std::shared_ptr<Dict>,
               Callable>
      data;

  Value() = default;
  template <typename T>
  Value(T value) : data(std::move(value)) {}  // NOLINT: a value is made from what it holds

  bool is_undefined() const { return std::holds_alternative<Undefined>(data); }
  bool is_none() const { return std::holds_alternative<None>(data); }
  bool is_boolean() const { return std::holds_alternative<bool>(data); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(data); }
  bool is_float() const { return std::holds_alternative<double>(data); }
  bool is_number() const { return is_boolean() || is_integer() || is_float(); }
  const Text* text() const { return std::get_if<Text>(&data); }
  List* list() const;
  Dict* dict() const;
  const Callable* callable() const { return std::get_if<Callable>(&data); }

  std::int64_t as_integer() const;  ///< Of a boolean or an integer; throws otherwise.
  double as_number() const;         ///< Of any number; throws otherwise.
  const Text& as_text() const;      ///< Throws when it is no string.
};

/// Keys in order of insertion; a namespace() is one that templates may change.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
  bool is_namespace = false;
  int depth = 0;

  Value* find(std::string_view key);
  void set(std::string_view key, Value value);  ///< Throws when the value is a namespace or nests too deeply.
};

Value make_list(List items);        ///< Throws likewise.
Value make_text(std::string text);  ///< Written by the template.

bool is_true(const Value& value);
bool are_equal(const Value& a, const Value& b);
bool is_less(const Value& a, const Value& b);  ///< Numbers or strings; throws for others.
bool contains(const Value& container, const Value& item);
Text printed(const Value& value);  ///< What {{ value }} prints.
Text as_json(const Value& value);  ///< What the filter tojson gives: json.dumps(value, ensure_ascii=False).
std::string_view type_of(const Value& value);
std::int64_t length_of(const Value& value);  ///< Characters of a string, items of a list or dict.
List items_of(const Value& value);           ///< What a loop goes through.
std::vector<Text> characters_of(const Text& text);

/// An error while rendering: Error(invalid_argument) with this sentence.
[[noreturn]] void fail(const std::string& sentence);
/// What Duet's Jinja does not know: Error(unsupported); ChatTemplate adds the template's name and the ways out.
[[noreturn]] void refuse(const std::string& construct);

/// No string of a template grows beyond this.
constexpr std::size_t kMaxTextBytes = std::size_t{32} << 20;
void check_size(std::size_t bytes);

}  // namespace duet::jinja
