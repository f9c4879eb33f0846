// Filters, tests and methods.
#include "engine/jinja_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace duet::jinja {

namespace {

/// White space as Python's str.strip and str.split see it.
bool is_python_space(char32_t code) { return is_white_space(code) || (code >= 0x1C && code <= 0x1F); }

struct Sides {
  bool left, right;
};

/// Strips white space, or the characters of `characters` when it is given.
Text strip(const Text& text, Sides sides, const Value* characters) {
  const std::string* wanted = characters != nullptr && !characters->is_none() ? &characters->as_text().bytes : nullptr;
  const auto strips = [&](std::size_t at, std::size_t size) {
    if (wanted == nullptr) return is_python_space(decode_utf8(text.bytes, at).code);
    for (std::size_t i = 0; i < wanted->size(); i += decode_utf8(*wanted, i).size) {
      if (decode_utf8(*wanted, i).code == decode_utf8(text.bytes, at).code && size > 0) return true;
    }
    return false;
  };
  std::size_t begin = 0, end = text.bytes.size();
  while (sides.left && begin < end) {
    const std::size_t size = decode_utf8(text.bytes, begin).size;
    if (!strips(begin, size)) break;
    begin += size;
  }
  while (sides.right && end > begin) {
    std::size_t at = end - 1;
    while ((static_cast<unsigned char>(text.bytes[at]) & 0xC0) == 0x80) --at;
    if (!strips(at, end - at)) break;
    end = at;
  }
  return text.part(begin, end);
}

Value split_at_spaces(const Text& text) {
  List parts;
  std::size_t begin = 0;
  for (std::size_t at = 0; at <= text.bytes.size();) {
    const bool end = at == text.bytes.size();
    const Utf8Char c = end ? Utf8Char{U' ', 1} : decode_utf8(text.bytes, at);
    if (is_python_space(c.code)) {
      if (at > begin) parts.emplace_back(text.part(begin, at));
      begin = at + c.size;
    }
    at += c.size;
  }
  return make_list(std::move(parts));
}

Value split(const Text& text, const Arguments& arguments) {
  const Value* separator = arguments.find(0, "sep");
  const Value* most = arguments.find(1, "maxsplit");
  const std::int64_t limit = most != nullptr ? most->as_integer() : -1;
  if (separator == nullptr || separator->is_none()) {
    if (limit >= 0) refuse("split() at white space with a limit");
    return split_at_spaces(text);
  }
  const std::string& wanted = separator->as_text().bytes;
  if (wanted.empty()) fail("empty separator");
  List parts;
  std::size_t at = 0;
  for (std::size_t next = text.bytes.find(wanted);
       next != std::string::npos && (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit);
       next = text.bytes.find(wanted, at)) {
    parts.emplace_back(text.part(at, next));
    at = next + wanted.size();
  }
  parts.emplace_back(text.part(at, text.bytes.size()));
  return make_list(std::move(parts));
}

Text replace(const Text& text, const Text& from, const Text& to, std::int64_t limit) {
  if (from.bytes.empty()) refuse("replace() of an empty string");
  Text out;
  std::size_t at = 0;
  for (std::size_t next = text.bytes.find(from.bytes); next != std::string::npos && limit != 0;
       next = text.bytes.find(from.bytes, at)) {
    out.append(text.part(at, next));
    out.append(to);
    check_size(out.bytes.size());
    at = next + from.bytes.size();
    --limit;
  }
  out.append(text.part(at, text.bytes.size()));
  return out;
}

Text join(const List& items, const Text& separator) {
  Text out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(printed(items[i]));
    check_size(out.bytes.size());
  }
  return out;
}

/// ASCII letters only change; other scripts' case in a template is refused rather than guessed.
Text change_case(const Text& text, std::string_view how) {
  Text out = text;
  bool word_start = true;
  for (char& c : out.bytes) {
    if (static_cast<unsigned char>(c) >= 0x80) refuse(fmt::format("{} on a text beyond ASCII", how));
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool upper = how == "upper" || ((how == "title" || how == "capitalize") && word_start);
    if (is_letter) c = static_cast<char>(upper ? (c & ~0x20) : (c | 0x20));
    word_start = how == "title" && !is_letter;
  }
  return out;
}

