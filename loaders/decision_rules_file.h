#pragma once

#include <string>
#include <string_view>

#include "duet/decide.h"

namespace duet::loaders {

/// Rules of decisions from JSON text; `source` is for messages. `duet::read_decision_rules` reads a file, and says what
/// stands in it. Throws Error(bad_file).
DecisionRules parse_decision_rules(std::string_view text, std::string_view source);

/// The text of such a file: every rule, temperatures by model. What parse_decision_rules reads back is equal.
std::string decision_rules_text(const DecisionRules& rules);

}  // namespace duet::loaders
