#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace duet {

/// A JSON value as Python's json module sees it: the order of keys is kept, 1 and 1.0 are different numbers and
/// integers have any length. Decision models are shown states and descriptions as text, so spelling matters.
struct JsonValue {
  enum class Kind : std::uint8_t { null, boolean, integer, real, string, array, object };
  Kind kind = Kind::null;
  bool boolean = false;
  double real = 0;                     ///< Finite.
  std::string text = {};               ///< A string's characters in UTF-8; an integer's digits.
  std::vector<std::string> keys = {};  ///< Of an object, in order, each once.
  std::vector<JsonValue> items = {};   ///< Elements of an array; values of an object, one for each key.

  bool is_container() const { return kind == Kind::array || kind == Kind::object; }
  /// The value of a key; null when the key is absent or this is no object.
  const JsonValue* find(std::string_view key) const;
};

inline JsonValue json_string(std::string text) { return {.kind = JsonValue::Kind::string, .text = std::move(text)}; }

}  // namespace duet
