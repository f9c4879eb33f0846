#include "tools/run/evaluate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/support/test_data.h"

// Labelled cases: reading an answer's fields, and the real program on the trained demo pair.
namespace duet::test {
namespace {

using run::field_of;

TEST(FieldOf, ReadsUpToABarOrTheEndOfTheLine) {
  EXPECT_EQ(field_of("team: billing | urgency: high", "team"), "billing");
  EXPECT_EQ(field_of("team: billing | urgency: high", "urgency"), "high");
  EXPECT_EQ(field_of("asks: refund\n  team:  shipping \nurgency: low", "team"), "shipping");
  EXPECT_EQ(field_of("urgency: needs more information", "urgency"), "needs more information");
}

TEST(FieldOf, TheLastOneCountsAndANameInsideTextIsNone) {
  EXPECT_EQ(field_of("team: billing\nbut no\nteam: sales", "team"), "sales");
  EXPECT_EQ(field_of("my team: billing", "team"), "");
  EXPECT_EQ(field_of("teams: billing", "team"), "");
  EXPECT_EQ(field_of("", "team"), "");
  EXPECT_EQ(field_of("team", "team"), "");
}

TEST(Score, CountsACaseWhenEveryFieldIsRight) {
  const std::vector<std::string> fields = {"team", "urgency"};
  const run::LabelledCase labelled{"text", {"billing", "high"}};
  run::Score score;
  run::count(score, labelled, "team: billing | urgency: high", fields);
  run::count(score, labelled, "team: billing | urgency: low", fields);
  run::count(score, labelled, "", fields);
  EXPECT_EQ(score.cases, 3);
  EXPECT_EQ(score.right, 1);
  EXPECT_EQ(score.field_right, (std::vector<int>{2, 1}));
}

TEST(ReadCases, NamesFileLineAndKey) {
  const TemporaryDirectory folder;
  const std::string path = (folder.path() / "cases.jsonl").string();
  write_file(path, "{\"text\": \"a\", \"team\": \"x\"}\n\n{\"text\": \"b\"}\n");
  EXPECT_EQ(run::read_cases(path, {}).size(), 2U);
  try {
    run::read_cases(path, {"team"});
    FAIL() << "a case without its team was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::bad_file);
    EXPECT_NE(std::string(error.what()).find("cases.jsonl line 3"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("team"), std::string::npos) << error.what();
  }
  write_file(path, "\n");
  EXPECT_THROW(run::read_cases(path, {}), Error);
}

// ---- the program, on the demo pair ----

std::vector<std::string> demo_pair() {
  const std::string demo = DUET_SOURCE_DIR "/tools/demo/";
  return {"--laya",
          demo + "base",
          "--laya-lora",
          demo + "laya",
          "--kev",
          demo + "base",
          "--kev-lora",
          demo + "kev",
          "--weights",
          "int8",
          "--rules",
          demo + "rules.json",
          "--quiet",
          "--device",
          "host",
          "--model-system",
          "laya=You are Laya. Name the team and the urgency.",
          "--model-system",
          "kev=You are Kev. Weigh the ticket, then decide."};
}

std::string first_lines(const std::string& text, int count) {
  std::istringstream in(text);
  std::string out, line;
  for (int i = 0; i < count && std::getline(in, line); ++i) out += line + "\n";
  return out;
}

/// "  routed    78.0 %  ..." -> 78.0
double percent_of(const std::string& out, const std::string& row) {
  std::smatch match;
  if (!std::regex_search(out, match, std::regex(row + " +([0-9.]+) %"))) return -1;
  return std::strtod(match[1].str().c_str(), nullptr);
}

TEST(DemoPair, KevIsBetterThanLayaAndRoutingSavesCalls) {
  const TemporaryDirectory folder;
  const std::string cases = (folder.path() / "cases.jsonl").string();
  write_file(cases, first_lines(read_file(DUET_SOURCE_DIR "/tools/demo/tickets_test.jsonl"), 60));
  const Ended ended =
      engine_run(demo_pair() + std::vector<std::string>{"--evaluate", cases, "--expect", "team,urgency"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const double laya = percent_of(ended.out, "laya alone"), kev = percent_of(ended.out, "kev alone");
  const double routed = percent_of(ended.out, "routed");
  EXPECT_GT(laya, 40) << ended.out;
  EXPECT_GT(kev, laya + 5) << ended.out;
  EXPECT_GT(routed, laya + 5) << ended.out;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(ended.out, match, std::regex("Routing asked kev for ([0-9]+) of 60 cases")))
      << ended.out;
  EXPECT_GT(std::stoi(match[1].str()), 0);
  EXPECT_LT(std::stoi(match[1].str()), 40);
}

TEST(DemoPair, SamplesSayWhatWasEscalatedAndWhy) {
  const TemporaryDirectory folder;
  const std::string samples = (folder.path() / "samples.jsonl").string();
  write_file(samples, first_lines(read_file(DUET_SOURCE_DIR "/tools/demo/tickets_sample.jsonl"), 5));
  const Ended ended = engine_run(demo_pair() + std::vector<std::string>{"--samples", samples});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.out.find("team: billing | urgency: low"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("answer holds the hedge word \"needs more information\""), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("kev  asks:"), std::string::npos) << ended.out;
}

TEST(Evaluate, NeedsToKnowWhatIsRight) {
  const Ended ended = engine_run(demo_pair() + std::vector<std::string>{"--evaluate", "x.jsonl"});
  EXPECT_EQ(ended.code, static_cast<int>(Code::invalid_argument));
  EXPECT_NE(ended.err.find("--expect"), std::string::npos) << ended.err;
}

}  // namespace
}  // namespace duet::test
