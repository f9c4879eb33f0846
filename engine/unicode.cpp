// UTF-8, and Unicode properties through utf8proc.
#include "engine/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace duet {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// Length of the character that begins with `lead` (0 when none does) and the range its second byte must lie in.
struct LeadByte {
  std::size_t length;
  unsigned char low, high;
};

LeadByte classify(unsigned char lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};  // nothing above U+10FFFF
  return {0, 0, 0};
}

utf8proc_category_t category_of(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

}  // namespace

Utf8Char decode_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {((lead & 0x1F) << 6) | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F), 3};
  return {((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F), 4};
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

void Utf8Filter::push(unsigned char byte, std::string& out) {
  if (!pending_.empty()) {
    const LeadByte lead = classify(static_cast<unsigned char>(pending_[0]));
    const bool second = pending_.size() == 1;
    if (byte >= (second ? lead.low : 0x80) && byte <= (second ? lead.high : 0xBF)) {
      pending_.push_back(static_cast<char>(byte));
      if (pending_.size() == lead.length) {
        out += pending_;
        pending_.clear();
      }
      return;
    }
    out += kReplacement;
    pending_.clear();
  }
  const LeadByte lead = classify(byte);
  if (lead.length == 0) {
    out += kReplacement;
  } else if (lead.length == 1) {
    out.push_back(static_cast<char>(byte));
  } else {
    pending_.push_back(static_cast<char>(byte));
  }
}

void Utf8Filter::push(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) push(static_cast<unsigned char>(byte), out);
}

void Utf8Filter::finish(std::string& out) {
  if (!pending_.empty()) out += kReplacement;
  pending_.clear();
}

std::string valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8Filter filter;
  filter.push(bytes, out);
  filter.finish(out);
  return out;
}

bool is_white_space(char32_t code) {
  if (code < 0x80) return (code >= 0x09 && code <= 0x0D) || code == 0x20;
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_numeric(char32_t code) {
  const utf8proc_category_t category = category_of(code);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t code) {
  if (code < 0x80)
    return (code >= 33 && code <= 47) || (code >= 58 && code <= 64) || (code >= 91 && code <= 96) ||
           (code >= 123 && code <= 126);
  const utf8proc_category_t category = category_of(code);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t code) {
  const utf8proc_category_t category = category_of(code);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_word(char32_t code) {
  switch (category_of(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Alphabetic symbols (circled and squared letters), and the two joiners.
      return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
             (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) || code == 0x200C ||
             code == 0x200D;
  }
}

namespace {

/// Whether a character may join with what stands before it under any of the four forms: marks, medial and final Hangul
/// letters, and the half-width forms that decompose to such.
bool may_join_left(char32_t code) {
  return is_mark(code) || (code >= 0x1160 && code <= 0x11FF) || (code >= 0xD7B0 && code <= 0xD7FF) ||
         (code >= 0xFF9E && code <= 0xFFDC);
}

/// Characters that NFC leaves alone between themselves: Latin-1, unified ideographs, kana and Hangul syllables.
bool is_plain_nfc(char32_t code) {
  return code < 0x300 || (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3000 && code <= 0x3098) ||
         (code >= 0x309B && code <= 0x30FF) || (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0xFF01 && code <= 0xFF60);
}

/// Characters younger than the Unicode tables of the reference (tokenizers 0.23), which therefore neither decompose nor
/// combine there. Found by comparing every code point in several contexts; normalizing them "rightly" would give other
/// ids than those the models were trained on.
constexpr char32_t kYoung[][2] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool is_young(char32_t code) {
  const auto* range = std::upper_bound(std::begin(kYoung), std::end(kYoung), code,
                                       [](char32_t value, const char32_t(&row)[2]) { return value < row[0]; });
  return range != std::begin(kYoung) && code <= (*(range - 1))[1];
}

utf8proc_propval_t combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

/// Sorts marks and composes when the form says so; appends the result.
void append_ordered(UnicodeForm form, std::vector<utf8proc_int32_t>& codes, std::string& out) {
  // Canonical order. utf8proc's own sorting is quadratic in the length of a run of marks.
  for (auto begin = codes.begin(); begin != codes.end();) {
    begin = std::find_if(begin, codes.end(), [](utf8proc_int32_t code) { return combining_class(code) != 0; });
    const auto end = std::find_if(begin, codes.end(), [](utf8proc_int32_t code) { return combining_class(code) == 0; });
    std::stable_sort(begin, end,
                     [](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  if ((form == UnicodeForm::nfc || form == UnicodeForm::nfkc) && !codes.empty()) {
    const utf8proc_ssize_t size =
        utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    codes.resize(static_cast<std::size_t>(std::max<utf8proc_ssize_t>(size, 0)));
  }
  for (const utf8proc_int32_t code : codes) append_utf8(out, static_cast<char32_t>(code));
  codes.clear();
}

void append_normalized(UnicodeForm form, std::string_view text, std::string& out) {
  const bool compatibility = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> codes;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    at += c.size;
    if (is_young(c.code)) {
      append_ordered(form, codes, out);
      append_utf8(out, c.code);
      continue;
    }
    utf8proc_int32_t parts[32];  // the longest decomposition has 18 characters
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code), parts, 32, options, nullptr);
    if (count > 0 && count <= 32) codes.insert(codes.end(), parts, parts + count);
  }
  append_ordered(form, codes, out);
}

char flag_of(const ByteFlags& flags, std::size_t begin, std::size_t end) {
  return std::all_of(flags.begin() + static_cast<std::ptrdiff_t>(begin),
                     flags.begin() + static_cast<std::ptrdiff_t>(end), [](char flag) { return flag != 0; })
             ? '\1'
             : '\0';
}

}  // namespace

void normalize_unicode(UnicodeForm form, std::string& text, ByteFlags* flags) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return;
  std::string out;
  ByteFlags out_flags;
  out.reserve(text.size());
  const auto flush = [&](std::size_t begin, std::size_t end) {
    if (begin == end) return;
    append_normalized(form, std::string_view(text).substr(begin, end - begin), out);
    if (flags != nullptr) out_flags.append(out.size() - out_flags.size(), flag_of(*flags, begin, end));
  };
  std::size_t pending = 0;  // [pending, begin) waits for flush
  for (std::size_t begin = 0; begin < text.size();) {
    // A segment: one character and those that may join it. Segments are independent of each other.
    Utf8Char c = decode_utf8(text, begin);
    bool plain = form == UnicodeForm::nfc ? is_plain_nfc(c.code) : c.code < 0x80;
    std::size_t end = begin + c.size;
    while (end < text.size()) {
      c = decode_utf8(text, end);
      if (!may_join_left(c.code)) break;
      plain = false;
      end += c.size;
    }
    if (plain || flags != nullptr) {  // flags are per segment, so each goes alone
      flush(pending, begin);
      pending = begin;
    }
    if (plain) {
      out.append(text, begin, end - begin);
      if (flags != nullptr) out_flags.append(*flags, begin, end - begin);
      pending = end;
    }
    begin = end;
  }
  flush(pending, text.size());
  text = std::move(out);
  if (flags != nullptr) *flags = std::move(out_flags);
}

void lower_case(std::string& text, ByteFlags* flags) {
  std::string out;
  ByteFlags out_flags;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (c.code == 0x130) {
      out += "i\xCC\x87";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code))));
    }
    if (flags != nullptr) out_flags.append(out.size() - out_flags.size(), flag_of(*flags, at, at + c.size));
    at += c.size;
  }
  text = std::move(out);
  if (flags != nullptr) *flags = std::move(out_flags);
}

}  // namespace duet
