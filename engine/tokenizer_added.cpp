// Added tokens: found by a trie, with their flags.
#include "engine/tokenizer_added.h"

#include <algorithm>
#include <utility>

namespace duet {

namespace {

bool word_before(std::string_view text, std::size_t at) {
  if (at == 0) return false;
  std::size_t begin = at - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return is_word(decode_utf8(text, begin).code);
}

bool word_at(std::string_view text, std::size_t at) { return at < text.size() && is_word(decode_utf8(text, at).code); }

/// Begin of the white space that ends at `at`, not before `limit`.
std::size_t space_begin(std::string_view text, std::size_t at, std::size_t limit) {
  while (at > limit) {
    std::size_t begin = at - 1;
    while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (begin < limit || !is_white_space(decode_utf8(text, begin).code)) break;
    at = begin;
  }
  return at;
}

std::size_t space_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Utf8Char c = decode_utf8(text, at);
    if (!is_white_space(c.code)) break;
    at += c.size;
  }
  return at;
}

}  // namespace

bool AddedTokenMatcher::Permission::covers(std::size_t begin, std::size_t end) const {
  if (flags == nullptr) return all;
  return std::all_of(flags->begin() + static_cast<std::ptrdiff_t>(begin),
                     flags->begin() + static_cast<std::ptrdiff_t>(end), [](char flag) { return flag != 0; });
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<Entry> entries)
    : entries_(std::move(entries)), nodes_(1), first_bytes_(256, false) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t node = 0;
    for (const char c : entries_[i].content) {
      const auto byte = static_cast<unsigned char>(c);
      auto& next = nodes_[node].next;
      const auto at = std::lower_bound(next.begin(), next.end(), byte,
                                       [](const auto& edge, unsigned char b) { return edge.first < b; });
      if (at != next.end() && at->first == byte) {
        node = static_cast<std::size_t>(at->second);
      } else {
        const std::size_t made = nodes_.size();
        next.insert(at, {byte, static_cast<std::int32_t>(made)});
        nodes_.emplace_back();
        node = made;
      }
    }
    if (node == 0) continue;
    if (nodes_[node].entry < 0) nodes_[node].entry = static_cast<std::int32_t>(i);
    first_bytes_[static_cast<unsigned char>(entries_[i].content[0])] = true;
  }
}

/// The longest entry that stands at `at` and is allowed there; -1 when none does.
std::int32_t AddedTokenMatcher::longest_at(std::string_view text, std::size_t at, const Permission& permission) const {
  std::int32_t best = -1;
  std::size_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto& next = nodes_[node].next;
    const auto edge =
        std::lower_bound(next.begin(), next.end(), byte, [](const auto& e, unsigned char b) { return e.first < b; });
    if (edge == next.end() || edge->first != byte) break;
    node = static_cast<std::size_t>(edge->second);
    const std::int32_t entry = nodes_[node].entry;
    if (entry < 0) continue;
    // In a text of mixed origin a control token that is not allowed gives way to a shorter one that is.
    const bool control = entries_[static_cast<std::size_t>(entry)].control;
    if (permission.flags == nullptr || !control || permission.covers(at, i + 1)) best = entry;
  }
  return best;
}

std::vector<AddedTokenMatcher::Stretch> AddedTokenMatcher::split(std::string_view text,
                                                                 const Permission& permission) const {
  std::vector<Stretch> stretches;
  std::size_t done = 0;  // everything before is in a stretch
  ByteRange spaces;      // white space found behind a token, so that no run is walked twice
  for (std::size_t at = 0; at < text.size() && !entries_.empty();) {
    const std::int32_t found =
        first_bytes_[static_cast<unsigned char>(text[at])] ? longest_at(text, at, permission) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    const Entry& entry = entries_[static_cast<std::size_t>(found)];
    std::size_t begin = at, end = at + entry.content.size();
    at = end;
    if (entry.control && !permission.covers(begin, end)) continue;  // its spelling is text, as a whole
    if (entry.single_word && (word_before(text, begin) || word_at(text, end))) continue;
    if (entry.lstrip && begin > done) begin = space_begin(text, begin, done);
    if (entry.rstrip) {
      if (end < spaces.begin || end >= spaces.end) spaces = {end, space_end(text, end)};
      end = spaces.end;
    }
    if (done < begin) stretches.push_back({{done, begin}, -1});
    stretches.push_back({{begin, end}, entry.id});
    done = end;
  }
  if (done < text.size()) stretches.push_back({{done, text.size()}, -1});
  return stretches;
}

}  // namespace duet
