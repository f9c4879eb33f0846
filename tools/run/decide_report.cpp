#include "tools/run/decide_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "tools/run/terminal.h"

namespace duet::run {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json by_label(const DecisionAnswer& answer) {
  Json all = Json::object();
  for (std::size_t i = 0; i < answer.labels.size(); ++i) all[answer.labels[i]] = answer.probabilities[i];
  return all;
}

Json answer_json(const DecisionAnswer& answer) {
  Json json = {{"type", name_of(answer.kind)}};
  switch (answer.kind) {
    case QuestionKind::choice:
      json["choice"] = answer.labels[answer.choice];
      json["probabilities"] = by_label(answer);
      break;
    case QuestionKind::score:
      json["score"] = answer.score;
      json["legend"] = Json::object();
      for (std::size_t i = 0; i < answer.labels.size(); ++i) json["legend"][answer.labels[i]] = answer.descriptions[i];
      json["probabilities"] = by_label(answer);
      break;
    case QuestionKind::noul:
      json["noul"] = answer.probabilities[1];
      break;
  }
  json["confidence"] = answer.confidence.published;
  json["answer_confidence"] = answer.confidence.largest;
  json["model"] = answer.model;
  json["temperature"] = answer.temperature;
  json["temperature_from"] = answer.temperature_is_fitted ? "rules" : "checkpoint";
  if (!answer.reason.empty()) {
    json["escalated"] = answer.escalated;
    json["reason"] = answer.reason;
  }
  return json;
}

void add_decision(const Decision& decision, Json& json) {
  json["answers"] = Json::object();
  Json cut = Json::array(), options = Json::object();
  for (const DecisionAnswer& answer : decision.answers) {
    json["answers"][answer.question] = answer_json(answer);
    if (answer.state_tokens_kept < answer.state_tokens) cut.push_back(answer.question);
    if (answer.distinct_options < static_cast<int>(answer.labels.size()))
      options[answer.question] = {{"total", answer.labels.size()}, {"distinct", answer.distinct_options}};
  }
  json["usage"] = {{"input_tokens", decision.input_tokens},
                   {"output_tokens", 0},
                   {"truncated", !cut.empty()},
                   {"truncated_questions", cut}};
  if (!options.empty()) json["usage"]["options"] = options;
  if (decision.code != Code::ok) json["error"] = {{"code", name_of(decision.code)}, {"message", decision.message}};
}

// ---- for people ----

std::string percent(double probability) { return fmt::format("{:.1f} %", 100 * probability); }

std::string answer_text(const DecisionAnswer& answer) {
  switch (answer.kind) {
    case QuestionKind::choice:
      return without_controls(answer.labels[answer.choice]);
    case QuestionKind::score:
      return fmt::format("{:.2f} of 0-{}", answer.score, answer.labels.size() - 1);
    case QuestionKind::noul:
      return answer.choice == 1 ? "yes" : "no";
  }
  return {};
}

/// The other options, most probable first, as far as they count.
std::string others(const DecisionAnswer& answer) {
  constexpr std::size_t kMostShown = 4;
  std::vector<std::size_t> order(answer.labels.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return answer.probabilities[a] > answer.probabilities[b]; });
  std::string text;
  for (std::size_t k = 1; k < std::min(order.size(), kMostShown + 1); ++k) {
    const std::size_t i = order[k];
    const bool level = answer.kind == QuestionKind::score;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        without_controls(level ? answer.descriptions[i] : answer.labels[i]),
                        percent(answer.probabilities[i]));
  }
  if (order.size() > kMostShown + 1) text += fmt::format(", {} more", order.size() - kMostShown - 1);
  return text;
}

std::string remarks(const DecisionAnswer& answer) {
  std::string text = answer.model;
  if (!answer.reason.empty()) text += fmt::format(" ({}{})", answer.escalated ? "asked as " : "", answer.reason);
  if (answer.temperature_is_fitted) text += fmt::format("; temperature {:.3g} by the rules", answer.temperature);
  if (answer.state_tokens_kept < answer.state_tokens)
    text += fmt::format("; read {} of the state's {} tokens", answer.state_tokens_kept, answer.state_tokens);
  if (answer.distinct_options < static_cast<int>(answer.labels.size()))
    text += fmt::format("; only {} of {} options still differ after they were cut", answer.distinct_options,
                        answer.labels.size());
  return text;
}

}  // namespace

std::string table_of(const Decision& decision) {
  std::size_t name_width = 8, text_width = 12;
  for (const DecisionAnswer& answer : decision.answers) {
    name_width = std::max(name_width, answer.question.size());
    text_width = std::max(text_width, answer_text(answer).size());
  }
  std::string table;
  for (const DecisionAnswer& answer : decision.answers) {
    table +=
        fmt::format("{:<{}}  {:<{}}  {:>7}  {}\n", without_controls(answer.question), name_width, answer_text(answer),
                    text_width, percent(answer.probabilities[answer.choice]), remarks(answer));
    const std::string rest = others(answer);
    if (!rest.empty() && answer.kind != QuestionKind::noul) table += fmt::format("{:<{}}  {}\n", "", name_width, rest);
  }
  if (!table.empty()) table.pop_back();
  return table;
}

std::string json_of(const Decision& decision) {
  Json json = Json::object();
  add_decision(decision, json);
  return dumped(json);
}

std::string json_line_of(const Decision& decision, std::uint64_t line, const std::string& id_json) {
  Json json = {{"line", line}};
  if (!id_json.empty()) json["id"] = Json::parse(id_json);
  add_decision(decision, json);
  return dumped(json);
}

}  // namespace duet::run
