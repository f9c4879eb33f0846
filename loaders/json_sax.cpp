#include "loaders/json_sax.h"

#include <fmt/format.h>

#include <cmath>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {
namespace {

/// Looks at brackets outside of strings only: cheap, and it has a position to report.
void check_depth(std::string_view text, std::string_view source, int limit) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (in_string) {
      if (letter == '\\') {
        ++i;
      } else if (letter == '"') {
        in_string = false;
      }
    } else if (letter == '"') {
      in_string = true;
    } else if (letter == '[' || letter == '{') {
      if (++depth > limit) {
        throw Error(Code::bad_file, fmt::format("{} is nested more than {} deep at byte {}", quote(source), limit, i));
      }
    } else if (letter == ']' || letter == '}') {
      --depth;
    }
  }
}

}  // namespace

bool StrictSax::key(string_t& name) {
  if (!keys_.back().insert(name).second) {
    throw Error(Code::bad_file, fmt::format("{} holds the key {} twice in one object", quote(source_), quote(name)),
                "Remove one of the two");
  }
  return true;
}

bool StrictSax::parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
  std::string reason = error.what();
  if (const auto colon = reason.find(": "); colon != std::string::npos) reason.erase(0, colon + 2);
  throw Error(Code::bad_file,
              fmt::format("{} is not valid JSON at byte {}: {}", quote(source_), position, printable(reason, 200)));
}

void StrictSax::check_finite(double value, std::string_view written) const {
  if (std::isfinite(value)) return;
  throw Error(Code::bad_file,
              fmt::format("{} holds the number {}, which is beyond 64-bit floats", quote(source_), quote(written, 40)));
}

void parse_strictly(std::string_view text, std::string_view source, const JsonLimits& limits, StrictSax& builder) {
  if (text.size() > limits.bytes) {
    throw Error(Code::bad_file,
                fmt::format("{} has {} bytes of JSON; at most {} are read", quote(source), text.size(), limits.bytes));
  }
  check_depth(text, source, limits.depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    throw Error(Code::bad_file, fmt::format("{} is not valid JSON", quote(source)));
  }
}

}  // namespace duet::loaders
