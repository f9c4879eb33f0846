#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "duet/engine.h"

/// Whether the fast model's answer stands or the deep model takes over: pure functions over an answer and the rules.
namespace duet {

enum class Confidence {
  mean,  ///< exp of the mean log-probability of the generated tokens: their geometric mean.
  min,   ///< The smallest probability of any generated token.
  first  ///< The first token's probability: for answers that are one word of a closed list.
};

std::optional<Confidence> confidence_named(std::string_view name);

/// In [0, 1], over `answer.tokens` (an end token counts: how sure the model was to stop). 0 for an answer of no tokens.
double confidence_of(const Answer& answer, Confidence measure);

/// The first of `words` that `text` holds; empty when none. ASCII letters match in either case, white space and
/// typographic apostrophes in any spelling. An edge of a word that is an ASCII letter or digit must be a word border in
/// the text ("might" is not in "mighty"); other scripts, which write without spaces, match anywhere.
std::string_view find_hedge_word(std::string_view text, const std::vector<std::string>& words);

struct RouteDecision {
  bool escalate = false;
  double confidence = 0;
  std::string reason = {};  ///< "confidence 0.41 is below 0.70", or "confidence 0.93" when the fast answer stands.
};

/// Rules are asked in this order: the fast request failed, confidence, hedge words, length.
RouteDecision decide(const Answer& fast_answer, const RouteRules& rules);

/// Whether another model may do better where this one failed. False for what is wrong with the request itself and for
/// cancelled and late ones.
bool failure_can_escalate(Code code);

/// Empty when the rules make sense; else the sentence that says which does not.
std::string check_route_rules(const RouteRules& rules);

}  // namespace duet
