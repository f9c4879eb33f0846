// Pre-tokenizers: text to pieces.
#include "engine/tokenizer_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/tokenizer_normalize.h"

namespace duet {

namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Stretch {
  ByteRange range;
  bool is_match = false;
};

/// Matches and what lies between them, covering the piece.
std::vector<Stretch> cover(const std::vector<ByteRange>& matches, std::size_t size) {
  std::vector<Stretch> stretches;
  stretches.reserve(matches.size() + 1);
  std::size_t at = 0;
  for (const ByteRange& match : matches) {
    if (at != match.begin) stretches.push_back({{at, match.begin}, false});
    stretches.push_back({match, true});
    at = match.end;
  }
  if (at != size) stretches.push_back({{at, size}, false});
  return stretches;
}

/// One match a character that `wanted` takes.
template <typename Wanted>
std::vector<ByteRange> match_characters(std::string_view text, const Wanted& wanted) {
  std::vector<ByteRange> matches;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (wanted(c.code)) matches.push_back({at, at + c.size});
    at += c.size;
  }
  return matches;
}

/// Longest runs of word characters, and of characters that are neither word nor white space.
std::vector<ByteRange> match_words(std::string_view text) {
  std::vector<ByteRange> matches;
  int previous = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const int kind = is_word(c.code) ? 1 : is_white_space(c.code) ? 0 : 2;
    if (kind != 0 && kind == previous) {
      matches.back().end = at + c.size;
    } else if (kind != 0) {
      matches.push_back({at, at + c.size});
    }
    previous = kind;
    at += c.size;
  }
  return matches;
}

/// Appends the pieces that `stretches` of the piece at `offset` become.
void apply_behavior(const std::vector<Stretch>& stretches, SplitBehavior behavior, std::size_t offset,
                    std::vector<ByteRange>& pieces) {
  std::vector<ByteRange> made;
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::removed:
      for (const Stretch& s : stretches) {
        if (!s.is_match) made.push_back(s.range);
      }
      break;
    case SplitBehavior::isolated:
      for (const Stretch& s : stretches) made.push_back(s.range);
      break;
    case SplitBehavior::contiguous:
    case SplitBehavior::merged_with_previous:
      for (const Stretch& s : stretches) {
        const bool joins = behavior == SplitBehavior::contiguous ? s.is_match == previous : s.is_match && !previous;
        if (joins && !made.empty()) {
          made.back().end = s.range.end;
        } else {
          made.push_back(s.range);
        }
        previous = s.is_match;
      }
      break;
    case SplitBehavior::merged_with_next:
      for (auto s = stretches.rbegin(); s != stretches.rend(); ++s) {
        if (s->is_match && !previous && !made.empty()) {
          made.back().begin = s->range.begin;
        } else {
          made.push_back(s->range);
        }
        previous = s->is_match;
      }
      std::reverse(made.begin(), made.end());
      break;
  }
  for (const ByteRange& range : made) {
    if (range.begin != range.end) pieces.push_back({offset + range.begin, offset + range.end});
  }
}

/// Cuts every piece with `find`, which gives the matches in a piece.
template <typename Find>
void split(SplitText& split_text, SplitBehavior behavior, bool invert, const Find& find) {
  std::vector<ByteRange> pieces;
  for (const ByteRange& piece : split_text.pieces) {
    const std::string_view text = std::string_view(split_text.text).substr(piece.begin, piece.end - piece.begin);
    std::vector<Stretch> stretches = cover(find(text), text.size());
    if (invert) {
      for (Stretch& stretch : stretches) stretch.is_match = !stretch.is_match;
    }
    apply_behavior(stretches, behavior, piece.begin, pieces);
  }
  split_text.pieces = std::move(pieces);
}

