// PCRE2 behind Oniguruma's meaning.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include "duet/error.h"
#include "engine/unicode.h"

namespace duet {

namespace {

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct CompileContextDeleter {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

std::string message_of(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, CodeDeleter> compiled;
  std::string where;
};

Regex::Regex(std::string_view pattern, std::string_view where) {
  const std::string translated = to_pcre2(pattern, where);
  const std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(pcre2_compile_context_create(nullptr));
  if (!context) throw Error(duet::Code::internal, "PCRE2 gave no compile context");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->where = where;
  code->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                     context.get()));
  if (!code->compiled) {
    throw Error(duet::Code::unsupported,
                fmt::format("{}: the regular expression '{}' cannot be used: {}", where, pattern, message_of(error)),
                "Only expressions with the same meaning in Oniguruma and PCRE2 are taken");
  }
  pcre2_jit_compile(code->compiled.get(), PCRE2_JIT_COMPLETE);  // without a JIT the interpreter does it
  code_ = std::move(code);
}

std::vector<ByteRange> Regex::find_all(std::string_view text) const {
  std::vector<ByteRange> matches;
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create_from_pattern(code_->compiled.get(), nullptr));
  if (!data) throw Error(duet::Code::internal, "PCRE2 gave no match data");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (std::size_t at = 0; at <= text.size();) {
    // The text is known to be valid; checking it at every match would make splitting quadratic.
    int result = pcre2_match(code_->compiled.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = pcre2_match(code_->compiled.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           data.get(), nullptr);
    }
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      throw Error(duet::Code::unsupported,
                  fmt::format("{}: its regular expression gave up on a text of {} bytes: {}", code_->where, text.size(),
                              message_of(result)),
                  "Shorten the text, or split it");
    }
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data.get());
    const ByteRange match{span[0], span[1]};
    if (match.begin == match.end && !matches.empty() && matches.back().end == match.end) {
      if (at >= text.size()) break;
      at += decode_utf8(text, at).size;
      continue;
    }
    matches.push_back(match);
    at = match.end;
  }
  return matches;
}

}  // namespace duet
