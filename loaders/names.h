#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Names that came from files, in messages of ours.
namespace duet::loaders {

/// `text` fit for one line of a message: control characters as \xNN, cut after `limit` bytes with "...".
std::string printable(std::string_view text, std::size_t limit = 160);

/// The same in single quotes.
std::string quote(std::string_view name, std::size_t limit = 160);

/// The candidate with the fewest insertions, deletions and substitutions from `name`; empty when there are none or the
/// best shares less than half of its letters. Ties: the earliest.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// "'a', 'b' and 3 more".
std::string listed(const std::vector<std::string>& names, std::size_t show = 4);

}  // namespace duet::loaders