bool starts_with(const std::string& text, const std::string& beginning) {
  return text.compare(0, beginning.size(), beginning) == 0;
}
bool ends_with(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

const Value& need(const Arguments& arguments, std::size_t index, std::string_view name, std::string_view function) {
  const Value* value = arguments.find(index, name);
  if (value == nullptr) fail(fmt::format("{} needs its argument {}", function, name));
  return *value;
}

std::int64_t limit_of(const Arguments& arguments) {
  const Value* limit = arguments.find(2, "count");
  return limit != nullptr && !limit->is_none() ? limit->as_integer() : -1;
}

List pairs_of(const Dict& dict) {
  List pairs;
  for (const auto& [key, value] : dict.items) pairs.push_back(make_list({make_text(key), value}));
  return pairs;
}

Value text_method(const Text& text, std::string_view name, const Arguments& arguments) {
  if (name == "strip") return strip(text, {true, true}, arguments.find(0, "chars"));
  if (name == "lstrip") return strip(text, {true, false}, arguments.find(0, "chars"));
  if (name == "rstrip") return strip(text, {false, true}, arguments.find(0, "chars"));
  if (name == "split") return split(text, arguments);
  if (name == "startswith") return starts_with(text.bytes, need(arguments, 0, "prefix", name).as_text().bytes);
  if (name == "endswith") return ends_with(text.bytes, need(arguments, 0, "suffix", name).as_text().bytes);
  if (name == "replace") {
    return replace(text, need(arguments, 0, "old", name).as_text(), need(arguments, 1, "new", name).as_text(),
                   limit_of(arguments));
  }
  if (name == "join") return join(items_of(need(arguments, 0, "iterable", name)), text);
  if (name == "removeprefix") {
    const std::string& prefix = need(arguments, 0, "prefix", name).as_text().bytes;
    return starts_with(text.bytes, prefix) ? text.part(prefix.size(), text.bytes.size()) : text;
  }
  if (name == "removesuffix") {
    const std::string& suffix = need(arguments, 0, "suffix", name).as_text().bytes;
    return ends_with(text.bytes, suffix) ? text.part(0, text.bytes.size() - suffix.size()) : text;
  }
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") return change_case(text, name);
  refuse(fmt::format("the string method {}()", name));
}

Value select(const Value& value, const Arguments& arguments, bool by_attribute, bool wanted) {
  List kept;
  const std::size_t first = by_attribute ? 1 : 0;
  Arguments rest;
  for (std::size_t i = first + 1; i < arguments.positional.size(); ++i)
    rest.positional.push_back(arguments.positional[i]);
  for (const Value& item : items_of(value)) {
    const Value subject =
        by_attribute ? attribute_of(item, need(arguments, 0, "attribute", "selectattr").as_text().bytes) : item;
    const bool passes = arguments.positional.size() > first
                            ? apply_test(arguments.positional[first].as_text().bytes, subject, rest)
                            : is_true(subject);
    if (passes == wanted) kept.push_back(item);
  }
  return make_list(std::move(kept));
}

Value map(const Value& value, const Arguments& arguments) {
  List made;
  const Value* attribute = arguments.find(~std::size_t{0}, "attribute");
  Arguments rest;
  for (std::size_t i = 1; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  for (const Value& item : items_of(value)) {
    made.push_back(attribute != nullptr
                       ? attribute_of(item, attribute->as_text().bytes)
                       : apply_filter(need(arguments, 0, "filter", "map").as_text().bytes, item, rest));
  }
  return make_list(std::move(made));
}

Value to_int(const Value& value) {
  if (value.is_float()) {
    const double number = value.as_number();
    if (!(std::abs(number) < 9e18)) fail("a number is too large for a whole number");
    return static_cast<std::int64_t>(number);
  }
  if (const Text* text = value.text()) return static_cast<std::int64_t>(std::strtoll(text->bytes.c_str(), nullptr, 10));
  return value.as_integer();
}

}  // namespace

const Value* Arguments::find(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments) {
  if (name == "trim") return strip(printed(value), {true, true}, arguments.find(0, "chars"));
  if (name == "length" || name == "count") return length_of(value);
  if (name == "tojson") {
    if (!arguments.positional.empty() || !arguments.named.empty()) refuse("tojson with arguments");
    return as_json(value);
  }
  if (name == "string") return printed(value);
  if (name == "safe") return value;
  if (name == "list") return make_list(items_of(value));
  if (name == "int") return to_int(value);
  if (name == "default" || name == "d") {
    const Value* boolean = arguments.find(1, "boolean");
    const bool missing = value.is_undefined() || (boolean != nullptr && is_true(*boolean) && !is_true(value));
    if (!missing) return value;
    const Value* fallback = arguments.find(0, "default_value");
    return fallback != nullptr ? *fallback : make_text("");
  }
  if (name == "first" || name == "last") {
    const List items = items_of(value);
    if (items.empty()) return Undefined{std::string(name)};
    return name == "first" ? items.front() : items.back();
  }
  if (name == "reverse") {
    List items = items_of(value);
    std::reverse(items.begin(), items.end());
    if (value.text() != nullptr) return join(items, {});
    return make_list(std::move(items));
  }
  if (name == "join") {
    const Value* separator = arguments.find(0, "d");
    const Value* attribute = arguments.find(1, "attribute");
    List items = items_of(value);
    if (attribute != nullptr) {
      for (Value& item : items) item = attribute_of(item, attribute->as_text().bytes);
    }
    return join(items, separator != nullptr ? separator->as_text() : Text());
  }
  if (name == "replace") {
    return replace(printed(value), need(arguments, 0, "old", name).as_text(), need(arguments, 1, "new", name).as_text(),
                   limit_of(arguments));
  }
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize")
    return change_case(printed(value), name);
  if (name == "items" && value.dict() != nullptr) return make_list(pairs_of(*value.dict()));
  if (name == "select") return select(value, arguments, false, true);
  if (name == "reject") return select(value, arguments, false, false);
  if (name == "selectattr") return select(value, arguments, true, true);
  if (name == "rejectattr") return select(value, arguments, true, false);
  if (name == "map") return map(value, arguments);
  refuse(fmt::format("the filter '{}'", name));
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments) {
  const auto other = [&]() -> const Value& { return need(arguments, 0, "other", name); };
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "iterable" || name == "sequence") {
    return value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr || value.is_undefined();
  }
  if (name == "boolean") return value.is_boolean();
  if (name == "true") return value.is_boolean() && is_true(value);
  if (name == "false") return value.is_boolean() && !is_true(value);
  if (name == "integer") return value.is_integer();
  if (name == "float") return value.is_float();
  if (name == "number") return value.is_number();
  if (name == "callable") return value.callable() != nullptr;
  if (name == "odd" || name == "even") return (value.as_integer() % 2 != 0) == (name == "odd");
  if (name == "divisibleby") {
    const std::int64_t divisor = other().as_integer();
    if (divisor == 0) fail("division by zero");
    return divisor == -1 || value.as_integer() % divisor == 0;
  }
  if (name == "equalto" || name == "eq") return are_equal(value, other());
  if (name == "ne") return !are_equal(value, other());
  if (name == "in") return contains(other(), value);
  refuse(fmt::format("the test 'is {}'", name));
}

Value call_method(const Value& object, std::string_view name, const Arguments& arguments) {
  if (const Text* text = object.text()) return text_method(*text, name, arguments);
  if (Dict* dict = object.dict()) {
    if (name == "items") return make_list(pairs_of(*dict));
    if (name == "keys") return make_list(items_of(object));
    if (name == "values") {
      List values;
      for (const auto& entry : dict->items) values.push_back(entry.second);
      return make_list(std::move(values));
    }
    if (name == "get") {
      const Value& key = need(arguments, 0, "key", name);
      const Value* found = key.text() != nullptr ? dict->find(key.text()->bytes) : nullptr;
      const Value* fallback = arguments.find(1, "default");
      return found != nullptr ? *found : fallback != nullptr ? *fallback : Value(None());
    }
  }
  if (object.is_undefined()) fail(fmt::format("'{}' is undefined", std::get<Undefined>(object.data).name));
  refuse(fmt::format("the method {}() of {}", name, type_of(object)));
}

Value attribute_of(const Value& object, std::string_view name) {
  if (object.is_undefined()) fail(fmt::format("'{}' is undefined", std::get<Undefined>(object.data).name));
  if (Dict* dict = object.dict()) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return Undefined{std::string(name)};
}

}  // namespace duet::jinja
