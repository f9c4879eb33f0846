#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decision.h"
#include "engine/tokenizer.h"

/// What a Kev checkpoint reads: the state once, then a branch for each question,
///     [state] state  |  [question] instructions ([option] text [option end]) x n [decide]
/// Branches are rows of their own: each goes on behind the state, at the positions behind it, and sees no other branch.
/// As the published reference does (github.com/jaredpalmer/kev). Differences, on purpose: control tokens of the
/// tokenizer that a caller spells (<think>, <tool_call>: Tokenizer::is_control) stay text; the reference lets those
/// through that are not spelt <|like this|>. Added tokens that are no control tokens it finds, as we do.
namespace duet {

/// The tokens of the base's tokenizer that stand between texts.
struct KevTokens {
  std::int32_t state = -1, question = -1, option = -1, option_end = -1, decide = -1;
};

/// Their spellings, in the order of KevTokens.
constexpr std::array<std::string_view, 5> kKevMarkers = {"<|fim_prefix|>", "<|fim_middle|>", "<|box_start|>",
                                                         "<|box_end|>", "<|fim_suffix|>"};

/// Throws Error(bad_file), naming `source` and the marker, when one is not a single token that only templates can give,
/// or two are the same.
KevTokens kev_tokens(const Tokenizer& tokenizer, std::string_view source);

/// The longest that is read; the reference's numbers.
struct KevBudget {
  std::int64_t state_tokens = 65'536;  ///< The marker included.
  std::int64_t row_tokens = 73'728;    ///< State and branch.
};

/// The reference's numbers where a model's sequences may be as long.
KevBudget kev_budget(std::int64_t longest_sequence_tokens);

struct KevRow {
  std::vector<std::int32_t> branch_ids;
  int decide = 0;           ///< Index in state and branch together: the last token.
  std::vector<int> closes;  ///< Likewise, of each option's end: ascending, before `decide`.
};

/// Kev's spelling of an option: what its marker stands before, and the legend of a score.
std::string kev_option_text(const Question& question, std::size_t index);

/// Text of a caller as it is tokenised: "<|word|>" becomes "<¦word¦>".
std::string kev_user_text(std::string_view text);

/// Marker and state, the same for all questions. Throws Error(no_room) with both lengths when it is too long.
std::vector<std::int32_t> kev_state_ids(const Tokenizer& tokenizer, const KevTokens& tokens, const KevBudget& budget,
                                        const JsonValue& state);

/// The branch of a question behind a state of `state_tokens` tokens. Throws Error(no_room), naming the question, with
/// both lengths when state and branch are too long; nothing is ever cut.
KevRow kev_row(const Tokenizer& tokenizer, const KevTokens& tokens, const KevBudget& budget, const Question& question,
               std::int64_t state_tokens);

}  // namespace duet
