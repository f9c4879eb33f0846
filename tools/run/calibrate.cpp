#include "tools/run/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "engine/decision_answer.h"
#include "engine/decision_rules.h"
#include "loaders/decision_rules_file.h"
#include "loaders/file_writer.h"
#include "loaders/names.h"
#include "tools/run/calibration_chart.h"
#include "tools/run/calibration_report.h"
#include "tools/run/decision_request.h"
#include "tools/run/terminal.h"

namespace duet::run {
namespace {

constexpr std::size_t kMostComplaints = 10;  // Lines named before it says how many more there are.
constexpr std::array kKinds = {QuestionKind::choice, QuestionKind::score, QuestionKind::noul};

/// A labelled question as one model answered it at the temperatures it had before.
struct AskedCase {
  QuestionKind kind = QuestionKind::choice;
  LabelledLogits labelled;
  double temperature = 1;
  std::string family;

  std::string bucket() const { return option_bucket(kind, labelled.logits.size()); }
};
using AskedCases = std::vector<AskedCase>;  // In the order of lines and questions, the same for every model.

AskedCases of_kind(const AskedCases& cases, QuestionKind kind) {
  AskedCases some;
  std::copy_if(cases.begin(), cases.end(), std::back_inserter(some),
               [&](const AskedCase& asked) { return asked.kind == kind; });
  return some;
}

double temperature_under(const DecisionRules& rules, const std::string& model, const AskedCase& asked) {
  const DecisionTemperature* fitted = fitted_temperature(rules, model, asked.kind, asked.labelled.logits.size());
  return fitted == nullptr ? asked.temperature : fitted->value;
}

// ---- asking ----

class Asking {
 public:
  Asking(Engine& engine, const RunOptions& options, const LabelledData& data, Interrupts& interrupts)
      : engine_(engine), options_(options), data_(data), interrupts_(interrupts) {}

  Code first_failure() const { return first_failure_; }

  /// One model's answers to every labelled question. Stops early after Ctrl-C and after too many failures.
  AskedCases ask(const std::string& model, const DecisionRules& rules) {
    Progress progress(model, Progress::Unit::lines, !options_.quiet);
    DecisionRules alone = rules;
    alone.fast = model;
    alone.deep.clear();
    AskedCases cases;
    std::size_t asked = 0, cut = 0, failures = 0;
    for (const LabelledRequest& labelled : data_.requests) {
      DecisionRequest request;
      request.json = labelled.json;
      request.priority = options_.request.priority;
      request.deadline = options_.request.deadline;
      const Decision decision = engine_.decide(request, alone);
      if (interrupts_.pending()) {
        first_failure_ = Code::cancelled;
        return cases;
      }
      if (decision.code != Code::ok) {
        progress.wipe();
        print_error(fmt::format("line {}: {}", labelled.line, decision.message));
        if (first_failure_ == Code::ok) first_failure_ = decision.code;
        if (++failures == kMostComplaints) return cases;
      } else {
        take(labelled, decision, cases, cut);
      }
      progress.show(++asked, data_.requests.size());
    }
    progress.wipe();
    if (cut > 0 && !options_.quiet)
      print_remark(fmt::format("{} read only a part of the state of {} questions", model, cut));
    return cases;
  }

 private:
  static void take(const LabelledRequest& labelled, const Decision& decision, AskedCases& cases, std::size_t& cut) {
    for (std::size_t i = 0; i < labelled.questions.size(); ++i) {
      const DecisionAnswer& answer = decision.answers.at(i);
      if (!labelled.questions[i].right) continue;
      cases.push_back({.kind = answer.kind,
                       .labelled = {.logits = answer.logits, .right = *labelled.questions[i].right},
                       .temperature = answer.temperature,
                       .family = answer.family});
      cut += answer.state_tokens_kept < answer.state_tokens ? 1 : 0;
    }
  }

