#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/regex.h"
#include "engine/tokenizer_spec.h"

namespace duet {

/// Finds added tokens in a text: from left to right, at each place the longest.
class AddedTokenMatcher {
 public:
  struct Entry {
    std::string content;  ///< What to look for; not empty.
    std::int32_t id = 0;
    bool single_word = false, lstrip = false, rstrip = false;
    bool control = false;  ///< Found in template bytes only.
  };
  /// A stretch of the text: an added token (`id` >= 0, with the white space it eats) or the text between (`id` -1).
  /// Stretches cover the text; an eaten space belongs to the token alone.
  struct Stretch {
    ByteRange range;
    std::int32_t id = -1;
  };
  /// Which bytes may give control tokens: all (`flags` null, `all` true), none, or those with flag 1.
  struct Permission {
    const ByteFlags* flags = nullptr;
    bool all = true;
    bool covers(std::size_t begin, std::size_t end) const;
  };

  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<Entry> entries);

  bool empty() const { return entries_.empty(); }
  std::vector<Stretch> split(std::string_view text, const Permission& permission) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::int32_t>> next;  // sorted by byte
    std::int32_t entry = -1;
  };
  std::int32_t longest_at(std::string_view text, std::size_t at, const Permission& permission) const;

  std::vector<Entry> entries_;
  std::vector<Node> nodes_;
  std::vector<bool> first_bytes_;  // by byte: some token begins with it
};

}  // namespace duet
