#include "engine/laya_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "duet/error.h"
#include "engine/decision_text.h"

namespace duet {
namespace {

constexpr std::size_t kMostOptionTokens = 48;  // Without the mask.
constexpr int kFewestHeadTokens = 8;
constexpr int kHeadReserve = 16;
constexpr int kFewestCutOptionTokens = 4;

std::string without_mask(std::string text, const LayaTokens& tokens) {
  if (tokens.mask_text.empty()) return text;
  for (std::size_t at = 0; (at = text.find(tokens.mask_text, at)) != std::string::npos; ++at)
    text.replace(at, tokens.mask_text.size(), " ");
  return text;
}

std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, const LayaTokens& tokens, std::string text) {
  return tokenizer.encode(without_mask(std::move(text), tokens), {.add_special_tokens = false});
}

bool is_empty(const JsonValue& value) {
  return value.kind == JsonValue::Kind::null || (value.kind == JsonValue::Kind::string && value.text.empty());
}

std::string option_text(const Question& question, std::size_t index) {
  constexpr std::string_view kNo = "no, the statement does not hold", kYes = "yes, the statement holds";
  const QuestionOption& option = question.options[index];
  switch (question.kind) {
    case QuestionKind::choice:
      return is_empty(option.description) ? option.label
                                          : fmt::format("{}: {}", option.label, laya_text(option.description));
    case QuestionKind::score:
      return fmt::format("level {}: {}", index, laya_text(option.description));
    case QuestionKind::noul:
      break;
  }
  return fmt::format(
      "{}: {}", question.words.at(index),
      is_empty(option.description) ? std::string(index == 0 ? kNo : kYes) : laya_text(option.description));
}

}  // namespace

std::string_view name_of(QuestionKind kind) {
  switch (kind) {
    case QuestionKind::choice:
      return "choice";
    case QuestionKind::score:
      return "score";
    case QuestionKind::noul:
      return "noul";
  }
  return "unknown";
}

std::vector<std::int32_t> laya_state_ids(const Tokenizer& tokenizer, const LayaTokens& tokens, const JsonValue& state) {
  return ids_of(tokenizer, tokens, laya_text(state));
}

LayaRow laya_row(const Tokenizer& tokenizer, const LayaTokens& tokens, const LayaBudget& budget,
                 const Question& question, std::span<const std::int32_t> state_ids, bool keep_newest) {
  const auto count = static_cast<int>(question.options.size());
  std::vector<std::vector<std::int32_t>> options;
  int option_tokens = 0;
  for (std::size_t i = 0; i < question.options.size(); ++i) {
    std::vector<std::int32_t> ids = ids_of(tokenizer, tokens, " " + option_text(question, i));
    ids.resize(std::min(ids.size(), kMostOptionTokens));
    ids.insert(ids.begin(), tokens.mask);
    option_tokens += static_cast<int>(ids.size());
    options.push_back(std::move(ids));
  }

  LayaRow row;
  if (budget.head_tokens - option_tokens < kHeadReserve) {
    row.tokens_per_option = std::max(kFewestCutOptionTokens, (budget.head_tokens - kHeadReserve) / count);
    option_tokens = 0;
    for (std::vector<std::int32_t>& ids : options) {
      ids.resize(std::min(ids.size(), static_cast<std::size_t>(row.tokens_per_option)));
      option_tokens += static_cast<int>(ids.size());
    }
  }
  row.distinct_options = static_cast<int>(std::set(options.begin(), options.end()).size());

  std::vector<std::int32_t> head = ids_of(
      tokenizer, tokens, fmt::format("{} question: {}", name_of(question.kind), laya_text(question.instructions)));
  head.resize(
      std::min(head.size(), static_cast<std::size_t>(std::max(kFewestHeadTokens, budget.head_tokens - option_tokens))));

  row.ids.push_back(tokens.start);
  row.ids.insert(row.ids.end(), head.begin(), head.end());
  row.ids.push_back(tokens.separator);
  for (const std::vector<std::int32_t>& option : options) {
    row.markers.push_back(static_cast<std::int32_t>(row.ids.size()));
    row.ids.insert(row.ids.end(), option.begin(), option.end());
  }
  row.ids.push_back(tokens.separator);
  if (row.markers.back() >= budget.row_tokens)
    throw Error(Code::no_room,
                fmt::format("The {} options of question '{}' do not fit: the last one would stand at token {} of a row "
                            "of {}",
                            count, question.name, row.markers.back(), budget.row_tokens),
                "Ask with fewer options or with shorter labels");

  const auto room = static_cast<std::size_t>(
      std::max<std::int64_t>(0, std::int64_t{budget.row_tokens} - static_cast<std::int64_t>(row.ids.size()) - 1));
  row.state_tokens = static_cast<std::int64_t>(state_ids.size());
  const auto kept = keep_newest ? state_ids.last(std::min(room, state_ids.size()))
                                : state_ids.first(std::min(room, state_ids.size()));
  row.state_tokens_kept = static_cast<std::int64_t>(kept.size());
  row.ids.insert(row.ids.end(), kept.begin(), kept.end());
  row.ids.push_back(tokens.separator);
  row.ids.resize(std::min(row.ids.size(), static_cast<std::size_t>(budget.row_tokens)));
  return row;
}

}  // namespace duet
