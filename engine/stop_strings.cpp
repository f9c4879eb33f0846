// Stop strings over token borders.
#include "engine/stop_strings.h"

#include <fmt/format.h>

#include <algorithm>

namespace duet {

namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xC0U) == 0x80U; }

/// Length of the well-formed character at `text[at]` (RFC 3629), 0 when there is none.
std::size_t character_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if (!is_continuation(static_cast<unsigned char>(byte(i)))) return 0;
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool out_of_range = (lead == 0xED && byte(1) > 0x9F) || (lead == 0xF4 && byte(1) > 0x8F);
  return overlong || out_of_range ? 0 : length;
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

}  // namespace

std::string check_stop_strings(const std::vector<std::string>& stops) {
  if (stops.size() > kMostStopStrings)
    return fmt::format("{} stop strings were given; at most {} are taken", stops.size(), kMostStopStrings);
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) return fmt::format("Stop string {} is empty and would match everywhere", i);
    if (!is_utf8(stops[i])) return fmt::format("Stop string {} is not valid UTF-8", i);
  }
  return {};
}

StopStrings::StopStrings(const std::vector<std::string>& stops) {
  matchers_.reserve(stops.size());
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    Matcher matcher{.stop = stop, .border = std::vector<std::size_t>(stop.size(), 0)};
    for (std::size_t i = 1, length = 0; i < stop.size(); ++i) {
      while (length > 0 && stop[i] != stop[length]) length = matcher.border[length - 1];
      if (stop[i] == stop[length]) ++length;
      matcher.border[i] = length;
    }
    longest = std::max(longest, stop.size());
    matchers_.push_back(std::move(matcher));
  }
  held_.reserve(2 * longest + 64);
}

void StopStrings::advance(Matcher& matcher, char byte) {
  while (matcher.matched > 0 && matcher.stop[matcher.matched] != byte)
    matcher.matched = matcher.border[matcher.matched - 1];
  if (matcher.stop[matcher.matched] == byte) ++matcher.matched;
}

bool StopStrings::push(std::string_view piece, std::string& released) {
  if (matchers_.empty()) {
    released += piece;
    return false;
  }
  for (const char byte : piece) {
    held_ += byte;
    std::size_t longest_match = 0;
    for (Matcher& matcher : matchers_) {
      advance(matcher, byte);
      if (matcher.matched == matcher.stop.size()) longest_match = std::max(longest_match, matcher.matched);
    }
    if (longest_match > 0) {
      released.append(held_, 0, held_.size() - longest_match);
      held_.clear();
      return true;
    }
  }
  std::size_t keep = 0;
  for (const Matcher& matcher : matchers_) keep = std::max(keep, matcher.matched);
  released.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopStrings::finish(std::string& released) {
  released += held_;
  held_.clear();
  for (Matcher& matcher : matchers_) matcher.matched = 0;
}

}  // namespace duet
