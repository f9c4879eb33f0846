#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/regex.h"
#include "engine/tokenizer_spec.h"

namespace duet {

/// A text cut into pieces, each of which becomes tokens on its own.
struct SplitText {
  std::string text;
  std::vector<ByteRange> pieces;  ///< In order, not empty, not overlapping; between them may lie removed bytes.
  bool at_start = false;          ///< The text begins where the whole input begins.
};

/// A chain of pre-tokenizers, compiled once.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  PreTokenizer(std::vector<PreTokenizerStep> steps, std::string_view name);

  SplitText apply(std::string text, bool at_start) const;

 private:
  std::vector<PreTokenizerStep> steps_;
  std::vector<Regex> regexes_;  // one a step, empty where the step has none
};

}  // namespace duet