/// Rewrites every piece; `rewrite` appends the new text of a piece, told whether the piece begins the whole input.
template <typename Rewrite>
void rewrite_pieces(SplitText& split_text, const Rewrite& rewrite) {
  SplitText out;
  out.text.reserve(split_text.text.size() + 16);
  out.at_start = split_text.at_start && !split_text.pieces.empty() && split_text.pieces[0].begin == 0;
  for (const ByteRange& piece : split_text.pieces) {
    const std::size_t begin = out.text.size();
    rewrite(std::string_view(split_text.text).substr(piece.begin, piece.end - piece.begin),
            out.at_start && piece.begin == 0, out.text);
    if (out.text.size() > begin) out.pieces.push_back({begin, out.text.size()});
  }
  split_text = std::move(out);
}

void byte_level(const PreTokenizerStep& step, const Regex& regex, SplitText& split_text) {
  if (step.add_prefix_space) {
    rewrite_pieces(split_text, [](std::string_view piece, bool, std::string& out) {
      if (piece[0] != ' ') out.push_back(' ');
      out += piece;
    });
  }
  if (step.use_regex) {
    split(split_text, SplitBehavior::isolated, false, [&](std::string_view text) { return regex.find_all(text); });
  }
  rewrite_pieces(split_text, [](std::string_view piece, bool, std::string& out) {
    for (const char byte : piece) append_utf8(out, byte_level_character(static_cast<unsigned char>(byte)));
  });
}

void metaspace(const PreTokenizerStep& step, SplitText& split_text) {
  std::string replacement;
  append_utf8(replacement, step.replacement);
  rewrite_pieces(split_text, [&](std::string_view piece, bool starts_input, std::string& out) {
    const bool begins_with_it = piece[0] == ' ' || piece.substr(0, replacement.size()) == replacement;
    const bool wanted =
        step.prepend_scheme == PrependScheme::always || (step.prepend_scheme == PrependScheme::first && starts_input);
    if (wanted && !begins_with_it) out += replacement;
    for (const char c : piece) {
      if (c == ' ') {
        out += replacement;
      } else {
        out.push_back(c);
      }
    }
  });
  if (step.split) {
    split(split_text, SplitBehavior::merged_with_next, false,
          [&](std::string_view text) { return find_literal(text, replacement); });
  }
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> steps, std::string_view name) : steps_(std::move(steps)) {
  for (const PreTokenizerStep& step : steps_) {
    if (step.kind == PreTokenizerStep::Kind::split && step.pattern.is_regex) {
      regexes_.emplace_back(step.pattern.text, fmt::format("{}: pre-tokenizer Split", name));
    } else if (step.kind == PreTokenizerStep::Kind::byte_level && step.use_regex) {
      regexes_.emplace_back(kGpt2Pattern, fmt::format("{}: pre-tokenizer ByteLevel", name));
    } else {
      regexes_.emplace_back();
    }
  }
}

SplitText PreTokenizer::apply(std::string text, bool at_start) const {
  SplitText result;
  if (!text.empty()) result.pieces.push_back({0, text.size()});
  result.text = std::move(text);
  result.at_start = at_start;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const PreTokenizerStep& step = steps_[i];
    switch (step.kind) {
      case PreTokenizerStep::Kind::split:
        split(result, step.behavior, step.invert, [&](std::string_view piece) {
          return step.pattern.is_regex ? regexes_[i].find_all(piece) : find_literal(piece, step.pattern.text);
        });
        break;
      case PreTokenizerStep::Kind::byte_level:
        byte_level(step, regexes_[i], result);
        break;
      case PreTokenizerStep::Kind::metaspace:
        metaspace(step, result);
        break;
      case PreTokenizerStep::Kind::digits:
        split(result, step.individual_digits ? SplitBehavior::isolated : SplitBehavior::contiguous, false,
              [](std::string_view piece) { return match_characters(piece, is_numeric); });
        break;
      case PreTokenizerStep::Kind::punctuation:
        split(result, step.behavior, false,
              [](std::string_view piece) { return match_characters(piece, is_punctuation); });
        break;
      case PreTokenizerStep::Kind::whitespace:
        split(result, SplitBehavior::removed, true, match_words);
        break;
      case PreTokenizerStep::Kind::whitespace_split:
        split(result, SplitBehavior::removed, false,
              [](std::string_view piece) { return match_characters(piece, is_white_space); });
        break;
    }
  }
  return result;
}

}  // namespace duet