  Engine& engine_;
  const RunOptions& options_;
  const LabelledData& data_;
  Interrupts& interrupts_;
  Code first_failure_ = Code::ok;
};

// ---- temperatures ----

std::optional<TemperatureFit> fit_of(const AskedCases& cases) {
  std::vector<LabelledLogits> labelled;
  for (const AskedCase& asked : cases) labelled.push_back(asked.labelled);
  return fit_temperature(labelled);
}

GroupReport group_of(const std::string& model, std::string questions, const AskedCases& cases) {
  GroupReport group;
  group.model = model;
  group.questions = std::move(questions);
  group.cases = cases.size();
  const auto [lowest, highest] = std::minmax_element(
      cases.begin(), cases.end(), [](const AskedCase& a, const AskedCase& b) { return a.temperature < b.temperature; });
  group.lowest_before = lowest->temperature;
  group.highest_before = highest->temperature;
  return group;
}

void measure(GroupReport& group, const AskedCases& cases, const DecisionRules& fitted) {
  std::vector<Verdict> before, after;
  for (const AskedCase& asked : cases) {
    before.push_back(judge(asked.labelled, asked.temperature));
    after.push_back(judge(asked.labelled, temperature_under(fitted, group.model, asked)));
  }
  group.before = quality_of(before);
  group.after = quality_of(after);
}

void set_temperature(DecisionRules& rules, const GroupReport& group) {
  if (group.fit) rules.temperatures.push_back({group.model, group.questions, group.fit->temperature});
}

/// Laya's format also has temperatures by number of options: each of them with enough cases is fitted, when the kind
/// has more than one.
std::map<std::string, AskedCases> buckets_of(const AskedCases& cases, std::size_t least_cases) {
  std::map<std::string, AskedCases> buckets;
  if (cases.front().family != "laya") return buckets;
  for (const AskedCase& asked : cases) buckets[asked.bucket()].push_back(asked);
  if (buckets.size() == 1) return {};
  std::erase_if(buckets, [&](const auto& bucket) { return bucket.second.size() < least_cases; });
  return buckets;
}

/// Fits one model's temperatures of one kind into `rules`, where they replace all there were.
void fit_kind(const std::string& model, QuestionKind kind, const AskedCases& cases, std::size_t least_cases,
              CalibrationReport& report) {
  DecisionRules& rules = report.rules;
  std::vector<std::pair<GroupReport, AskedCases>> groups = {
      {group_of(model, std::string(name_of(kind)), cases), cases}};
  if (cases.size() >= least_cases) {
    groups.front().first.fit = fit_of(cases);
    for (auto& [bucket, own] : buckets_of(cases, least_cases)) {
      groups.emplace_back(group_of(model, bucket, own), own);
      groups.back().first.fit = fit_of(own);
    }
  }
  if (groups.front().first.fit)
    std::erase_if(rules.temperatures, [&](const DecisionTemperature& old) {
      return old.model == model && old.questions.starts_with(name_of(kind));
    });
  for (const auto& [group, own] : groups) set_temperature(rules, group);
  for (auto& [group, own] : groups) {
    measure(group, own, rules);
    report.groups.push_back(std::move(group));
  }
}

// ---- the gate ----

double sureness(const AskedCase& asked, double temperature, const std::string& measure_name) {
  const auto probabilities = option_probabilities(asked.labelled.logits, temperature, "a labelled question");
  return measure_of(decision_confidence(probabilities, asked.family, asked.kind), measure_name);
}

GateReport gate_of(QuestionKind kind, const AskedCases& fast, const AskedCases& deep, const CalibrateOptions& own,
                   CalibrationReport& report) {
  std::vector<GatedCase> gated;
  for (std::size_t i = 0; i < fast.size(); ++i) {
    const double temperature = temperature_under(report.rules, report.rules.fast, fast[i]);
    gated.push_back({.sureness = sureness(fast[i], temperature, report.rules.measure),
                     .fast_right = judge(fast[i].labelled, 1).right,
                     .deep_right = !deep.empty() && judge(deep[i].labelled, 1).right});
  }
  GateReport gate{.kind = kind,
                  .points = gate_points(std::move(gated)),
                  .accuracy = {.cases = fast.size(), .has_deep = !deep.empty(), .least_kept = own.least_cases},
                  .choice = std::nullopt};
  if (own.accuracy) gate.choice = choose_accuracy(gate.points, gate.accuracy, *own.accuracy);
  if (own.escalate) gate.choice = GateChoice{choose_share(gate.points, fast.size(), *own.escalate), true};
  if (gate.choice)
    report.rules.threshold.at(static_cast<std::size_t>(kind)) = gate.points[gate.choice->point].threshold;
  return gate;
}

/// Temperatures of both models and the gate between them for one kind of question. `deep` is empty with one model.
void calibrate_kind(QuestionKind kind, const AskedCases& fast, const AskedCases& deep, const RunOptions& options,
                    CalibrationReport& report) {
  const CalibrateOptions& own = options.calibrate;
  const bool enough = fast.size() >= own.least_cases;
  if (!enough && !options.quiet)
    print_remark(
        fmt::format("{} labelled questions of type {} are too few (--least-cases {}): its temperatures and its "
                    "threshold stay",
                    fast.size(), name_of(kind), own.least_cases));
  if (!fast.empty()) fit_kind(report.rules.fast, kind, fast, own.least_cases, report);
  if (!deep.empty()) fit_kind(report.rules.deep, kind, deep, own.least_cases, report);
  if (enough) report.gates.push_back(gate_of(kind, fast, deep, own, report));
}

CalibrationReport empty_report(const RunOptions& options, const LabelledData& data) {
  CalibrationReport report;
  report.data = options.calibrate.data;
  report.lines = data.lines;
  for (const LabelledRequest& request : data.requests)
    for (const LabelledQuestion& question : request.questions) ++(question.right ? report.labelled : report.unlabelled);
  report.accuracy = options.calibrate.accuracy;
  report.rules = rules_of(options);
  return report;
}

/// Throws Error when nothing could be fitted, and when a wished accuracy is out of reach, with the best there is.
void check_reached(const CalibrationReport& report, const CalibrateOptions& own) {
  if (report.gates.empty())
    throw Error(Code::bad_file,
                fmt::format("No type has {} labelled questions in {}", own.least_cases, loaders::quote(own.data)),
                "Give more, or a smaller --least-cases; nothing was written");
  std::string best;
  for (const GateReport& gate : report.gates) {
    if (!gate.choice || gate.choice->reached) continue;
    const GatePoint& point = gate.points[gate.choice->point];
    best += fmt::format("{}{} reaches {:.1f} % at threshold {:.4f}", best.empty() ? "" : ", ", name_of(gate.kind),
                        100 * gate.accuracy.of(point).value_or(0), point.threshold);
  }
  if (!best.empty())
    throw Error(Code::invalid_argument,
                fmt::format("--accuracy {} cannot be reached, at best {}", *report.accuracy, best),
                "Wish for less, or give a better deep model; no rules were written");
}

// ---- files ----

/// A model calibrated alone keeps its place in the pair that the rules name.
DecisionRules written_rules(const RunOptions& options, DecisionRules rules) {
  const DecisionRules& pair = options.decide.rules;
  if (rules.fast == pair.fast || rules.fast == pair.deep) {
    rules.fast = pair.fast;
    rules.deep = pair.deep;
  }
  std::erase_if(rules.temperatures, [&](const DecisionTemperature& fitted) {
    return fitted.model != rules.fast && fitted.model != rules.deep;
  });
  return rules;
}

void write_text(loaders::FileWriter& file, std::string_view text) {
  file.write(0, std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace

LabelledData read_labelled(const RunOptions& options) {
  LabelledData data = read_labelled(options.calibrate.data, questions_text(options.decide));
  const std::string name = loaders::quote(options.calibrate.data);
  if (data.lines == 0)
    throw Error(Code::bad_file, fmt::format("{} holds no labelled questions", name), "Give one JSON object a line");
  if (data.problems.empty()) return data;
  for (std::size_t i = 0; i < std::min(data.problems.size(), kMostComplaints); ++i) print_error(data.problems[i]);
  throw Error(Code::bad_file, fmt::format("{} of {} lines of {} are wrong", data.problems.size(), data.lines, name),
              "Correct them or take them out; nothing was fitted");
}

Code run_calibration(Engine& engine, const RunOptions& options, const LabelledData& data, Interrupts& interrupts) {
  const CalibrateOptions& own = options.calibrate;
  std::optional<loaders::FileWriter> output, chart;  // Now, so that a folder that is not there costs no time.
  if (!own.output.empty()) output.emplace(own.output);
  if (!own.chart.empty()) chart.emplace(own.chart);

  CalibrationReport report = empty_report(options, data);
  Asking asking(engine, options, data, interrupts);
  const AskedCases fast = asking.ask(report.rules.fast, report.rules);
  AskedCases deep;
  if (asking.first_failure() == Code::ok && !report.rules.deep.empty())
    deep = asking.ask(report.rules.deep, report.rules);
  if (asking.first_failure() != Code::ok) return asking.first_failure();

  for (const QuestionKind kind : kKinds)
    calibrate_kind(kind, of_kind(fast, kind), of_kind(deep, kind), options, report);
  std::stable_partition(report.groups.begin(), report.groups.end(),
                        [&](const GroupReport& group) { return group.model == report.rules.fast; });
  fmt::print("{}", options.json ? json_of(report) + "\n" : tables_of(report));
  std::fflush(stdout);
  check_reached(report, own);
  if (chart) write_text(*chart, chart_of(report));
  if (output) write_text(*output, loaders::decision_rules_text(written_rules(options, report.rules)));
  return Code::ok;
}

}  // namespace duet::run
