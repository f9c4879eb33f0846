// Values of Jinja.
#include "engine/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "duet/error.h"

namespace duet::jinja {

void fail(const std::string& sentence) {
  throw Error(Code::invalid_argument, "The chat template refuses these messages: " + sentence);
}

void refuse(const std::string& construct) {
  throw Error(Code::unsupported, fmt::format("The chat template uses {}, which Duet does not support", construct));
}

void check_size(std::size_t bytes) {
  if (bytes > kMaxTextBytes) fail(fmt::format("a text grew beyond {} bytes", kMaxTextBytes));
}

Text Text::part(std::size_t begin, std::size_t end) const {
  Text made;
  made.bytes = bytes.substr(begin, end - begin);
  made.flags = flags.substr(begin, end - begin);
  return made;
}

namespace {

/// How deep a container is that holds `value`.
int depth_around(const Value& value) {
  constexpr int kMaxDepth = 16;
  int depth = 1;
  if (const auto* list = std::get_if<std::shared_ptr<SharedList>>(&value.data)) depth = (*list)->depth + 1;
  if (const Dict* dict = value.dict()) {
    if (dict->is_namespace) refuse("a namespace inside another value");
    depth = dict->depth + 1;
  }
  if (depth > kMaxDepth) fail(fmt::format("lists nest deeper than {} levels", kMaxDepth));
  return depth;
}

}  // namespace

Value* Dict::find(std::string_view key) {
  for (auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Dict::set(std::string_view key, Value value) {
  depth = std::max(depth, depth_around(value));
  if (Value* known = find(key)) {
    *known = std::move(value);
  } else {
    items.emplace_back(key, std::move(value));
  }
}

List* Value::list() const {
  const auto* pointer = std::get_if<std::shared_ptr<SharedList>>(&data);
  return pointer != nullptr ? &(*pointer)->items : nullptr;
}

Dict* Value::dict() const {
  const auto* pointer = std::get_if<std::shared_ptr<Dict>>(&data);
  return pointer != nullptr ? pointer->get() : nullptr;
}

std::int64_t Value::as_integer() const {
  if (const auto* boolean = std::get_if<bool>(&data)) return *boolean ? 1 : 0;
  if (const auto* integer = std::get_if<std::int64_t>(&data)) return *integer;
  fail(fmt::format("{} stands where a whole number was expected", type_of(*this)));
}

double Value::as_number() const {
  if (const auto* number = std::get_if<double>(&data)) return *number;
  return static_cast<double>(as_integer());
}

const Text& Value::as_text() const {
  if (const Text* string = text()) return *string;
  if (is_undefined()) fail(fmt::format("'{}' is undefined", std::get<Undefined>(data).name));
  fail(fmt::format("{} stands where a string was expected", type_of(*this)));
}

Value make_list(List items) {
  auto list = std::make_shared<SharedList>();
  for (const Value& item : items) list->depth = std::max(list->depth, depth_around(item));
  list->items = std::move(items);
  return list;
}

Value make_text(std::string text) { return Text(std::move(text), true); }

std::string_view type_of(const Value& value) {
  static constexpr std::string_view kNames[] = {"an undefined value", "none",     "a boolean", "a whole number",
                                                "a number",           "a string", "a list",    "a dict",
                                                "a function"};
  return kNames[value.data.index()];
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.as_number() != 0;
  if (const Text* text = value.text()) return !text->bytes.empty();
  if (const List* list = value.list()) return !list->empty();
  if (const Dict* dict = value.dict()) return dict->is_namespace || !dict->items.empty();
  return true;
}

bool are_equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_number() == b.as_number();
  if (a.data.index() != b.data.index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const Text* text = a.text()) return text->bytes == b.text()->bytes;
  if (const List* list = a.list()) {
    const List& other = *b.list();
    if (list->size() != other.size()) return false;
    for (std::size_t i = 0; i < other.size(); ++i) {
      if (!are_equal((*list)[i], other[i])) return false;
    }
    return true;
  }
  if (Dict* dict = a.dict()) {
    Dict* other = b.dict();
    if (dict->items.size() != other->items.size()) return false;
    for (const auto& [key, value] : dict->items) {
      const Value* match = other->find(key);
      if (match == nullptr || !are_equal(value, *match)) return false;
    }
    return true;
  }
  return false;
}

bool is_less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_number() < b.as_number();
  if (a.text() != nullptr && b.text() != nullptr)
    return a.text()->bytes < b.text()->bytes;  // UTF-8 sorts as code points
  fail(fmt::format("{} and {} cannot be compared", type_of(a), type_of(b)));
}

bool contains(const Value& container, const Value& item) {
  if (const Text* text = container.text()) return text->bytes.find(item.as_text().bytes) != std::string::npos;
  if (Dict* dict = container.dict()) return item.text() != nullptr && dict->find(item.text()->bytes) != nullptr;
  for (const Value& value : items_of(container)) {
    if (are_equal(value, item)) return true;
  }
  return false;
}

std::vector<Text> characters_of(const Text& text) {
  std::vector<Text> characters;
  for (std::size_t at = 0; at < text.bytes.size();) {
    const std::size_t size = decode_utf8(text.bytes, at).size;
    characters.push_back(text.part(at, at + size));
    at += size;
  }
  return characters;
}

std::int64_t length_of(const Value& value) {
  if (const Text* text = value.text()) {
    std::int64_t count = 0;
    for (const char c : text->bytes) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    return count;
  }
  if (const List* list = value.list()) return static_cast<std::int64_t>(list->size());
  if (const Dict* dict = value.dict()) return static_cast<std::int64_t>(dict->items.size());
  if (value.is_undefined()) return 0;
  fail(fmt::format("{} has no length", type_of(value)));
}

List items_of(const Value& value) {
  if (const List* list = value.list()) return *list;
  List items;
  if (const Text* text = value.text()) {
    for (Text& character : characters_of(*text)) items.emplace_back(std::move(character));
  } else if (const Dict* dict = value.dict()) {
    for (const auto& entry : dict->items) items.push_back(make_text(entry.first));
  } else if (!value.is_undefined()) {
    fail(fmt::format("{} is nothing to loop over", type_of(value)));
  }
  return items;
}

namespace {

std::string float_text(double number) {
  if (std::isfinite(number) && number == std::floor(number) && std::abs(number) < 1e16)
    return fmt::format("{:.1f}", number);
  return fmt::format("{}", number);
}

void append_json_string(const Text& text, Text& out) {
  out.append(Text("\"", true));
  for (std::size_t i = 0; i < text.bytes.size(); ++i) {
    const char c = text.bytes[i];
    static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    const std::size_t known = kFrom.find(c);
    std::string escaped;
    if (known != std::string_view::npos) {
      escaped += '\\';
      escaped += kTo[known];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      escaped = fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      escaped += c;
    }
    out.bytes += escaped;
    out.flags.append(escaped.size(), text.flags[i]);
  }
  out.append(Text("\"", true));
}

}  // namespace

Text as_json(const Value& value) {
  Text out;
  if (const Text* text = value.text()) {
    append_json_string(*text, out);
  } else if (const List* list = value.list()) {
    out.append(Text("[", true));
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (i > 0) out.append(Text(", ", true));
      out.append(as_json((*list)[i]));
    }
    out.append(Text("]", true));
  } else if (const Dict* dict = value.dict()) {
    out.append(Text("{", true));
    for (std::size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out.append(Text(", ", true));
      append_json_string(Text(dict->items[i].first, true), out);
      out.append(Text(": ", true));
      out.append(as_json(dict->items[i].second));
    }
    out.append(Text("}", true));
  } else if (value.is_none()) {
    out = Text("null", true);
  } else if (value.is_boolean()) {
    out = Text(is_true(value) ? "true" : "false", true);
  } else if (value.is_number()) {
    out = printed(value);
  } else {
    fail(fmt::format("{} cannot be written as JSON", type_of(value)));
  }
  check_size(out.bytes.size());
  return out;
}

Text printed(const Value& value) {
  if (const Text* text = value.text()) return *text;
  if (value.is_undefined()) return {};
  if (value.is_none()) return Text("None", true);
  if (value.is_boolean()) return Text(is_true(value) ? "True" : "False", true);
  if (value.is_integer()) return Text(fmt::format("{}", value.as_integer()), true);
  if (value.is_float()) return Text(float_text(value.as_number()), true);
  refuse(fmt::format("the printed form of {}", type_of(value)));
}

}  // namespace duet::jinja
