#pragma once

#include <string>
#include <vector>

#include "engine/jinja_value.h"

/// Operators of Jinja with Python's rules.
namespace duet::jinja {

/// a + b, a // b, ... of numbers. Throws for other operands, division by zero and results beyond 64 bits.
Value arithmetic(const std::string& name, const Value& a, const Value& b);
Value negate(const Value& value);

/// object[key]; undefined when there is nothing.
Value item_of(const Value& object, const Value& key);

/// object[start:stop:step] of a string or a list; null bounds are the defaults.
Value slice_of(const Value& object, const Value* start, const Value* stop, const Value* step);

/// range(stop), range(start, stop) or range(start, stop, step); at most 100,000 numbers.
Value range_of(const std::vector<Value>& given);

}  // namespace duet::jinja
