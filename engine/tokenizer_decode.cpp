// Decoder chains, one token at a time.
#include "engine/tokenizer_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "duet/error.h"
#include "engine/tokenizer_normalize.h"

namespace duet {

namespace {

using Kind = DecoderStep::Kind;

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::byte_level:
      return "ByteLevel";
    case Kind::byte_fallback:
      return "ByteFallback";
    case Kind::fuse:
      return "Fuse";
    case Kind::replace:
      return "Replace";
    case Kind::strip:
      return "Strip";
    case Kind::metaspace:
      return "Metaspace";
  }
  return "";
}

/// The byte of a token <0xE5>, or -1.
int byte_of(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

std::string replaced(std::string_view text, const std::vector<ByteRange>& matches, std::string_view content) {
  constexpr std::size_t kMaxGrowth = std::size_t{16} << 20;
  if (!content.empty() && matches.size() > kMaxGrowth / content.size()) {
    throw Error(Code::unsupported,
                fmt::format("The tokenizer's decoder Replace grows one token by more than {} bytes", kMaxGrowth),
                "Use a tokenizer that does not");
  }
  std::string out;
  std::size_t at = 0;
  for (const ByteRange& match : matches) {
    out += text.substr(at, match.begin - at);
    out += content;
    at = match.end;
  }
  out += text.substr(at);
  return out;
}

/// Bytes that `count` leading (or trailing) characters `character` take, at most `limit` of them.
std::size_t leading(std::string_view text, std::string_view character, std::size_t limit) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < limit && text.substr(at, character.size()) == character; ++i) at += character.size();
  return at;
}

std::size_t trailing(std::string_view text, std::string_view character, std::size_t limit) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < limit && text.size() >= size + character.size() &&
                          text.substr(text.size() - size - character.size(), character.size()) == character;
       ++i) {
    size += character.size();
  }
  return size;
}

/// How much of the end of `text` may be the beginning of `literal`.
std::size_t partial_match(std::string_view text, std::string_view literal) {
  for (std::size_t size = std::min(text.size(), literal.size() - 1); size > 0; --size) {
    if (text.substr(text.size() - size) == literal.substr(0, size)) return size;
  }
  return 0;
}

std::string utf8_of(char32_t code) {
  std::string text;
  append_utf8(text, code);
  return text;
}

/// A token of a byte-level vocabulary as bytes; one that holds another character is its own text.
void append_bytes(std::string_view token, std::string& bytes) {
  const std::size_t begin = bytes.size();
  for (std::size_t at = 0; at < token.size();) {
    const Utf8Char c = decode_utf8(token, at);
    const int byte = byte_level_byte(c.code);
    if (byte < 0) {
      bytes.resize(begin);
      bytes += token;
      return;
    }
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    at += c.size;
  }
}

}  // namespace

std::shared_ptr<const DecoderChain> DecoderChain::compile(std::vector<DecoderStep> specs, std::string_view name) {
  auto chain = std::make_shared<DecoderChain>();
  bool joined = false, behind_bytes = false;
  for (DecoderStep& spec : specs) {
    const bool needs_whole = spec.kind == Kind::metaspace || spec.kind == Kind::byte_fallback ||
                             (spec.kind == Kind::replace && spec.pattern.is_regex);
    if ((joined || behind_bytes) && needs_whole) {
      throw Error(
          Code::unsupported,
          fmt::format("{}: decoder {} stands behind a step that joins tokens{}", name, name_of(spec.kind),
                      spec.kind == Kind::replace ? ", with a regular expression" : ""),
          "Text cannot be streamed through this order of decoders; put it before ByteFallback, Fuse or ByteLevel");
    }
    // A run of byte tokens comes out in several pieces, so what follows may not look at single tokens either.
    Step step{std::move(spec), Regex(), joined || behind_bytes};
    if (step.spec.kind == Kind::replace) {
      if (step.spec.pattern.is_regex) {
        step.regex = Regex(step.spec.pattern.text, fmt::format("{}: decoder Replace", name));
      } else if (step.spec.pattern.text.empty()) {
        throw Error(Code::bad_file, fmt::format("{}: decoder Replace has an empty pattern", name), "Remove it");
      }
    }
    if (step.spec.kind == Kind::strip && behind_bytes && !joined) {
      throw Error(Code::unsupported, fmt::format("{}: decoder Strip stands between ByteFallback and Fuse", name),
                  "Put it behind Fuse");
    }
    joined = joined || step.spec.kind == Kind::fuse || step.spec.kind == Kind::byte_level;
    behind_bytes = behind_bytes || step.spec.kind == Kind::byte_fallback;
    chain->steps.push_back(std::move(step));
  }
  return chain;
}

