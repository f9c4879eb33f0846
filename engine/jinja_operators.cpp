// Operators of Jinja.
#include "engine/jinja_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/jinja_library.h"

namespace duet::jinja {

namespace {

double calculate(const std::string& name, double a, double b) {
  if (name == "+") return a + b;
  if (name == "-") return a - b;
  if (name == "*") return a * b;
  if (name == "**") return std::pow(a, b);
  if (b == 0) fail("division by zero");
  if (name == "/") return a / b;
  if (name == "//") return std::floor(a / b);
  return a - b * std::floor(a / b);
}

std::int64_t calculate(const std::string& name, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  if (name == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (name == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (name == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (name == "**") {
    refuse("'**' between whole numbers");
  } else if (b == 0) {
    fail("division by zero");
  } else if (b == -1) {
    overflow = name == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &result);
  } else {  // rounded down, as in Python
    const bool is_rounded_up = a % b != 0 && (a < 0) != (b < 0);
    result = name == "//" ? a / b - (is_rounded_up ? 1 : 0) : a % b + (is_rounded_up ? b : 0);
  }
  if (overflow) fail("a number became too large");
  return result;
}

/// Which indices of `size` items [start:stop:step] takes.
std::vector<std::size_t> slice_indices(std::int64_t size, const Value* start, const Value* stop,
                                       const Value* step_value) {
  const std::int64_t step = step_value != nullptr ? step_value->as_integer() : 1;
  if (step == 0) fail("slice step cannot be zero");
  const std::int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto bound = [&](const Value* value, std::int64_t fallback) {
    if (value == nullptr) return fallback;
    std::int64_t index = value->as_integer();
    if (index < 0) index = std::max(index, -size - 1) + size;
    return std::clamp(index, lowest, highest);
  };
  const std::int64_t first = bound(start, step > 0 ? 0 : size - 1), last = bound(stop, step > 0 ? size : -1);
  std::vector<std::size_t> indices;
  for (std::int64_t i = first; step > 0 ? i < last : i > last;) {
    indices.push_back(static_cast<std::size_t>(i));
    if (step > size || step < -size) break;
    i += step;
  }
  return indices;
}

void need_defined(const Value& value) {
  if (value.is_undefined()) fail(fmt::format("'{}' is undefined", std::get<Undefined>(value.data).name));
}

}  // namespace

Value arithmetic(const std::string& name, const Value& a, const Value& b) {
  need_defined(a);
  need_defined(b);
  if (!a.is_number() || !b.is_number()) {
    if (name == "+") fail(fmt::format("{} and {} cannot be added", type_of(a), type_of(b)));
    refuse(fmt::format("'{}' between {} and {}", name, type_of(a), type_of(b)));
  }
  if (a.is_float() || b.is_float() || name == "/") return calculate(name, a.as_number(), b.as_number());
  return calculate(name, a.as_integer(), b.as_integer());
}

Value negate(const Value& value) {
  if (value.is_float()) return -value.as_number();
  return calculate("-", std::int64_t{0}, value.as_integer());
}

Value item_of(const Value& object, const Value& key) {
  if (key.text() != nullptr) return attribute_of(object, key.text()->bytes);
  need_defined(object);
  const bool is_sequence = object.list() != nullptr || object.text() != nullptr;
  if (!is_sequence || !(key.is_integer() || key.is_boolean())) return Undefined{"item"};
  const List characters = object.list() != nullptr ? List() : items_of(object);
  const List& list = object.list() != nullptr ? *object.list() : characters;
  const auto size = static_cast<std::int64_t>(list.size());
  std::int64_t index = key.as_integer();
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Undefined{fmt::format("item {}", key.as_integer())};
  return list[static_cast<std::size_t>(index)];
}

Value slice_of(const Value& object, const Value* start, const Value* stop, const Value* step) {
  if (object.list() == nullptr && object.text() == nullptr) fail(fmt::format("{} cannot be sliced", type_of(object)));
  const List items = items_of(object);
  List taken;
  for (const std::size_t i : slice_indices(static_cast<std::int64_t>(items.size()), start, stop, step)) {
    taken.push_back(items[i]);
  }
  if (object.list() != nullptr) return make_list(std::move(taken));
  Text text;
  for (const Value& character : taken) text.append(*character.text());
  return text;
}

Value range_of(const std::vector<Value>& given) {
  constexpr std::size_t kMaxRange = 100'000;
  if (given.empty() || given.size() > 3) fail("range() takes one to three arguments");
  const std::int64_t first = given.size() > 1 ? given[0].as_integer() : 0;
  const std::int64_t last = given[given.size() > 1 ? 1 : 0].as_integer();
  const std::int64_t step = given.size() > 2 ? given[2].as_integer() : 1;
  if (step == 0) fail("range() step must not be zero");
  List numbers;
  for (std::int64_t number = first; step > 0 ? number < last : number > last;) {
    if (numbers.size() == kMaxRange) fail(fmt::format("range() of more than {} numbers", kMaxRange));
    numbers.emplace_back(number);
    if (__builtin_add_overflow(number, step, &number)) break;
  }
  return make_list(std::move(numbers));
}

}  // namespace duet::jinja
