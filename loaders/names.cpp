#include "loaders/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace duet::loaders {

namespace {

constexpr std::size_t kLongestComparedName = 512;

/// Edit distance, given up (limit returned) as soon as it cannot stay below `limit`.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::size_t apart = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (apart >= limit) return limit;
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    std::size_t best = row[0];
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
      best = std::min(best, row[j + 1]);
    }
    if (best >= limit) return limit;
  }
  return std::min(row.back(), limit);
}

}  // namespace

std::string printable(std::string_view text, std::size_t limit) {
  std::string safe;
  for (const char letter : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte < 0x20 || byte == 0x7F) {
      safe += fmt::format("\\x{:02x}", byte);
    } else {
      safe += letter;
    }
  }
  if (text.size() > limit) safe += "...";
  return safe;
}

std::string quote(std::string_view name, std::size_t limit) { return "'" + printable(name, limit) + "'"; }

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > kLongestComparedName) return {};
  std::string nearest;
  std::size_t best = name.size() / 2 + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate, best);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string listed(const std::vector<std::string>& names, std::size_t show) {
  std::string text;
  for (std::size_t i = 0; i < std::min(show, names.size()); ++i) {
    if (i > 0) text += (i + 1 == names.size()) ? " and " : ", ";
    text += quote(names[i]);
  }
  if (names.size() > show) text += fmt::format(" and {} more", names.size() - show);
  return text;
}

}  // namespace duet::loaders