DecodeStream::DecodeStream(std::shared_ptr<const DecoderChain> chain) : chain_(std::move(chain)) { restart(); }

void DecodeStream::restart() {
  states_.assign(chain_->steps.size(), State());
  for (std::size_t i = 0; i < states_.size(); ++i) states_[i].to_strip = chain_->steps[i].spec.start;
  any_token_ = false;
}

void DecodeStream::push(std::string_view token, std::string& out) {
  if (chain_->steps.empty() && any_token_) out.push_back(' ');  // without decoders tokens are joined by spaces
  any_token_ = true;
  step(0, token, out);
}

void DecodeStream::step(std::size_t index, std::string_view text, std::string& out) {
  if (index == chain_->steps.size()) {
    out += text;
    return;
  }
  const DecoderChain::Step& step_of_chain = chain_->steps[index];
  const DecoderStep& spec = step_of_chain.spec;
  State& state = states_[index];
  std::string made;
  switch (spec.kind) {
    case Kind::fuse:
      return step(index + 1, text, out);
    case Kind::byte_level: {
      std::string bytes;
      append_bytes(text, bytes);
      state.filter.push(bytes, made);
      break;
    }
    case Kind::byte_fallback: {
      const int byte = byte_of(text);
      if (byte >= 0) {
        const char c = static_cast<char>(static_cast<unsigned char>(byte));
        state.filter.push({&c, 1}, made);
        if (made.empty()) return;
      } else {
        state.filter.finish(made);
        if (!made.empty()) step(index + 1, made, out);
        made = text;
      }
      break;
    }
    case Kind::replace: {
      if (!step_of_chain.joined) {
        made = replaced(
            text, spec.pattern.is_regex ? step_of_chain.regex.find_all(text) : find_literal(text, spec.pattern.text),
            spec.content);
        break;
      }
      state.held += text;
      const std::vector<ByteRange> matches = find_literal(state.held, spec.pattern.text);
      const std::size_t certain = matches.empty() ? 0 : matches.back().end;
      const std::size_t keep = partial_match(std::string_view(state.held).substr(certain), spec.pattern.text);
      made = replaced(std::string_view(state.held).substr(0, state.held.size() - keep), matches, spec.content);
      state.held.erase(0, state.held.size() - keep);
      break;
    }
    case Kind::strip: {
      const std::string character = utf8_of(spec.character);
      if (!step_of_chain.joined) {
        const std::size_t begin = leading(text, character, spec.start);
        made = text.substr(begin);
        made.resize(made.size() - trailing(made, character, spec.stop));
        break;
      }
      const std::size_t begin = leading(text, character, state.to_strip);
      state.to_strip = begin == text.size() ? state.to_strip - begin / character.size() : 0;
      made = std::move(state.held);
      made += text.substr(begin);
      const std::size_t keep = trailing(made, character, spec.stop);
      state.held = made.substr(made.size() - keep);
      made.resize(made.size() - keep);
      break;
    }
    case Kind::metaspace: {
      for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = decode_utf8(text, at);
        if (c.code != spec.character) {
          made += text.substr(at, c.size);
        } else if (!state.first || spec.prepend_scheme == PrependScheme::never) {
          made.push_back(' ');
        }
        at += c.size;
      }
      state.first = false;
      break;
    }
  }
  step(index + 1, made, out);
}

void DecodeStream::finish_step(std::size_t index, std::string& out) {
  std::string made;
  State& state = states_[index];
  switch (chain_->steps[index].spec.kind) {
    case Kind::byte_level:
    case Kind::byte_fallback:
      state.filter.finish(made);
      break;
    case Kind::replace:
      made = std::move(state.held);
      break;
    default:
      break;  // strip holds what it strips
  }
  if (!made.empty()) step(index + 1, made, out);
}

void DecodeStream::finish(std::string& out) {
  for (std::size_t i = 0; i < states_.size(); ++i) finish_step(i, out);
  restart();
}

}  // namespace duet
