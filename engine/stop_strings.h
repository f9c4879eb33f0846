#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace duet {

/// Empty when stop strings make sense; else the sentence that says which does not: an empty one, one that is not valid
/// UTF-8 (the text is, so it could only match inside a character), or more than kMostStopStrings.
std::string check_stop_strings(const std::vector<std::string>& stops);

constexpr std::size_t kMostStopStrings = 64;

/// Finds stop strings in a text that arrives in pieces and holds back what might be the beginning of one. The text ends
/// before the match that is complete first, whatever pieces it came in; of several complete at the same byte, before
/// the longest.
class StopStrings {
 public:
  /// `stops` passed check_stop_strings and outlives this object.
  explicit StopStrings(const std::vector<std::string>& stops);

  /// Appends to `released` the text that became harmless: whole characters if pieces are. Returns true when a stop
  /// string is complete: everything before it has then been released, and nothing more may be pushed.
  bool push(std::string_view piece, std::string& released);

  /// Appends what was held back; the object is then fresh.
  void finish(std::string& released);

 private:
  struct Matcher {  ///< Knuth, Morris, Pratt 1977.
    std::string_view stop;
    std::vector<std::size_t> border;  ///< border[i]: longest proper prefix of stop[0, i] that ends it too.
    std::size_t matched = 0;          ///< Longest beginning of `stop` that the text so far ends with.
  };

  static void advance(Matcher& matcher, char byte);

  std::vector<Matcher> matchers_;
  std::string held_;
};

}  // namespace duet
