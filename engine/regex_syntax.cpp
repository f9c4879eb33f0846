// From Oniguruma's syntax to PCRE2's.
#include <fmt/format.h>

#include <algorithm>

#include "duet/error.h"
#include "engine/regex.h"

namespace duet {

namespace {

// Contents of bracketed classes. White space is the property White_Space; words are alphabetic characters, marks,
// decimal digits and connectors.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
constexpr std::string_view kHex = "0-9A-Fa-f";

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        bracket();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        repeat();
      } else {
        out_.push_back(c);
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    throw Error(Code::unsupported,
                fmt::format("{}: the regular expression '{}' uses {} at character {}, which Duet does not support",
                            where_, pattern_, construct, at_ + 1),
                "Rewrite the expression without it");
  }

  bool ahead(std::string_view text) const { return pattern_.substr(at_).substr(0, text.size()) == text; }

  void copy(std::size_t size) {
    out_ += pattern_.substr(at_, size);
    at_ += size;
  }

  void put_class(std::string_view content, bool negated, bool inside) {
    if (inside) {
      out_ += content;
    } else {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", content);
    }
    at_ += 2;
  }

  void escape(bool inside) {
    if (at_ + 1 >= pattern_.size()) refuse("a lone backslash");
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':
        return put_class(kSpace, false, inside);
      case 'S':
        return put_class(inside ? kNotSpace : kSpace, !inside, inside);
      case 'w':
        return put_class(kWord, false, inside);
      case 'W':
        if (inside) refuse("\\W inside a class");
        return put_class(kWord, true, false);
      case 'h':
        return put_class(kHex, false, inside);
      case 'H':
        if (inside) refuse("\\H inside a class");
        return put_class(kHex, true, false);
      case 'd':
        return replace(R"(\p{Nd})");
      case 'D':
        return replace(R"(\P{Nd})");
      case 'v':
        return replace(R"(\x{b})");
      case 'b':
        if (inside) return replace(R"(\x{8})");
        return replace(fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord));
      case 'B':
        if (inside) refuse("\\B inside a class");
        return replace(fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWord));
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'x':
        return hexadecimal();
      case 'u':
        return unicode();
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        return copy(2);
      case 'A':
      case 'z':
      case 'Z':
      case 'R':
      case 'X':
        if (inside) refuse(fmt::format("\\{} inside a class", c));
        return copy(2);
      default:
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) refuse(fmt::format("\\{}", c));
        if (static_cast<unsigned char>(c) >= 0x80) {
          ++at_;  // an escaped letter of another script is itself
          return;
        }
        return copy(2);
    }
  }

  void replace(std::string_view text) {
    out_ += text;
    at_ += 2;
  }

  /// \p{L}, \p{^L}, \p{Han}: categories as they are, scripts by `sc:` (bare, PCRE2 takes the script's extensions).
  void property(bool negated) {
    const std::size_t close = pattern_.find('}', at_);
    if (pattern_.size() <= at_ + 3 || pattern_[at_ + 2] != '{' || close == std::string_view::npos)
      refuse("\\p without braces");
    std::string name(pattern_.substr(at_ + 3, close - at_ - 3));
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
    static constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
        {"letter", "L"}, {"mark", "M"},      {"number", "N"}, {"punctuation", "P"}, {"punct", "P"},
        {"symbol", "S"}, {"separator", "Z"}, {"other", "C"},  {"any", "Any"}};
    std::string lower = name;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    static constexpr std::string_view kCategories =
        " c cc cf cn co cs l l& lc ll lm lo lt lu m mc me mn n nd nl no p pc pd pe pf pi po ps s sc sk sm so z zl zp "
        "zs ";
    const auto* known =
        std::find_if(std::begin(kLongNames), std::end(kLongNames), [&](const auto& row) { return row.first == lower; });
    if (known != std::end(kLongNames)) {
      name = known->second;
    } else if (kCategories.find(" " + lower + " ") != std::string_view::npos && lower.find(' ') == std::string::npos) {
      name = lower;
      name[0] = static_cast<char>(name[0] - 32);
      if (name == "Lc") name = "L&";
    } else if (lower == "alpha" || lower == "alnum" || lower == "space" || lower == "word" || lower == "upper" ||
               lower == "lower" || lower == "digit" || lower == "cntrl" || lower == "graph" || lower == "print" ||
               lower == "blank" || lower == "xdigit") {
      refuse(fmt::format("the property {}", name));
    } else {
      name = "sc:" + name;
    }
    out_ += fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', name);
    at_ = close + 1;
  }

  static bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

  void put_code(std::string_view digits) {
    if (digits.empty() || digits.size() > 6 || !std::all_of(digits.begin(), digits.end(), is_hex))
      refuse("a broken character number");
    out_ += fmt::format("\\x{{{}}}", digits);
  }

  void hexadecimal() {
    if (at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{') {
      const std::size_t close = pattern_.find('}', at_);
      if (close == std::string_view::npos) refuse("\\x{ without its end");
      put_code(pattern_.substr(at_ + 3, close - at_ - 3));
      at_ = close + 1;
      return;
    }
    std::size_t end = at_ + 2;
    while (end < pattern_.size() && end < at_ + 4 && is_hex(pattern_[end])) ++end;
    const std::string_view digits = pattern_.substr(at_ + 2, end - at_ - 2);
    if (!digits.empty() && digits.size() == 2 && digits[0] >= '8') refuse("a byte above \\x7f");
    put_code(digits);
    at_ = end;
  }

  void unicode() {
    put_code(pattern_.substr(std::min(at_ + 2, pattern_.size()), 4));
    at_ = std::min(at_ + 6, pattern_.size());
  }

  void bracket() {
    copy(1);
    if (at_ < pattern_.size() && pattern_[at_] == '^') copy(1);
    if (at_ < pattern_.size() && pattern_[at_] == ']') refuse("a class that begins with ]");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '[') refuse("a class inside a class");
      if (ahead("&&")) refuse("an intersection of classes");
      if (pattern_[at_] == '\\') {
        escape(true);
      } else {
        copy(1);
      }
    }
    if (at_ >= pattern_.size()) refuse("a class without its end");
    copy(1);
  }

  void group() {
    if (ahead("(*")) refuse("a verb");
    if (!ahead("(?")) return copy(1);
    for (const std::string_view plain : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (ahead(plain)) return copy(plain.size());
    }
    // Options: i and x mean the same in both, Ruby's m is PCRE2's s.
    std::size_t end = at_ + 2;
    while (end < pattern_.size() &&
           (pattern_[end] == 'i' || pattern_[end] == 'm' || pattern_[end] == 'x' || pattern_[end] == '-'))
      ++end;
    if (end >= pattern_.size() || end == at_ + 2 || (pattern_[end] != ':' && pattern_[end] != ')'))
      refuse("this kind of group");
    for (; at_ <= end; ++at_) out_.push_back(pattern_[at_] == 'm' ? 's' : pattern_[at_]);
  }

  /// {2}, {2,}, {2,3}, {,3}; anything else is a literal brace. Behind an interval Ruby reads + as another repetition.
  void repeat() {
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && ((pattern_[end] >= '0' && pattern_[end] <= '9') || pattern_[end] == ',')) ++end;
    const std::string_view content = pattern_.substr(at_ + 1, end - at_ - 1);
    if (end >= pattern_.size() || pattern_[end] != '}' || content.empty() || content == "," ||
        std::count(content.begin(), content.end(), ',') > 1) {
      out_ += "\\{";
      ++at_;
      return;
    }
    out_ += content[0] == ',' ? fmt::format("{{0{}}}", content) : fmt::format("{{{}}}", content);
    at_ = end + 1;
    if (at_ < pattern_.size() && pattern_[at_] == '+') refuse("+ behind an interval");
  }

  std::string_view pattern_, where_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view oniguruma_pattern, std::string_view where) {
  return Translator(oniguruma_pattern, where).run();
}

}  // namespace duet
