#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/regex.h"
#include "engine/tokenizer_spec.h"

namespace duet {

/// A chain of normalizers, compiled once.
class Normalizer {
 public:
  Normalizer() = default;
  Normalizer(std::vector<NormalizerStep> steps, std::string_view name);

  /// Rewrites `text` in place; `flags` (may be null) is kept in step.
  void apply(std::string& text, ByteFlags* flags) const;

 private:
  std::vector<NormalizerStep> steps_;
  std::vector<Regex> regexes_;  // one a step, empty where the step has none
};

/// Where a literal occurs, from left to right, not overlapping.
std::vector<ByteRange> find_literal(std::string_view text, std::string_view literal);

/// The 256 printable characters that byte-level tokenizers write bytes as: the character of a byte, and the byte of a
/// character (-1 for others).
char32_t byte_level_character(unsigned char byte);
int byte_level_byte(char32_t character);

}  // namespace duet
