#include "tools/run/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/test_data.h"
#include "tools/run/calibration_chart.h"
#include "tools/run/calibration_data.h"
#include "tools/run/calibration_report.h"

// The mathematics of engine_run calibrate: closed forms, and what NumPy and SciPy say (tests/golden/calibration.py).
namespace duet::test {
namespace {

using Json = nlohmann::json;
using run::GatedCase;
using run::GatePoint;
using run::LabelledLogits;

Json golden() { return Json::parse(read_file(golden_directory() / "calibration.json")); }

/// `right` of `count` questions with options 0 and `gap` are answered by the second one.
std::vector<LabelledLogits> two_options(float gap, std::size_t right, std::size_t count) {
  std::vector<LabelledLogits> cases(count, {{0.0F, gap}, 0});
  for (std::size_t i = 0; i < right; ++i) cases[i].right = 1;
  return cases;
}

// ---- temperature ----

TEST(FitTemperature, OfTwoOptionsIsTheGapOverTheLogOdds) {
  for (const float gap : {1.0F, 2.5F, 4.0F, 8.0F}) {
    for (const std::size_t right : {11U, 13U, 17U}) {
      const double log_odds = std::log(static_cast<double>(right) / static_cast<double>(20 - right));
      const double expected = double{gap} / log_odds;
      const auto fit = run::fit_temperature(two_options(gap, right, 20));
      ASSERT_TRUE(fit.has_value());
      EXPECT_NEAR(fit->temperature, std::clamp(expected, 0.5, 5.0), 1e-12 * expected) << gap << " " << right;
      EXPECT_EQ(fit->at_bound, expected < 0.5 || expected > 5) << gap << " " << right;
    }
  }
}

TEST(FitTemperature, OfEqualRestsHasAClosedForm) {  // n options: right is e^(z/T) / (e^(z/T) + n - 1)
  const std::size_t n = 9, count = 10, right = 8;
  std::vector<LabelledLogits> cases(count, {std::vector<float>(n, 0.0F), 0});
  for (std::size_t i = 0; i < count; ++i) {
    cases[i].logits[4] = 7.0F;
    cases[i].right = i < right ? 4 : 0;
  }
  const double odds = static_cast<double>(right) / static_cast<double>(count - right) * static_cast<double>(n - 1);
  EXPECT_NEAR(run::fit_temperature(cases)->temperature, 7 / std::log(odds), 1e-12);
}

TEST(FitTemperature, IsTheSameForShiftedLogitsAndGrowsWithThem) {
  std::vector<LabelledLogits> cases = two_options(2.0F, 14, 20);
  const double once = run::fit_temperature(cases)->temperature;
  for (LabelledLogits& labelled : cases)
    for (float& logit : labelled.logits) logit = 2 * logit - 1024;
  EXPECT_NEAR(run::fit_temperature(cases)->temperature, 2 * once, 1e-12);
}

TEST(FitTemperature, AllRightOrNoBetterThanChanceEndAtABound) {
  const auto low = run::fit_temperature(two_options(3.0F, 20, 20));
  EXPECT_EQ(low->temperature, 0.5);
  EXPECT_TRUE(low->at_bound);
  const auto high = run::fit_temperature(two_options(3.0F, 4, 20));
  EXPECT_EQ(high->temperature, 5.0);
  EXPECT_TRUE(high->at_bound);
}

TEST(FitTemperature, WithoutDifferingLogitsThereIsNone) {
  EXPECT_FALSE(run::fit_temperature({}).has_value());
  const std::vector<LabelledLogits> flat = {{{3.0F}, 0}, {{1.0F, 1.0F}, 1}};
  EXPECT_FALSE(run::fit_temperature(flat).has_value());
}

TEST(FitTemperature, FarLogitsStayFinite) {  // p of the right option is 0 in float64 here
  constexpr float kFar = std::numeric_limits<float>::max() / 2;
  const std::vector<LabelledLogits> cases = {{{kFar, -kFar}, 1}, {{1.0F, 0.0F}, 0}};
  EXPECT_EQ(run::fit_temperature(cases)->temperature, 5.0);
  EXPECT_TRUE(std::isfinite(run::judge(cases[0], 0.5).log_likelihood));
}

TEST(FitTemperature, IsWhatSciPyFinds) {
  for (const Json& set : golden()["sets"]) {
    SCOPED_TRACE(set["name"].get<std::string>());
    std::vector<LabelledLogits> cases;
    for (std::size_t i = 0; i < set["logits"].size(); ++i)
      cases.push_back({set["logits"][i].get<std::vector<float>>(), set["right"][i].get<std::size_t>()});
    const auto fit = run::fit_temperature(cases);
    ASSERT_TRUE(fit.has_value());
    EXPECT_NEAR(fit->temperature, set["temperature"].get<double>(), 1e-6);
    EXPECT_EQ(fit->at_bound, set["at_bound"].get<bool>());
    for (const auto& [when, temperature] :
         {std::pair("before", 1.0), std::pair("after", set["temperature"].get<double>())}) {
      std::vector<run::Verdict> verdicts;
      for (const LabelledLogits& labelled : cases) verdicts.push_back(run::judge(labelled, temperature));
      const run::Quality quality = run::quality_of(verdicts);
      EXPECT_NEAR(quality.accuracy, set[when]["accuracy"].get<double>(), 1e-12) << when;
      EXPECT_NEAR(quality.log_loss, set[when]["log_loss"].get<double>(), 1e-12) << when;
      EXPECT_NEAR(quality.calibration_error, set[when]["calibration_error"].get<double>(), 1e-12) << when;
    }
  }
}

// ---- quality ----

TEST(Quality, OfTwoBinsIsTheirWeightedDistance) {
  // Bin 15 holds two answers at 1.0, one right; bin 8, around a half, three at 0.5, all right.
  const std::vector<run::Verdict> verdicts = {
      {-1, 1.0, true}, {-2, 1.0, false}, {-0.5, 0.5, true}, {-0.5, 0.5, true}, {-1, 0.5, true}};
  const run::Quality quality = run::quality_of(verdicts);
  EXPECT_DOUBLE_EQ(quality.accuracy, 0.8);
  EXPECT_DOUBLE_EQ(quality.log_loss, 1.0);
  EXPECT_DOUBLE_EQ(quality.calibration_error, 0.4 * 0.5 + 0.6 * 0.5);
}

TEST(Quality, ABinHoldsItsUpperEdge) {  // (i - 1) / 15 < p <= i / 15: an edge joins the bin below it
  const double edge = 9.0 / 15;
  const run::Verdict at{-1, edge, true}, below{-1, edge - 0.05, false}, above{-1, edge + 0.01, false};
  EXPECT_NEAR(run::quality_of(std::vector{at, below}).calibration_error, std::abs(1 - (edge + edge - 0.05)) / 2, 1e-12);
  EXPECT_NEAR(run::quality_of(std::vector{at, above}).calibration_error, (1 - edge + edge + 0.01) / 2, 1e-12);
}

TEST(Quality, TheFirstOfEqualOptionsIsTheAnswer) {
  EXPECT_TRUE(run::judge({{1.0F, 1.0F}, 0}, 1).right);
  EXPECT_FALSE(run::judge({{1.0F, 1.0F}, 1}, 1).right);
  EXPECT_DOUBLE_EQ(run::judge({{1.0F, 1.0F}, 1}, 3).log_likelihood, -std::log(2.0));
}

// ---- the gate ----

TEST(GatePoints, ListEveryOutcomeWithThresholdsBetweenNeighbours) {
  const std::vector<GatePoint> points = run::gate_points(
      {{0.75, true, true}, {0.5, false, true}, {0.25, false, false}, {0.5, true, false}, {1.0, true, true}});
  ASSERT_EQ(points.size(), 5U);
  const std::vector<double> thresholds = {0, 0.375, 0.625, 0.875, 1.01};
  const std::vector<std::size_t> escalated = {0, 1, 3, 4, 5}, kept = {3, 3, 2, 1, 0}, routed = {3, 3, 3, 3, 3};
  for (std::size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i].threshold, thresholds[i]);
    EXPECT_EQ(points[i].escalated, escalated[i]);
    EXPECT_EQ(points[i].kept_right, kept[i]);
    EXPECT_EQ(points[i].routed_right, routed[i]);
  }
}

