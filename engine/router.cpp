#include "engine/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace duet {
namespace {

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Lower-case ASCII, white space as single spaces, U+2019 as an apostrophe.
std::string folded(std::string_view text) {
  constexpr std::string_view kTypographicApostrophe = "\u2019";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, kTypographicApostrophe.size()) == kTypographicApostrophe) {
      out += '\'';
      i += kTypographicApostrophe.size() - 1;
    } else if (is_space(text[i])) {
      if (out.empty() || out.back() != ' ') out += ' ';
    } else {
      const char c = text[i];
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return out;
}

bool holds(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool joined_before = at > 0 && is_word_character(word.front()) && is_word_character(text[at - 1]);
    const bool joined_after = end < text.size() && is_word_character(word.back()) && is_word_character(text[end]);
    if (!joined_before && !joined_after) return true;
  }
  return false;
}

// "0.41" and "0.70"; more digits where two would make them look equal.
std::string below(double value, double limit) {
  int digits = 2;
  while (digits < 17 && fmt::format("{:.{}f}", value, digits) == fmt::format("{:.{}f}", limit, digits)) ++digits;
  return fmt::format("confidence {:.{}f} is below {:.{}f}", value, digits, limit, digits);
}

}  // namespace

std::optional<Confidence> confidence_named(std::string_view name) {
  if (name == "mean") return Confidence::mean;
  if (name == "min") return Confidence::min;
  if (name == "first") return Confidence::first;
  return std::nullopt;
}

double confidence_of(const Answer& answer, Confidence measure) {
  if (answer.tokens.empty()) return 0;
  double value = answer.tokens.front().logprob;
  double sum = 0;
  for (const GeneratedToken& token : answer.tokens) {
    sum += token.logprob;
    if (measure == Confidence::min) value = std::min<double>(value, token.logprob);
  }
  if (measure == Confidence::mean) value = sum / static_cast<double>(answer.tokens.size());
  return std::clamp(std::exp(value), 0.0, 1.0);
}

std::string_view find_hedge_word(std::string_view text, const std::vector<std::string>& words) {
  const std::string folded_text = folded(text);
  for (const std::string& word : words) {
    if (!word.empty() && holds(folded_text, folded(word))) return word;
  }
  return {};
}

bool failure_can_escalate(Code code) {
  return code == Code::non_finite || code == Code::no_room || code == Code::device || code == Code::internal;
}

RouteDecision decide(const Answer& fast_answer, const RouteRules& rules) {
  RouteDecision decision;
  if (fast_answer.code != Code::ok) {
    decision.escalate = failure_can_escalate(fast_answer.code);
    decision.reason = fmt::format("{} failed: {}", rules.fast, fast_answer.message);
    return decision;
  }
  decision.confidence = confidence_of(fast_answer, confidence_named(rules.confidence).value_or(Confidence::mean));
  const std::string_view hedge_word = find_hedge_word(fast_answer.text, rules.hedge_words);
  const auto tokens = static_cast<int>(fast_answer.tokens.size());
  decision.escalate = true;
  if (decision.confidence < rules.threshold) {
    decision.reason = below(decision.confidence, rules.threshold);
  } else if (!hedge_word.empty()) {
    decision.reason = fmt::format("answer holds the hedge word \"{}\"", hedge_word);
  } else if (rules.longest_fast_answer_tokens > 0 && tokens > rules.longest_fast_answer_tokens) {
    decision.reason = fmt::format("answer of {} tokens is longer than {}", tokens, rules.longest_fast_answer_tokens);
  } else {
    decision.escalate = false;
    decision.reason = fmt::format("confidence {:.2f}", decision.confidence);
  }
  return decision;
}

std::string check_route_rules(const RouteRules& rules) {
  if (rules.fast.empty() || rules.deep.empty()) return "the names 'fast' and 'deep' may not be empty";
  if (rules.fast == rules.deep) return fmt::format("'fast' and 'deep' are both '{}'", rules.fast);
  if (!confidence_named(rules.confidence))
    return fmt::format("confidence is '{}'; it must be 'mean', 'min' or 'first'", rules.confidence);
  if (!(rules.threshold >= 0 && rules.threshold <= 1))
    return fmt::format("threshold is {}; it must lie in [0, 1]", rules.threshold);
  if (rules.fast_max_tokens < 1)
    return fmt::format("fast_max_tokens is {}; it must be at least 1", rules.fast_max_tokens);
  if (rules.deep_max_tokens < 1)
    return fmt::format("deep_max_tokens is {}; it must be at least 1", rules.deep_max_tokens);
  if (rules.longest_fast_answer_tokens < 0)
    return fmt::format("longest_fast_answer_tokens is {}; it must be 0 (off) or positive",
                       rules.longest_fast_answer_tokens);
  for (const std::string& word : rules.hedge_words) {
    if (word.empty() || std::all_of(word.begin(), word.end(), is_space)) return "a hedge word is empty";
  }
  return {};
}

std::vector<std::string> RouteRules::default_hedge_words() {
  return {"不确定",
          "可能",
          "需要更多信息",
          "not sure",
          "unsure",
          "uncertain",
          "not certain",
          "maybe",
          "perhaps",
          "might",
          "possibly",
          "unclear",
          "hard to say",
          "don't know",
          "do not know",
          "cannot tell",
          "can't tell",
          "cannot determine",
          "need more information",
          "needs more information",
          "more information is needed",
          "not enough information",
          "insufficient information"};
}

}  // namespace duet
