#include "engine/decision_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string_view>

namespace duet {

const JsonValue* JsonValue::find(std::string_view key) const {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == key) return &items[i];
  return nullptr;
}

std::string python_float(double value) {
  std::array<char, 64> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));  // "-1.2345e+16"
  const std::size_t e = text.find('e');
  int exponent = 0;
  const std::string_view power = text.substr(e + (text[e + 1] == '+' ? 2 : 1));
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  std::string digits;
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  const std::string sign = text.front() == '-' ? "-" : "";
  const auto length = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = length > 1 ? "." + digits.substr(1) : "";
    return fmt::format("{}{}{}e{}{:02}", sign, digits[0], fraction, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (length <= exponent + 1)
    return sign + digits + std::string(static_cast<std::size_t>(exponent + 1 - length), '0') + ".0";
  return sign + digits.substr(0, static_cast<std::size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<std::size_t>(exponent) + 1);
}

namespace {

void append_quoted(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          out += c;
    }
  }
  out += '"';
}

void append_json(const JsonValue& value, std::string& out) {
  switch (value.kind) {
    case JsonValue::Kind::null:
      out += "null";
      return;
    case JsonValue::Kind::boolean:
      out += value.boolean ? "true" : "false";
      return;
    case JsonValue::Kind::integer:
      out += value.text;
      return;
    case JsonValue::Kind::real:
      out += python_float(value.real);
      return;
    case JsonValue::Kind::string:
      append_quoted(value.text, out);
      return;
    case JsonValue::Kind::array:
    case JsonValue::Kind::object:
      break;
  }
  const bool is_object = value.kind == JsonValue::Kind::object;
  out += is_object ? '{' : '[';
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out += ", ";
    if (is_object) {
      append_quoted(value.keys[i], out);
      out += ": ";
    }
    append_json(value.items[i], out);
  }
  out += is_object ? '}' : ']';
}

/// Length of the white space, as str.lstrip takes it, that `text` begins with.
std::size_t leading_space(std::string_view text) {
  constexpr std::array<std::string_view, 20> kWideSpaces = {
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82", "\xE2\x80\x83",
      "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A",
      "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80", "\x20"};
  std::size_t length = 0;
  while (length < text.size()) {
    const auto byte = static_cast<unsigned char>(text[length]);
    if ((byte >= 0x09 && byte <= 0x0D) || (byte >= 0x1C && byte <= 0x1F)) {
      ++length;
      continue;
    }
    std::size_t step = 0;
    for (const std::string_view space : kWideSpaces)
      if (text.substr(length).starts_with(space)) step = space.size();
    if (step == 0) break;
    length += step;
  }
  return length;
}

std::string rendered(const JsonValue& value, std::size_t indent) {
  const std::string pad(2 * indent, ' ');
  std::string out;
  switch (value.kind) {
    case JsonValue::Kind::null:
      return out;
    case JsonValue::Kind::boolean:
      return value.boolean ? "True" : "False";
    case JsonValue::Kind::integer:
    case JsonValue::Kind::string:
      return value.text;
    case JsonValue::Kind::real:
      return python_float(value.real);
    case JsonValue::Kind::array:
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        const std::string item = rendered(value.items[i], indent + 1);
        out += (i == 0 ? "" : "\n") + pad + "- " + item.substr(leading_space(item));
      }
      return out;
    case JsonValue::Kind::object:
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        const JsonValue& item = value.items[i];
        out += (i == 0 ? "" : "\n") + pad + value.keys[i] + (item.is_container() ? ":\n" : ": ") +
               rendered(item, indent + 1);
      }
      return out;
  }
  return out;
}

}  // namespace

std::string python_json(const JsonValue& value) {
  std::string out;
  append_json(value, out);
  return out;
}

std::string laya_text(const JsonValue& value) {
  return value.kind == JsonValue::Kind::string ? value.text : python_json(value);
}

std::string kev_text(const JsonValue& value) { return rendered(value, 0); }

}  // namespace duet
