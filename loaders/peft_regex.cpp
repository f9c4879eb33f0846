#include "loaders/peft_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <utility>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

constexpr std::size_t kLongestPattern = 1 << 14;
constexpr unsigned kNestedParentheses = 100;
constexpr unsigned kMatchSteps = 1'000'000;
constexpr unsigned kHeapKibibytes = 16 * 1024;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* raw) const {
    Free(raw);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using CompiledCode = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 160> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Pattern::Compiled {
  CompiledCode code;
  MatchData data;
  MatchContext context;
};

Pattern::Pattern(std::string_view expression, std::string where)
    : compiled_(std::make_unique<Compiled>()), where_(std::move(where)) {
  if (expression.size() > kLongestPattern) {
    throw Error(Code::bad_file, fmt::format("{}: an expression of {} bytes; at most {} are compiled", where_,
                                            expression.size(), kLongestPattern));
  }
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_parens_nest_limit(context.get(), kNestedParentheses);
  int failure = 0;
  PCRE2_SIZE position = 0;
  compiled_->code.reset(pcre2_compile(units(expression), expression.size(), PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C,
                                      &failure, &position, context.get()));
  if (!compiled_->code) {
    throw Error(Code::bad_file, fmt::format("{}: the expression {} does not compile at byte {}: {}", where_,
                                            quote(expression), position, message_of(failure)));
  }
  compiled_->data.reset(pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  compiled_->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(compiled_->context.get(), kMatchSteps);
  pcre2_set_heap_limit(compiled_->context.get(), kHeapKibibytes);
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

int Pattern::run(std::string_view subject, unsigned options) const {
  const int result = pcre2_match(compiled_->code.get(), units(subject), subject.size(), 0, PCRE2_ANCHORED | options,
                                 compiled_->data.get(), compiled_->context.get());
  if (result == PCRE2_ERROR_NOMATCH || result >= 0) return result;
  throw Error(Code::bad_file, fmt::format("{}: matching {} failed: {}", where_, quote(subject), message_of(result)),
              "Write a simpler expression");
}

bool Pattern::matches_start(std::string_view subject) const { return run(subject, 0) >= 0; }
bool Pattern::matches_whole(std::string_view subject) const { return run(subject, PCRE2_ENDANCHORED) >= 0; }

std::optional<std::string> Pattern::group_idx(std::string_view subject) const {
  if (run(subject, 0) < 0) return std::nullopt;
  PCRE2_UCHAR* text = nullptr;
  PCRE2_SIZE length = 0;
  const int result = pcre2_substring_get_byname(compiled_->data.get(), units("idx"), &text, &length);
  if (result < 0) return std::nullopt;
  std::string group(reinterpret_cast<const char*>(text), length);
  pcre2_substring_free(text);
  return group;
}

}  // namespace duet::loaders
