#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/regex.h"
#include "engine/tokenizer_spec.h"

namespace duet {

/// A decoder chain, checked and compiled once.
///
/// The chain works on tokens until a step joins them (ByteLevel, Fuse); behind that there is one long text. Steps that
/// would have to see the whole text before they give any of it (a regular expression behind Fuse) are refused.
struct DecoderChain {
  struct Step {
    DecoderStep spec;
    Regex regex;          // replace with a regular expression
    bool joined = false;  // tokens were joined before this step
  };
  std::vector<Step> steps;

  /// `name` is the file, for messages.
  static std::shared_ptr<const DecoderChain> compile(std::vector<DecoderStep> steps, std::string_view name);
};

/// One decoding in progress.
class DecodeStream {
 public:
  explicit DecodeStream(std::shared_ptr<const DecoderChain> chain);

  void push(std::string_view token, std::string& out);
  void finish(std::string& out);  ///< Gives what was held back and starts afresh.

 private:
  struct State {
    Utf8Filter filter;         // byte_level, byte_fallback
    bool first = true;         // metaspace: no token seen yet
    std::size_t to_strip = 0;  // strip on joined text: characters that may still go at the start
    std::string held;          // replace and strip on joined text: an end that may still change
  };
  void step(std::size_t index, std::string_view text, std::string& out);
  void finish_step(std::size_t index, std::string& out);
  void restart();

  std::shared_ptr<const DecoderChain> chain_;
  std::vector<State> states_;
  bool any_token_ = false;
};

}  // namespace duet
