// Normalizers: text to text, before anything is split.
#include "engine/tokenizer_normalize.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "duet/error.h"

namespace duet {

namespace {

struct ByteTables {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, 0x144> byte{};
};

/// Printable Latin-1 bytes stand for themselves; the other 68 are numbered from U+0100 in order.
constexpr ByteTables make_byte_tables() {
  ByteTables tables;
  for (auto& byte : tables.byte) byte = -1;
  char32_t next = 0x100;
  for (unsigned i = 0; i < 256; ++i) {
    const bool printable = (i >= 0x21 && i <= 0x7E) || (i >= 0xA1 && i <= 0xAC) || i >= 0xAE;
    tables.character[i] = printable ? static_cast<char32_t>(i) : next++;
    tables.byte[tables.character[i]] = static_cast<std::int16_t>(i);
  }
  return tables;
}

constexpr ByteTables kByteTables = make_byte_tables();

/// A text under construction with its flags, made from one whose flags may be absent (null).
struct Output {
  std::string text;
  ByteFlags flags;
  const ByteFlags* from_flags;

  explicit Output(const ByteFlags* from) : from_flags(from) {}
  void add(std::string_view piece, char flag) {
    text += piece;
    if (from_flags != nullptr) flags.append(piece.size(), flag);
  }
  void copy(const std::string& from, std::size_t begin, std::size_t end) {
    text.append(from, begin, end - begin);
    if (from_flags != nullptr) flags.append(*from_flags, begin, end - begin);
  }
  void move_to(std::string& to, ByteFlags* to_flags) {
    to = std::move(text);
    if (to_flags != nullptr) *to_flags = std::move(flags);
  }
};

char all_of_range(const ByteFlags* flags, std::size_t begin, std::size_t end) {
  if (flags == nullptr || begin == end) return '\0';
  return std::all_of(flags->begin() + static_cast<std::ptrdiff_t>(begin),
                     flags->begin() + static_cast<std::ptrdiff_t>(end), [](char flag) { return flag != 0; })
             ? '\1'
             : '\0';
}

/// A chain of replacements in a hostile file could grow a text without end.
void check_growth(std::size_t size, std::size_t limit) {
  if (size > limit) {
    throw Error(Code::unsupported, fmt::format("The tokenizer's normalizers grow a text beyond {} bytes", limit),
                "Use a tokenizer that does not");
  }
}

void replace(const std::vector<ByteRange>& matches, std::string_view content, std::size_t limit, std::string& text,
             ByteFlags* flags) {
  if (matches.empty()) return;
  check_growth(text.size() + matches.size() * content.size(), limit);
  Output out(flags);
  std::size_t at = 0;
  for (const ByteRange& match : matches) {
    out.copy(text, at, match.begin);
    out.add(content, all_of_range(flags, match.begin, match.end));
    at = match.end;
  }
  out.copy(text, at, text.size());
  out.move_to(text, flags);
}

void strip(bool left, bool right, std::string& text, ByteFlags* flags) {
  std::size_t begin = 0;
  if (left) {
    while (begin < text.size()) {
      const Utf8Char c = decode_utf8(text, begin);
      if (!is_white_space(c.code)) break;
      begin += c.size;
    }
  }
  std::size_t end = text.size();
  while (right && end > begin) {
    std::size_t at = end - 1;
    while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_white_space(decode_utf8(text, at).code)) break;
    end = at;
  }
  text = text.substr(begin, end - begin);
  if (flags != nullptr) *flags = flags->substr(begin, end - begin);
}

template <typename Rewrite>
void for_each_character(std::string& text, ByteFlags* flags, const Rewrite& rewrite) {
  Output out(flags);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    rewrite(c.code, std::string_view(text).substr(at, c.size), all_of_range(flags, at, at + c.size), out);
    at += c.size;
  }
  out.move_to(text, flags);
}

}  // namespace

char32_t byte_level_character(unsigned char byte) { return kByteTables.character[byte]; }

int byte_level_byte(char32_t character) {
  return character < kByteTables.byte.size() ? kByteTables.byte[character] : -1;
}

std::vector<ByteRange> find_literal(std::string_view text, std::string_view literal) {
  std::vector<ByteRange> matches;
  if (literal.empty()) return matches;
  for (std::size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    matches.push_back({at, at + literal.size()});
  }
  return matches;
}

Normalizer::Normalizer(std::vector<NormalizerStep> steps, std::string_view name) : steps_(std::move(steps)) {
  for (const NormalizerStep& step : steps_) {
    const bool has_regex = step.kind == NormalizerStep::Kind::replace && step.pattern.is_regex;
    regexes_.push_back(has_regex ? Regex(step.pattern.text, fmt::format("{}: normalizer Replace", name)) : Regex());
  }
}

void Normalizer::apply(std::string& text, ByteFlags* flags) const {
  const std::size_t limit = (std::size_t{1} << 20) + 64 * text.size();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const NormalizerStep& step = steps_[i];
    switch (step.kind) {
      case NormalizerStep::Kind::unicode:
        normalize_unicode(step.form, text, flags);
        break;
      case NormalizerStep::Kind::lower_case:
        lower_case(text, flags);
        break;
      case NormalizerStep::Kind::prepend:
        if (text.empty()) break;
        check_growth(text.size() + step.content.size(), limit);
        if (flags != nullptr) flags->insert(0, step.content.size(), flags->front());
        text.insert(0, step.content);
        break;
      case NormalizerStep::Kind::replace:
        replace(step.pattern.is_regex ? regexes_[i].find_all(text) : find_literal(text, step.pattern.text),
                step.content, limit, text, flags);
        break;
      case NormalizerStep::Kind::strip:
        strip(step.left, step.right, text, flags);
        break;
      case NormalizerStep::Kind::strip_accents:
        for_each_character(text, flags, [](char32_t code, std::string_view bytes, char flag, Output& out) {
          if (!is_mark(code)) out.add(bytes, flag);
        });
        break;
      case NormalizerStep::Kind::byte_level:
        for_each_character(text, flags, [](char32_t, std::string_view bytes, char flag, Output& out) {
          std::string mapped;
          for (const char byte : bytes) append_utf8(mapped, byte_level_character(static_cast<unsigned char>(byte)));
          out.add(mapped, flag);
        });
        break;
    }
  }
}

}  // namespace duet
