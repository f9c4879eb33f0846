#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace duet {

/// Half-open range of bytes.
struct ByteRange {
  std::size_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// A compiled regular expression; cheap to copy, safe to share between threads.
///
/// Tokenizer files are written for Oniguruma (Ruby syntax, Unicode). The pattern is rewritten for PCRE2 so that it
/// means the same: \s is the property White_Space, \w and \h are Oniguruma's, \p{Han} is the script and not its
/// extensions,
/// (?m) lets the dot match line ends. Only constructs with the same meaning in both are taken; others (nested or
/// intersected classes, back references, recursion, verbs) are refused by name.
class Regex {
 public:
  Regex() = default;

  /// `where` names file and component in messages. Throws Error(unsupported or bad_file).
  Regex(std::string_view pattern, std::string_view where);

  /// All matches in order, as Oniguruma's find_iter gives them: not overlapping, and no empty match right behind the
  /// previous one. `text` is valid UTF-8. Throws Error(unsupported) when the pattern needs too many steps on this text.
  std::vector<ByteRange> find_all(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

/// The pattern in PCRE2's syntax; exposed for tests.
std::string to_pcre2(std::string_view oniguruma_pattern, std::string_view where);

}  // namespace duet