TEST(GatePoints, AThresholdSeparatesNumbersWithNoneBetweenThem) {
  const double low = 0.7, high = std::nextafter(low, 1.0);
  const std::vector<GatePoint> points = run::gate_points({{low, true, true}, {high, true, true}});
  ASSERT_EQ(points.size(), 3U);
  EXPECT_LT(low, points[1].threshold);
  EXPECT_GE(high, points[1].threshold);
}

TEST(GatePoints, AndChoicesAreWhatTryingEveryThresholdFinds) {
  for (const Json& gate : golden()["gates"]) {
    const std::size_t count = gate["sureness"].size();
    SCOPED_TRACE(count);
    std::vector<GatedCase> cases;
    for (std::size_t i = 0; i < count; ++i)
      cases.push_back(
          {gate["sureness"][i].get<double>(), gate["fast_right"][i].get<bool>(), gate["deep_right"][i].get<bool>()});
    const std::vector<GatePoint> points = run::gate_points(cases);
    ASSERT_EQ(points.size(), gate["outcomes"].size());
    for (std::size_t i = 0; i < points.size(); ++i) {
      EXPECT_EQ(Json({points[i].escalated, points[i].kept_right, points[i].routed_right}), gate["outcomes"][i]);
      std::size_t below = 0;
      for (const GatedCase& gated : cases) below += gated.sureness < points[i].threshold ? 1U : 0U;
      EXPECT_EQ(below, points[i].escalated) << "what the router does with this threshold";
    }
    for (const Json& wish : gate["accuracy_wishes"]) {
      const run::GateAccuracy accuracy{count, wish["has_deep"].get<bool>(), wish["least_kept"].get<std::size_t>()};
      const run::GateChoice choice = run::choose_accuracy(points, accuracy, wish["accuracy"].get<double>());
      EXPECT_EQ(choice.point, wish["point"].get<std::size_t>()) << wish;
      EXPECT_EQ(choice.reached, wish["reached"].get<bool>()) << wish;
    }
    for (const Json& wish : gate["share_wishes"])
      EXPECT_EQ(run::choose_share(points, count, wish["share"].get<double>()), wish["point"].get<std::size_t>());
  }
}

