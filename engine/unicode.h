#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// UTF-8 and the few Unicode properties that tokenizers ask about. Texts are valid UTF-8 unless a function says
/// otherwise.
namespace duet {

struct Utf8Char {
  char32_t code = 0;
  std::size_t size = 0;  ///< Bytes it takes.
};

/// The character that begins at byte `at`; `text` is valid UTF-8 and `at` lies inside it on a border.
Utf8Char decode_utf8(std::string_view text, std::size_t at);

void append_utf8(std::string& text, char32_t code);

/// Any bytes to valid UTF-8: every longest broken part becomes one U+FFFD.
std::string valid_utf8(std::string_view bytes);

/// The same for bytes that arrive in pieces: gives a character out when its last byte is there.
class Utf8Filter {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);  ///< A character that stays incomplete becomes one U+FFFD.

 private:
  void push(unsigned char byte, std::string& out);

  std::string pending_;  // the beginning of a character, at most three bytes
};

bool is_white_space(char32_t code);  ///< Property White_Space.
bool is_numeric(char32_t code);      ///< Categories Nd, Nl, No.
bool is_punctuation(char32_t code);  ///< ASCII punctuation and the categories P*.
bool is_mark(char32_t code);         ///< Categories Mn, Mc, Me.
bool is_word(char32_t code);         ///< \w: alphabetic, marks, decimal digits, connectors, joiners.

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

/// Flags that travel with a text, one a byte, 1 or 0: "this byte was written by a template" (engine/chat_template.h).
/// A byte made from several bytes carries the flag only when all of them did.
using ByteFlags = std::string;

/// Normalizes in place; time is n log n whatever the text. `flags` (may be null) is kept in step.
void normalize_unicode(UnicodeForm form, std::string& text, ByteFlags* flags);

/// Lower case, character by character (a final sigma is not special; U+0130 becomes two characters).
void lower_case(std::string& text, ByteFlags* flags);

}  // namespace duet
