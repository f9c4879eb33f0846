#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace duet::loaders {

/// A regular expression of a PEFT config, with the meaning Python's `re` gives it to names of modules, and a bound on
/// the work one match may take. One thread at a time.
class Pattern {
 public:
  /// `where` names the key the expression came from. Throws Error(bad_file) when it does not compile.
  Pattern(std::string_view expression, std::string where);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  bool matches_start(std::string_view subject) const;  ///< re.match
  bool matches_whole(std::string_view subject) const;  ///< re.fullmatch
  /// re.match, then the text of the group `idx`; nothing when there is no match.
  std::optional<std::string> group_idx(std::string_view subject) const;

 private:
  struct Compiled;
  int run(std::string_view subject, unsigned options) const;

  std::unique_ptr<Compiled> compiled_;
  std::string where_;
};

}  // namespace duet::loaders
