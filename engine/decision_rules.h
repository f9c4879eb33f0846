#pragma once

#include <string>
#include <string_view>

#include "duet/decide.h"

/// Who is asked again, and at which temperatures: pure functions over an answer and the rules.
namespace duet {

/// The named measure. Throws Error(invalid_argument) when there is none of that name.
double measure_of(const DecisionConfidence& confidence, std::string_view name);

/// The fitted temperature of a model's question: that of its number of options, else that of its kind, else null.
const DecisionTemperature* fitted_temperature(const DecisionRules& rules, std::string_view model, QuestionKind kind,
                                              std::size_t options);

/// Whether the deep model shall be asked; fills `answer.reason` either way.
bool escalates(DecisionAnswer& answer, const DecisionRules& rules);

/// Empty when the rules make sense; else the sentence that says which does not.
std::string check_decision_rules(const DecisionRules& rules);

}  // namespace duet
