#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/decision.h"
#include "engine/tokenizer.h"

/// What a Laya checkpoint reads: one row a question,
///     [CLS] "<type> question: <instructions>" [SEP] ([MASK] " " + option) x n [SEP] state [SEP]
/// cut to its budgets as the published reference does (github.com/NandhaKishorM/laya, build_sequence). Differences, on
/// purpose: special tokens that a caller spells stay text; the reference lets all but the mask through.
namespace duet {

/// Special tokens by role, as tokenizer_config.json names them.
struct LayaTokens {
  std::int32_t start = -1, separator = -1, padding = -1, mask = -1;
  std::string mask_text;  ///< Replaced by a space wherever a caller wrote it.
};

struct LayaBudget {
  int row_tokens = 512;   ///< Of a whole row: max_len.
  int head_tokens = 192;  ///< Of head text and options: head_max_len.
};

struct LayaRow {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> markers;  ///< Position of each option's mask token.
  std::int64_t state_tokens = 0;      ///< Of the whole state.
  std::int64_t state_tokens_kept = 0;
  int distinct_options = 0;   ///< Options that still differ after the cut.
  int tokens_per_option = 0;  ///< What options were cut to, mask included; 0: they were not.
};

/// The tokens of a state, computed once for all questions.
std::vector<std::int32_t> laya_state_ids(const Tokenizer& tokenizer, const LayaTokens& tokens, const JsonValue& state);

/// `keep_newest`: a state that is too long loses its beginning (conversations: lists) instead of its end.
/// Throws Error(no_room), naming the question, when not every option fits.
LayaRow laya_row(const Tokenizer& tokenizer, const LayaTokens& tokens, const LayaBudget& budget,
                 const Question& question, std::span<const std::int32_t> state_ids, bool keep_newest);

}  // namespace duet
