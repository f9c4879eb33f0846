#pragma once

#include <string>

#include "engine/json_value.h"

/// How decision models are shown JSON values: the texts their reference implementations make in Python.
namespace duet {

/// Python's repr of a float: the shortest digits that give the same float64, "1.0", "1e+16", "1e-05", "-0.0".
std::string python_float(double value);

/// json.dumps(value, ensure_ascii=False): ", " and ": " between parts, non-ASCII characters as they are.
std::string python_json(const JsonValue& value);

/// Laya's text of a value: a string as it is, anything else python_json.
std::string laya_text(const JsonValue& value);

/// Kev's `render`: null is empty, numbers and booleans as Python prints them, arrays as lines "- item", objects as
/// lines "key: value", two spaces for each level.
std::string kev_text(const JsonValue& value);

}  // namespace duet
