#include "loaders/router_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/router.h"
#include "loaders/json_file.h"
#include "loaders/names.h"

namespace duet::loaders {
namespace {

constexpr std::uint64_t kLargestRulesFile = 1 << 20;

RouteRules rules_from(const Json& json, std::string_view source) {
  const std::vector<std::string> known = {"fast",
                                          "deep",
                                          "confidence",
                                          "threshold",
                                          "fast_max_tokens",
                                          "deep_max_tokens",
                                          "longest_fast_answer_tokens",
                                          "hedge_words"};
  const JsonObject object(json, std::string(source));
  for (const std::string& key : object.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string nearest = nearest_name(key, known);
    throw Error(Code::bad_file, fmt::format("'{}': {} is no rule of the router", source, quote(key)),
                nearest.empty() ? fmt::format("Rules are {}", listed(known, known.size()))
                                : fmt::format("The nearest rule is '{}'", nearest));
  }
  constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
  RouteRules rules;
  const auto tokens = [&](std::string_view key, int fallback, std::int64_t smallest) {
    return static_cast<int>(object.integer_or(key, fallback, smallest, kMaxInt));
  };
  rules.fast = object.text_or("fast", rules.fast);
  rules.deep = object.text_or("deep", rules.deep);
  rules.confidence = object.text_or("confidence", rules.confidence);
  rules.threshold = object.number_or("threshold", rules.threshold);
  rules.fast_max_tokens = tokens("fast_max_tokens", rules.fast_max_tokens, 1);
  rules.deep_max_tokens = tokens("deep_max_tokens", rules.deep_max_tokens, 1);
  rules.longest_fast_answer_tokens = tokens("longest_fast_answer_tokens", rules.longest_fast_answer_tokens, 0);
  if (object.has("hedge_words")) rules.hedge_words = object.texts("hedge_words");

  const std::string problem = check_route_rules(rules);
  if (!problem.empty()) throw Error(Code::bad_file, fmt::format("'{}': {}", source, problem), "Correct the rules file");
  return rules;
}

}  // namespace

RouteRules parse_route_rules(std::string_view text, std::string_view source) {
  return rules_from(parse_json(text, source, {.bytes = kLargestRulesFile, .depth = 8}), source);
}

}  // namespace duet::loaders

namespace duet {

RouteRules read_route_rules(const std::string& path) {
  return loaders::rules_from(loaders::read_json_file(path, {.bytes = loaders::kLargestRulesFile, .depth = 8}), path);
}

}  // namespace duet
