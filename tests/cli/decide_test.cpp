#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/test_data.h"

// engine_run decide, as people and programs use it.
namespace duet::test {
namespace {

using Json = nlohmann::ordered_json;
using Arguments = std::vector<std::string>;

std::string golden_path(const std::string& name) { return (golden_directory() / name).string(); }

Arguments decide_with(const Arguments& more) {
  return Arguments{"decide", "--laya", golden_path("laya/windowed"), "--device", "host", "--threads", "1", "-q"} + more;
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(RunDecide, FlagsAskInTheirOrderAndTheTableSaysHowSure) {
  const Ended ended = engine_run(decide_with({"I was charged twice", "--score", "urgency=calm,soon,now", "--ask",
                                              "How urgent?", "--choice", "team=billing:invoices,technical", "--ask",
                                              "Which team?", "--noul", "spam", "--ask", "Is it spam?"}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
  const std::size_t urgency = ended.out.find("urgency"), team = ended.out.find("team"), spam = ended.out.find("spam");
  EXPECT_LT(urgency, team);
  EXPECT_LT(team, spam);
  EXPECT_NE(spam, std::string::npos);
  EXPECT_NE(ended.out.find(" %"), std::string::npos);
}

TEST(RunDecide, JsonHasTheSystemOneShapeAndProbabilitiesThatAddUp) {  // O-34
  const Ended ended = engine_run(decide_with(
      {"--json", "text", "--choice", "team=b,a,c", "--ask", "Which?", "--score", "s=x,y", "--ask", "How?"}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Json answers = Json::parse(ended.out)["answers"];
  const Json& team = answers["team"];
  EXPECT_EQ(team["type"], "choice");
  EXPECT_EQ(team["probabilities"].begin().key(), "b") << "the order sent";
  double sum = 0, largest = 0;
  for (const auto& [label, probability] : team["probabilities"].items()) {
    sum += probability.get<double>();
    largest = std::max(largest, probability.get<double>());
  }
  EXPECT_NEAR(sum, 1, 1e-6);
  EXPECT_EQ(team["probabilities"][team["choice"].get<std::string>()], largest);
  EXPECT_EQ(answers["s"]["score"], answers["s"]["probabilities"]["1"]);
  EXPECT_EQ(answers["s"]["legend"]["1"], "y");
}

TEST(RunDecide, LinesAreAnsweredAndGoOnWhereTheyStopped) {
  const TemporaryDirectory folder;
  const std::string in = (folder.path() / "in.jsonl").string(), out = (folder.path() / "out.jsonl").string();
  write_file(in, R"({"id": "a", "state": {"b": 1.0}, "questions": {"q": {"type": "noul", "instructions": "?"}}})"
                 "\n{bad\n\n"
                 R"({"id": 4, "state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}})"
                 "\n");
  const Arguments arguments = decide_with({"--input", in, "--output", out});
  Ended ended = engine_run(arguments);
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("line 2"), std::string::npos) << ended.err;
  const std::string whole = read_file(out);
  const std::vector<Json> lines = lines_of(whole);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["id"], "a");
  EXPECT_EQ(lines[1]["line"], 4);
  write_file(out, whole.substr(0, whole.find('\n') + 10));  // Stopped in the middle of the second answer.
  ended = engine_run(arguments);
  EXPECT_EQ(read_file(out), whole);
}

TEST(RunDecide, QuestionsOfTheCommandLineServeEveryState) {
  const TemporaryDirectory folder;
  const std::string states = (folder.path() / "states.txt").string(), file = (folder.path() / "q.json").string();
  write_file(states, "first\nsecond\n");
  write_file(file, R"({"q": {"type": "noul", "instructions": "?"}})");
  const Ended by_line = engine_run(decide_with({"--json", "--states", states, "--questions", file}));
  ASSERT_EQ(by_line.code, 0) << by_line.err;
  EXPECT_EQ(lines_of(by_line.out).size(), 2U);
  const Ended piped = engine_run(decide_with({"--json", "--noul", "q", "--ask", "?"}), "first");
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(Json::parse(piped.out)["answers"], lines_of(by_line.out)[0]["answers"]);
}

TEST(RunDecide, LayaAndKevAreRouted) {
  Arguments arguments = decide_with({"--json", "x", "--noul", "q", "--ask", "?", "--threshold", "1.1"});
  arguments =
      arguments + Arguments{"--kev", golden_path("kev/qwen2/base"), "--kev-lora", golden_path("kev/qwen2/adapter")};
  const Ended ended = engine_run(arguments);
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Json answer = Json::parse(ended.out)["answers"]["q"];
  EXPECT_EQ(answer["model"], "kev");
  EXPECT_EQ(answer["escalated"], true);
  EXPECT_NE(answer["reason"].get<std::string>().find("is below 1.10"), std::string::npos);
}

TEST(RunDecide, AKevIsHeldInInt8AndFourBitsAreRemarkedOn) {
  const auto said = [](const Arguments& more) {
    const Ended ended =
        engine_run(Arguments{"decide", "--laya", golden_path("laya/windowed"), "--kev", golden_path("kev/qwen2/base"),
                             "--kev-lora", golden_path("kev/qwen2/adapter"), "--device", "host", "--threads", "1", "x",
                             "--noul", "q", "--ask", "?"} +
                   more);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended.err;
  };
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  const std::string by_default = said({});
  EXPECT_NE(by_default.find(": laya f16, kev int8\n"), std::string::npos) << by_default;
  EXPECT_EQ(lines(by_default), 1) << by_default;
  EXPECT_NE(said({"--weights", "kev=as-stored"}).find(": laya f16, kev bf16\n"), std::string::npos);
  EXPECT_NE(said({"--weights", "bf16", "--weights", "kev=auto"}).find(": laya bf16, kev int8\n"), std::string::npos);
  for (const char* type : {"nf4", "fp4"}) {
    const std::string with_remark = said({"--weights", std::string("kev=") + type});
    EXPECT_NE(with_remark.find(std::string(": laya f16, kev ") + type + "\n"), std::string::npos) << with_remark;
    EXPECT_NE(with_remark.find(std::string("kev is held in ") + type + ": its probabilities move more than in int8"),
              std::string::npos)
        << with_remark;
    EXPECT_NE(with_remark.find("docs/typed-decisions.md"), std::string::npos) << with_remark;
    EXPECT_EQ(lines(with_remark), 2) << with_remark;
  }
  EXPECT_NE(said({"--weights", "kev=nf4", "-v"}).find("kev is held in nf4"), std::string::npos);
  EXPECT_EQ(said({"--weights", "kev=nf4", "-q"}), "");
  EXPECT_EQ(said({"--weights", "laya=nf4"}).find("is held in"), std::string::npos);
}

TEST(RunDecide, MistakesAreOneSentence) {
  struct Mistake {
    Arguments arguments;
    int code;
    const char* word;
  };
  const std::vector<Mistake> all = {
      {{"x"}, 1, "no questions"},
      {{"x", "--noul", "q"}, 1, "'q' asks nothing"},
      {{"x", "--ask", "?", "--noul", "q"}, 1, "follows no question"},
      {{"x", "--choice", "a", "--ask", "?"}, 1, "--choice is 'a'"},
      {{"x", "--choice", "a=b,b", "--ask", "?"}, 1, "'b' twice"},
      {{"x", "--noul", "q", "--ask", "?", "--noul", "q", "--ask", "!"}, 1, "'q'"},
      {{"x", "--state-file", "y", "--noul", "q", "--ask", "?"}, 1, "More than one"},
      {{"--state-file", "/nothing", "--noul", "q", "--ask", "?"}, 2, "/nothing"},
      {{"x", "--questions", "/nothing"}, 2, "/nothing"},
      {{"x", "--noul", "q", "--ask", "?", "--threshold", "luck=1"}, 1, "luck"},
      {{"\xC3\x28", "--noul", "q", "--ask", "?"}, 1, "UTF-8"},
  };
  for (const Mistake& mistake : all) {
    const Ended ended = engine_run(decide_with(mistake.arguments));
    EXPECT_EQ(ended.code, mistake.code) << mistake.word << ": " << ended.err;
    EXPECT_NE(ended.err.find(mistake.word), std::string::npos) << mistake.word << ": " << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

}  // namespace
}  // namespace duet::test
