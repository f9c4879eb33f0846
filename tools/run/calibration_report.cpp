#include "tools/run/calibration_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/run/terminal.h"

namespace duet::run {
namespace {

using Json = nlohmann::ordered_json;

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string percent(const std::optional<double>& share) { return share ? percent(*share) : "-"; }

double share_of(std::size_t part, std::size_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

bool has_deep(const CalibrationReport& report) { return !report.rules.deep.empty(); }

double chosen_threshold(const GateReport& gate, const CalibrationReport& report) {
  return report.rules.threshold.at(static_cast<std::size_t>(gate.kind));
}

std::optional<double> kept_accuracy(const GateReport& gate, const GatePoint& point) {
  return GateAccuracy{.cases = gate.accuracy.cases, .has_deep = false, .least_kept = 1}.of(point);
}

// ---- for people ----

std::string temperatures(const GroupReport& group) {
  const std::string before = group.lowest_before < group.highest_before
                                 ? fmt::format("{:.2f}-{:.2f}", group.lowest_before, group.highest_before)
                                 : fmt::format("{:.2f}", group.lowest_before);
  return group.fit
             ? fmt::format("{} -> {:.2f}{}", before, group.fit->temperature, group.fit->at_bound ? " (bound)" : "")
             : before + " stays";
}

std::string group_table(const CalibrationReport& report) {
  std::size_t width = 6;
  for (const GroupReport& group : report.groups) width = std::max(width, group.model.size());
  std::string table = fmt::format("{:<{}}  {:<12}{:>7}{:>10}  {:>22}  {:>16}  {:>18}\n", "model", width, "questions",
                                  "cases", "accuracy", "temperature", "log loss", "calibration error");
  for (const GroupReport& group : report.groups)
    table += fmt::format(
        "{:<{}}  {:<12}{:>7}{:>10}  {:>22}  {:>16}  {:>18}\n", without_controls(group.model), width, group.questions,
        group.cases, percent(group.after.accuracy), temperatures(group),
        fmt::format("{:.3f} -> {:.3f}", group.before.log_loss, group.after.log_loss),
        fmt::format("{} -> {}", percent(group.before.calibration_error), percent(group.after.calibration_error)));
  return table;
}

/// Points worth a line: about every tenth of the questions, and the chosen one.
std::vector<std::size_t> shown_points(const GateReport& gate) {
  constexpr std::size_t kTenths = 10;
  std::vector<std::size_t> shown;
  for (std::size_t tenth = 0; tenth <= kTenths; ++tenth) {
    const auto reaches = [&](const GatePoint& point) {
      return point.escalated * kTenths >= tenth * gate.accuracy.cases;
    };
    shown.push_back(
        static_cast<std::size_t>(std::find_if(gate.points.begin(), gate.points.end(), reaches) - gate.points.begin()));
  }
  if (gate.choice) shown.push_back(gate.choice->point);
  std::sort(shown.begin(), shown.end());
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  return shown;
}

std::string gate_table(const GateReport& gate, const CalibrationReport& report) {
  const bool routed = has_deep(report);
  std::string table =
      fmt::format("{}: questions with `{}` below the threshold {}\n{:>11}{:>12}{:>13}{}\n", name_of(gate.kind),
                  report.rules.measure, routed ? "go to " + without_controls(report.rules.deep) : "would be sent on",
                  "threshold", "sent on", "kept right", routed ? "  routed right" : "");
  for (const std::size_t i : shown_points(gate)) {
    const GatePoint& point = gate.points[i];
    table += fmt::format("{:>11.4f}{:>12}{:>13}", point.threshold,
                         percent(share_of(point.escalated, gate.accuracy.cases)), percent(kept_accuracy(gate, point)));
    if (routed) table += fmt::format("{:>14}", percent(gate.accuracy.of(point)));
    table += gate.choice && gate.choice->point == i ? "  <- chosen\n" : "\n";
  }
  return table;
}

// ---- for programs ----

Json before_and_after(double before, double after) { return {{"before", before}, {"after", after}}; }

Json group_json(const GroupReport& group) {
  Json before = group.lowest_before;
  if (group.lowest_before < group.highest_before) before = {group.lowest_before, group.highest_before};
  const Json after = group.fit ? Json(group.fit->temperature) : before;
  return {{"model", group.model},
          {"questions", group.questions},
          {"cases", group.cases},
          {"accuracy", group.after.accuracy},
          {"temperature", {{"before", before}, {"after", after}}},
          {"fitted", group.fit.has_value()},
          {"at_bound", group.fit && group.fit->at_bound},
          {"log_loss", before_and_after(group.before.log_loss, group.after.log_loss)},
          {"calibration_error", before_and_after(group.before.calibration_error, group.after.calibration_error)}};
}

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json gate_json(const GateReport& gate, const CalibrationReport& report) {
  Json json = {{"threshold", chosen_threshold(gate, report)},
               {"reached", gate.choice ? Json(gate.choice->reached) : Json()},
               {"curve", Json::array()}};
  for (const GatePoint& point : gate.points)
    json["curve"].push_back({{"threshold", point.threshold},
                             {"escalated", share_of(point.escalated, gate.accuracy.cases)},
                             {"kept_accuracy", number_or_null(kept_accuracy(gate, point))},
                             {"routed_accuracy", has_deep(report) ? number_or_null(gate.accuracy.of(point)) : Json()}});
  return json;
}

}  // namespace

std::string tables_of(const CalibrationReport& report) {
  std::string text = fmt::format("{} labelled questions on {} lines of {}", report.labelled, report.lines,
                                 without_controls(report.data));
  if (report.unlabelled > 0) text += fmt::format(" ({} without a label are not counted)", report.unlabelled);
  text += fmt::format("\nMeasured on the questions that were fitted on; calibration error over {} bins\n\n{}",
                      kCalibrationBins, group_table(report));
  for (const GateReport& gate : report.gates) text += "\n" + gate_table(gate, report);
  text += "\n";
  for (const GateReport& gate : report.gates)
    if (gate.choice) text += sentence_of(gate, report) + "\n";
  return text;
}

std::string json_of(const CalibrationReport& report) {
  Json json = {{"data", report.data},          {"lines", report.lines},
               {"questions", report.labelled}, {"unlabelled", report.unlabelled},
               {"bins", kCalibrationBins},     {"measure", report.rules.measure},
               {"fast", report.rules.fast},    {"deep", has_deep(report) ? Json(report.rules.deep) : Json()}};
  json["groups"] = Json::array();
  for (const GroupReport& group : report.groups) json["groups"].push_back(group_json(group));
  json["gates"] = Json::object();
  for (const GateReport& gate : report.gates) json["gates"][std::string(name_of(gate.kind))] = gate_json(gate, report);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string sentence_of(const GateReport& gate, const CalibrationReport& report) {
  const GatePoint& point = gate.points[gate.choice->point];
  const std::size_t kept = gate.accuracy.cases - point.escalated;
  const std::size_t counted = has_deep(report) ? gate.accuracy.cases : kept;
  const std::size_t right = has_deep(report) ? point.routed_right : point.kept_right;
  std::string text = fmt::format("{}: threshold {:.4f} sends {} on", name_of(gate.kind), point.threshold,
                                 percent(share_of(point.escalated, gate.accuracy.cases)));
  if (counted == 0) return text + " and keeps none";
  const ShareInterval interval = share_interval(right, counted);
  return text + fmt::format("; {} of {} are right, {} (95 % interval {:.1f} to {:.1f} %)", right,
                            has_deep(report) ? fmt::format("all {}", counted) : fmt::format("the {} kept", counted),
                            percent(share_of(right, counted)), 100 * interval.low, 100 * interval.high);
}

}  // namespace duet::run
