#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/jinja_value.h"

/// Filters, tests and methods of Jinja and of Python's strings and dicts, as far as chat templates use them.
namespace duet::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at `index`, or named `name`; null when it is not given.
  const Value* find(std::size_t index, std::string_view name) const;
};

// Each throws Error(unsupported) for a name it does not know.
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments);
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments);
Value call_method(const Value& object, std::string_view name, const Arguments& arguments);

/// object.name or object["name"]; undefined when there is nothing of this name.
Value attribute_of(const Value& object, std::string_view name);

}  // namespace duet::jinja
