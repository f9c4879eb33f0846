#include "engine/kev_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "duet/error.h"
#include "engine/decision_text.h"

namespace duet {
namespace {

bool is_word(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(kev_user_text(text), {.add_special_tokens = false, .parse_special_tokens = false});
}

bool is_empty(const JsonValue& value) {
  return value.kind == JsonValue::Kind::null || (value.kind == JsonValue::Kind::string && value.text.empty());
}

std::int32_t marker_id(const Tokenizer& tokenizer, std::string_view text, std::string_view source) {
  const auto id = tokenizer.id_of(text);
  const auto refuse = [&](std::string_view what) {
    throw Error(Code::bad_file,
                fmt::format("{}: the tokenizer {} '{}', which Kev's rows are made with", source, what, text),
                "Kev reads with the tokenizer of its base; is this the base it was trained on?");
  };
  if (!id) refuse("lacks the token");
  const std::vector<std::int32_t> ids =
      tokenizer.encode(text, {.add_special_tokens = false, .parse_special_tokens = true});
  if (ids.size() != 1 || ids.front() != *id) refuse("makes several tokens of");
  if (!tokenizer.is_control(*id)) refuse("has no control token");
  return *id;
}

}  // namespace

KevTokens kev_tokens(const Tokenizer& tokenizer, std::string_view source) {
  std::array<std::int32_t, kKevMarkers.size()> ids{};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = marker_id(tokenizer, kKevMarkers[i], source);
    const auto* const same = std::find(ids.begin(), ids.begin() + i, ids[i]);
    if (same != ids.begin() + i)
      throw Error(Code::bad_file,
                  fmt::format("{}: '{}' and '{}' are the same token {}", source,
                              kKevMarkers.at(static_cast<std::size_t>(same - ids.begin())), kKevMarkers[i], ids[i]));
  }
  return {.state = ids[0], .question = ids[1], .option = ids[2], .option_end = ids[3], .decide = ids[4]};
}

KevBudget kev_budget(std::int64_t longest_sequence_tokens) {
  const KevBudget published;
  return {.state_tokens = std::min(published.state_tokens, longest_sequence_tokens),
          .row_tokens = std::min(published.row_tokens, longest_sequence_tokens)};
}

std::string kev_user_text(std::string_view text) {
  constexpr std::string_view kBrokenBar = "\u00a6";
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (text.substr(at, 2) == "<|") {
      std::size_t end = at + 2;
      while (end < text.size() && is_word(text[end])) ++end;
      if (end > at + 2 && text.substr(end, 2) == "|>") {
        result.append("<").append(kBrokenBar).append(text.substr(at + 2, end - at - 2)).append(kBrokenBar).append(">");
        at = end + 2;
        continue;
      }
    }
    result.push_back(text[at++]);
  }
  return result;
}

std::string kev_option_text(const Question& question, std::size_t index) {
  const QuestionOption& option = question.options.at(index);
  if (question.kind == QuestionKind::score) return kev_text(option.description);
  const std::string name = question.kind == QuestionKind::choice ? option.label : index == 0 ? "no" : "yes";
  return is_empty(option.description) ? name : fmt::format("{}: {}", name, kev_text(option.description));
}

std::vector<std::int32_t> kev_state_ids(const Tokenizer& tokenizer, const KevTokens& tokens, const KevBudget& budget,
                                        const JsonValue& state) {
  std::vector<std::int32_t> ids = ids_of(tokenizer, kev_text(state));
  ids.insert(ids.begin(), tokens.state);
  const auto count = static_cast<std::int64_t>(ids.size());
  if (count > budget.state_tokens)
    throw Error(Code::no_room,
                fmt::format("The state is {} tokens long; at most {} are read", count, budget.state_tokens),
                "Send a shorter state");
  return ids;
}

KevRow kev_row(const Tokenizer& tokenizer, const KevTokens& tokens, const KevBudget& budget, const Question& question,
               std::int64_t state_tokens) {
  KevRow row;
  std::vector<std::int32_t>& branch = row.branch_ids;
  const auto append = [&](std::string_view text) {
    const std::vector<std::int32_t> ids = ids_of(tokenizer, text);
    branch.insert(branch.end(), ids.begin(), ids.end());
  };
  const auto last = [&] { return static_cast<int>(state_tokens + static_cast<std::int64_t>(branch.size()) - 1); };
  branch.push_back(tokens.question);
  append(kev_text(question.instructions));
  for (std::size_t i = 0; i < question.options.size(); ++i) {
    branch.push_back(tokens.option);
    append(kev_option_text(question, i));
    branch.push_back(tokens.option_end);
    row.closes.push_back(last());
  }
  branch.push_back(tokens.decide);
  row.decide = last();
  const std::int64_t count = state_tokens + static_cast<std::int64_t>(branch.size());
  if (count > budget.row_tokens)
    throw Error(Code::no_room,
                fmt::format("State and question '{}' are {} tokens long together ({} and {}); at most {} are read",
                            question.name, count, state_tokens, branch.size(), budget.row_tokens),
                "Send a shorter state, or fewer or shorter options");
  return row;
}

}  // namespace duet
