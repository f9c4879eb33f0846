#include "duet/error.h"

#include <array>
#include <utility>

namespace duet {

std::string_view name_of(Code code) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "ok",         "invalid_argument", "not_found", "bad_file", "unsupported", "no_room",
      "non_finite", "cancelled",        "deadline",  "device",   "internal"};
  const auto index = static_cast<std::size_t>(code);
  return index < kNames.size() ? kNames[index] : "unknown";
}

Error::Error(Code code, std::string what, std::string_view fix) : code_(code), text_(std::move(what)) {
  text_ += '.';
  if (!fix.empty()) {
    text_ += ' ';
    text_ += fix;
    text_ += '.';
  }
}

}  // namespace duet