TEST(ShareInterval, IsWilsons) {
  for (const Json& row : golden()["intervals"]) {
    const run::ShareInterval interval = run::share_interval(row[0].get<std::size_t>(), row[1].get<std::size_t>());
    EXPECT_NEAR(interval.low, row[2].get<double>(), 1e-12) << row;
    EXPECT_NEAR(interval.high, row[3].get<double>(), 1e-12) << row;
  }
}

// ---- labelled lines ----

constexpr const char* kQuestions = R"("questions": {"team": {"type": "choice", "instructions": "?",
    "criteria": {"billing": null, "technical": "bugs"}}, "urgency": {"type": "score", "instructions": "?",
    "criteria": ["low", "high"]}, "spam": {"type": "noul", "instructions": "?"}})";

std::string line_with(const std::string& labels) {
  std::string line = R"({"state": "x", )" + std::string(kQuestions) + R"(, "labels": )" + labels + "}";
  std::erase(line, '\n');
  return line + "\n";
}

run::LabelledData read_lines(const std::string& lines, const std::string& questions = {}) {
  const TemporaryDirectory folder;
  write_file(folder.path() / "data.jsonl", lines);
  return run::read_labelled((folder.path() / "data.jsonl").string(), questions);
}

TEST(LabelledLines, HoldTheRightOptionOfEachQuestion) {
  const run::LabelledData data = read_lines(line_with(R"({"team": "technical", "urgency": 1, "spam": false})") + "\n" +
                                            line_with(R"({"spam": true, "team": null})"));
  EXPECT_TRUE(data.problems.empty());
  ASSERT_EQ(data.requests.size(), 2U);
  EXPECT_EQ(data.lines, 2U);
  EXPECT_EQ(data.requests[1].line, 3U);
  using Right = std::optional<std::size_t>;
  const std::vector<std::vector<Right>> right = {{1, 1, 0}, {std::nullopt, std::nullopt, 1}};
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t k = 0; k < 3; ++k) EXPECT_EQ(data.requests[i].questions[k].right, right[i][k]);
}

TEST(LabelledLines, TakeTheQuestionsOfTheCommandLine) {
  const std::string questions = R"({"n": {"type": "choice", "instructions": "?", "criteria": [1, 2.5, true]}})";
  const run::LabelledData data = read_lines(
      "{\"state\": \"x\", \"labels\": {\"n\": 2.5}}\n{\"state\": 1, \"labels\": {\"n\": true}}\n", questions);
  ASSERT_EQ(data.requests.size(), 2U);
  EXPECT_EQ(data.requests[0].questions[0].right, 1U);
  EXPECT_EQ(data.requests[1].questions[0].right, 2U);
}

TEST(LabelledLines, SayWhatIsWrongWithEach) {
  const std::vector<std::pair<std::string, const char*>> all = {
      {"{\n", "JSON"},
      {"[]\n", "object"},
      {R"({"state": "x", "labels": {"a": 1}})"
       "\n",
       "no questions"},
      {std::string(R"({"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}})") + "\n",
       "the line has no labels"},
      {line_with("[]"), "the line has no labels"},
      {line_with("{}"), "no question has a label"},
      {line_with(R"({"team": "sales"})"), "'team' is \"sales\"; one of 'billing' and 'technical' was expected"},
      {line_with(R"({"team": ["billing"]})"), "one of 'billing'"},
      {line_with(R"({"urgency": 2})"), "'urgency' is 2; a level from 0 to 1 was expected"},
      {line_with(R"({"urgency": -1})"), "a level from 0 to 1"},
      {line_with(R"({"urgency": 1.0})"), "a level from 0 to 1"},
      {line_with(R"({"urgency": 99999999999999999999})"), "a level from 0 to 1"},
      {line_with(R"({"spam": "true"})"), "'spam' is \"true\"; true or false was expected"},
      {line_with(R"({"spam": 1})"), "true or false"},
      {line_with(R"({"spam": true, "tema": "billing"})"),
       "a label of 'tema', but no such question. The nearest is 'team'"},
  };
  std::string lines;
  for (const auto& [line, words] : all) lines += line;
  const run::LabelledData data = read_lines(lines);
  EXPECT_TRUE(data.requests.empty());
  ASSERT_EQ(data.problems.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_NE(data.problems[i].find(all[i].second), std::string::npos) << data.problems[i];
    EXPECT_NE(data.problems[i].find("data.jsonl:" + std::to_string(i + 1)), std::string::npos) << data.problems[i];
    EXPECT_EQ(data.problems[i].find('\n'), std::string::npos) << data.problems[i];
  }
}

// ---- the chart ----

run::CalibrationReport small_report(std::optional<double> wish) {
  run::CalibrationReport report;
  report.rules.fast = "laya";
  report.rules.deep = "<kev> & co";
  report.accuracy = wish;
  run::GateReport gate;
  gate.points = run::gate_points({{0.5, false, true}, {0.9, true, true}});
  gate.accuracy = {.cases = 2, .has_deep = true, .least_kept = 1};
  if (wish) gate.choice = run::GateChoice{1, true};
  report.gates = {gate};
  return report;
}

TEST(CalibrationChart, PutsEveryPointWhereItsSharesAre) {
  const std::string svg = run::chart_of(small_report(1.0));
  // 0, 50 and 100 % are sent on, of which 50, 100 and 100 % become right: x in 76..696, y from 372 (50 %) up to 84.
  EXPECT_NE(svg.find("points=\"76.0,372.0 386.0,84.0 696.0,84.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("cx=\"386.0\" cy=\"84.0\""), std::string::npos) << "the chosen point";
  EXPECT_NE(svg.find("wished 100 %"), std::string::npos);
  EXPECT_NE(svg.find("choice, below 0.700"), std::string::npos);
  EXPECT_NE(svg.find("&lt;kev&gt; &amp; co"), std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(CalibrationChart, WithoutAWishMarksNothing) {
  const std::string svg = run::chart_of(small_report(std::nullopt));
  EXPECT_EQ(svg.find("<circle"), std::string::npos);
  EXPECT_EQ(svg.find("wished"), std::string::npos);
  EXPECT_NE(svg.find("<polyline"), std::string::npos);
}

}  // namespace
}  // namespace duet::test
