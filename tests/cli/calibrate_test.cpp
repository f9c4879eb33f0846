#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/test_data.h"

// engine_run calibrate: on golden checkpoints, whose logits SciPy was given too (tests/golden/calibration.py).
namespace duet::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Arguments = std::vector<std::string>;

std::string golden_path(const std::string& name) { return (golden_directory() / name).string(); }
Arguments laya() { return {"--laya", golden_path("laya/windowed")}; }
/// As the reference held it: 8 bits, the default of a Kev, would move its logits.
Arguments kev() {
  return {"--kev",        golden_path("kev/qwen2/base"), "--kev-lora", golden_path("kev/qwen2/adapter"), "--weights",
          "kev=as-stored"};
}

Ended run_with(const std::string& command, const Arguments& more) {
  return engine_run(Arguments{command, "--device", "host", "--threads", "1", "-q"} + more);
}
Ended calibrate(const Arguments& more) { return run_with("calibrate", more); }

struct Command {
  Json expected;      ///< One of "commands" in calibration.json.
  Json golden;        ///< Of its checkpoint.
  std::string lines;  ///< The labelled file.

  const Json& case_named(const std::string& name) const {
    return *std::find_if(golden["cases"].begin(), golden["cases"].end(),
                         [&](const Json& one) { return one["name"] == name; });
  }
};

Command command_of(std::size_t index) {
  Command command;
  command.expected = Json::parse(read_file(golden_path("calibration.json")))["commands"][index];
  command.golden =
      Json::parse(read_file(golden_path(command.expected["checkpoint"].get<std::string>() + "/golden.json")));
  for (const Json& line : command.expected["lines"]) {
    const Json& one = command.case_named(line["case"]);
    command.lines +=
        Json{{"state", one["state"]}, {"questions", one["questions"]}, {"labels", line["labels"]}}.dump() + "\n";
  }
  return command;
}

/// A folder with the labelled lines, where results go too.
class Calibrate : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string data(const std::string& lines) const {
    write_file(path("data.jsonl"), lines);
    return path("data.jsonl");
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }

 private:
  TemporaryDirectory folder_;
};

/// Float32 noise moves logits by up to 4e-4 here.
void expect_groups(const Json& got, const Json& want, const std::string& model) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(want[i]["questions"]);
    EXPECT_EQ(got[i]["model"], model);
    EXPECT_EQ(got[i]["questions"], want[i]["questions"]);
    EXPECT_EQ(got[i]["cases"], want[i]["cases"]);
    EXPECT_NEAR(got[i]["temperature"]["after"].get<double>(), want[i]["temperature"].get<double>(), 5e-3);
    EXPECT_EQ(got[i]["at_bound"], want[i]["at_bound"]);
    EXPECT_DOUBLE_EQ(got[i]["accuracy"].get<double>(), want[i]["after"]["accuracy"].get<double>());
    for (const char* when : {"before", "after"})
      for (const char* what : {"log_loss", "calibration_error"})
        EXPECT_NEAR(got[i][what][when].get<double>(), want[i][when][what].get<double>(), 1e-3) << when << " " << what;
  }
}

TEST_F(Calibrate, FindsWhatSciPyFindsOnLayasLogits) {
  const Command command = command_of(0);
  const Ended ended = calibrate(laya() + Arguments{"--json", "--least-cases", "12", "--data", data(command.lines)});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Json json = Json::parse(ended.out);
  EXPECT_EQ(json["bins"], 15);
  EXPECT_EQ(json["deep"], nullptr);
  expect_groups(json["groups"], command.expected["groups"], "laya");
}

TEST_F(Calibrate, FindsWhatSciPyFindsOnKevsLogits) {
  const Command command = command_of(1);
  const Ended ended = calibrate(kev() + Arguments{"--json", "--least-cases", "12", "--data", data(command.lines)});
  ASSERT_EQ(ended.code, 0) << ended.err;
  expect_groups(Json::parse(ended.out)["groups"], command.expected["groups"], "kev");
}

std::string bucket_of(const std::string& kind, std::size_t options) {
  return kind + (options <= 2 ? ":2" : options <= 5 ? ":3-5" : options <= 10 ? ":6-10" : ":11+");
}

TEST_F(Calibrate, DecideAnswersByTheRulesThatItWrote) {
  const Command command = command_of(0);
  const std::string rules_path = path("rules.json"), answers_path = path("answers.jsonl");
  const Ended ended = calibrate(laya() + kev() +
                                Arguments{"--json", "--least-cases", "12", "--escalate", "0.4", "--measure", "entropy",
                                          "--data", data(command.lines), "--output", rules_path});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Json report = Json::parse(ended.out), rules = Json::parse(read_file(rules_path));
  EXPECT_EQ(rules["measure"], "entropy");
  const Ended decided =
      run_with("decide", laya() + kev() +
                             Arguments{"--rules", rules_path, "--input", path("data.jsonl"), "--output", answers_path});
  ASSERT_EQ(decided.code, 0) << decided.err;

  std::map<std::string, double> asked, escalated, right;
  std::istringstream answers(read_file(answers_path));
  for (const Json& line : command.expected["lines"]) {
    std::string text;
    ASSERT_TRUE(std::getline(answers, text));
    const Json given = Json::parse(text)["answers"];
    const Json& one = command.case_named(line["case"]);
    std::size_t row = 0;
    for (const auto& [name, answer] : given.items()) {
      const auto kind = answer["type"].get<std::string>();
      const std::vector<float> logits = one["rows"][row++]["logits"];
      const bool sent = answer["escalated"].get<bool>();
      const Json& fitted = rules["temperatures"][sent ? "kev" : "laya"];
      const std::string bucket = bucket_of(kind, logits.size());
      const double temperature = (fitted.contains(bucket) ? fitted[bucket] : fitted[kind]).get<double>();
      EXPECT_EQ(answer["temperature"].get<double>(), temperature) << bucket;
      EXPECT_EQ(answer["temperature_from"], "rules");
      if (!sent) {
        double sum = 0;
        for (const float logit : logits)
          sum += std::exp((logit - *std::max_element(logits.begin(), logits.end())) / temperature);
        EXPECT_NEAR(answer["answer_confidence"].get<double>(), 1 / sum, 1e-3);
      }
      asked[kind] += 1;
      escalated[kind] += sent ? 1 : 0;
      const Json& label = line["labels"][name];
      const Json& probabilities = kind == "noul" ? Json::array() : answer["probabilities"];
      std::string best;
      for (const auto& [option, p] : probabilities.items())
        if (best.empty() || p > probabilities[best]) best = option;
      if (kind == "choice") right[kind] += label == best ? 1 : 0;
      if (kind == "score") right[kind] += std::to_string(label.get<int>()) == best ? 1 : 0;
      if (kind == "noul") right[kind] += label.get<bool>() == (answer["noul"] > 0.5) ? 1 : 0;
    }
  }
  for (const char* kind : {"choice", "score", "noul"}) {
    const Json& gate = report["gates"][kind];
    EXPECT_EQ(rules["threshold"][kind], gate["threshold"]);
    const auto chosen = std::find_if(gate["curve"].begin(), gate["curve"].end(),
                                     [&](const Json& point) { return point["threshold"] == gate["threshold"]; });
    ASSERT_NE(chosen, gate["curve"].end());
    EXPECT_GT(escalated[kind], 0);
    EXPECT_LE(escalated[kind], 0.4 * asked[kind]);
    EXPECT_DOUBLE_EQ((*chosen)["escalated"].get<double>(), escalated[kind] / asked[kind]) << kind;
    EXPECT_DOUBLE_EQ((*chosen)["routed_accuracy"].get<double>(), right[kind] / asked[kind]) << kind;
  }
}

TEST_F(Calibrate, RulesGivenAreWhatItStartsFrom) {
  const std::string lines = data(command_of(0).lines);
  const Arguments arguments = laya() + Arguments{"--json", "--least-cases", "12", "--data", lines};
  const Ended first = calibrate(arguments + Arguments{"--output", path("rules.json")});
  ASSERT_EQ(first.code, 0) << first.err;
  const Ended second = calibrate(arguments + Arguments{"--rules", path("rules.json")});
  ASSERT_EQ(second.code, 0) << second.err;
  const Json before = Json::parse(first.out)["groups"], after = Json::parse(second.out)["groups"];
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(after[i]["log_loss"]["before"], before[i]["log_loss"]["after"]) << before[i]["questions"];
}

TEST_F(Calibrate, PeopleGetTablesAndAChart) {
  const Ended ended =
      calibrate(laya() + kev() +
                Arguments{"--least-cases", "12", "--accuracy", "0.6", "--data", data(command_of(0).lines), "--svg",
                          path("chart.svg"), "--output", path("rules.json")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
  for (const char* words :
       {"168 labelled questions on 84 lines of ", "15 bins", "laya    choice", "kev     noul",
        "choice: questions with `largest` below the threshold go to kev", "<- chosen", "95 % interval"})
    EXPECT_NE(ended.out.find(words), std::string::npos) << words << "\n" << ended.out;
  const std::string svg = read_file(path("chart.svg"));
  EXPECT_EQ(svg.find("<svg "), 0U);
  EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
  EXPECT_EQ(files(), 3U) << "the data, the chart and the rules; nothing half written";
}

TEST_F(Calibrate, AWishOutOfReachSaysTheBestAndWritesNothing) {
  const Ended ended =
      calibrate(laya() + Arguments{"--least-cases", "12", "--accuracy", "0.999", "--data", data(command_of(0).lines),
                                   "--svg", path("chart.svg"), "--output", path("rules.json")});
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.err.find("--accuracy 0.999 cannot be reached, at best choice reaches "), std::string::npos)
      << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_NE(ended.out.find("threshold"), std::string::npos) << "the trade-off is shown all the same";
  EXPECT_EQ(files(), 1U);
}

const std::string kNoul = R"({"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}, "labels": )";

TEST_F(Calibrate, ATypeWithoutCasesKeepsWhatItHas) {
  const Ended ended = engine_run(Arguments{"calibrate", "--device", "host", "--threads", "1"} + laya() +
                                 Arguments{"--least-cases", "2", "--escalate", "0", "--threshold", "score=0.25",
                                           "--data", data(kNoul + "{\"q\": true}}\n" + kNoul + "{\"q\": false}}\n"),
                                           "--output", path("rules.json")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("0 labelled questions of type score are too few"), std::string::npos) << ended.err;
  const Json rules = Json::parse(read_file(path("rules.json")));
  EXPECT_EQ(rules["threshold"]["score"], 0.25);
  EXPECT_EQ(rules["threshold"]["noul"], 0.0);
  EXPECT_EQ(rules["temperatures"]["laya"].size(), 1U);
  EXPECT_EQ(rules["deep"], "kev") << "a model calibrated alone keeps its place in the pair";
}

/// A copy of a checkpoint whose scorer adds NaN.
void spoil(const fs::path& folder) {
  fs::copy(golden_path("laya/windowed"), folder, fs::copy_options::recursive);
  std::string file = read_file(folder / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  const Json bias = Json::parse(file.substr(8, header))["scorer.3.bias"];
  const std::string nan = bias["dtype"] == "F16" ? std::string("\x00\x7E", 2) : std::string("\x00\x00\xC0\x7F", 4);
  file.replace(8 + header + bias["data_offsets"][0].get<std::size_t>(), nan.size(), nan);
  write_file(folder / "model.safetensors", file);
}

TEST_F(Calibrate, AModelThatHoldsNanIsNamedAndNothingIsWritten) {
  spoil(path("laya"));
  const Ended ended = calibrate({"--laya", path("laya"), "--least-cases", "1", "--data",
                                 data(kNoul + "{\"q\": true}}\n"), "--output", path("rules.json")});
  EXPECT_EQ(ended.code, 6) << ended.err;
  EXPECT_NE(ended.err.find("scorer.3.bias"), std::string::npos) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_FALSE(fs::exists(path("rules.json")));
}

TEST_F(Calibrate, MistakesAreOneSentence) {
  struct Mistake {
    Arguments arguments;
    int code;
    const char* word;
  };
  const std::string good = data(kNoul + "{\"q\": true}}\n");
  write_file(path("empty.jsonl"), "\n\n");
  write_file(path("rules.json"), R"({"temperatures": {"laya": {"choice": 9}}})");
  const std::vector<Mistake> all = {
      {{}, 1, "--data"},
      {{"--data", "/nothing"}, 2, "/nothing"},
      {{"--data", path("empty.jsonl")}, 3, "holds no labelled questions"},
      {{"--data", good}, 3, "No type has 30 labelled questions"},
      {{"--data", good, "--accuracy", "95"}, 1, "--accuracy is 95"},
      {{"--data", good, "--escalate", "-0.1"}, 1, "--escalate is -0.1"},
      {{"--data", good, "--escalate", "nan"}, 1, "--escalate is "},
      {{"--data", good, "--accuracy", "0.9", "--escalate", "0.1"}, 1, "exclude each other"},
      {{"--data", good, "--measure", "luck"}, 1, "'luck'"},
      {{"--data", good, "--least-cases", "0"}, 1, "--least-cases is 0"},
      {{"--data", good, "--input", good}, 1, "--input"},
      {{"--data", good, "--compare"}, 1, "--compare"},
      {{"--data", good, "--rules", path("rules.json")}, 3, "[0.5, 5]"},
      {{"--data", good, "--noul", "q", "--ask", "?"}, 3, "1 of 1 lines"},
      {{"--data", good, "--output", path("no/rules.json")}, 2, "no/rules.json"},
      {{"--data", good, "--output", path("x"), "--svg", path("x")}, 1, "same file"},
  };
  for (const Mistake& mistake : all) {
    const Ended ended = calibrate(laya() + mistake.arguments);
    EXPECT_EQ(ended.code, mistake.code) << mistake.word << ": " << ended.err;
    EXPECT_NE(ended.err.find(mistake.word), std::string::npos) << mistake.word << ": " << ended.err;
    EXPECT_LE(std::count(ended.err.begin(), ended.err.end(), '\n'), mistake.word[0] == '1' ? 2 : 1) << ended.err;
  }
  const Ended deep = calibrate(kev() + Arguments{"--data", good, "--accuracy", "0.5"});
  EXPECT_EQ(deep.code, 1);
  EXPECT_NE(deep.err.find("'kev' is the deep model"), std::string::npos) << deep.err;
}

TEST_F(Calibrate, EveryWrongLineIsNamedBeforeAModelIsLoaded) {
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += kNoul + "{\"q\": 7}}\n";
  const Ended ended = calibrate({"--laya", "/nothing", "--data", data(lines + kNoul + "{\"q\": true}}\n")});
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("data.jsonl:10'"), std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find("data.jsonl:11'"), std::string::npos) << "ten are enough";
  EXPECT_NE(ended.err.find("12 of 13 lines"), std::string::npos) << ended.err;
}

TEST(DecideRules, AreSaidAndTheCommandLineWins) {
  const TemporaryDirectory folder;
  const std::string rules = (folder.path() / "rules.json").string();
  write_file(rules, R"({"threshold": 1.1, "temperatures": {"laya": {"noul": 2.5}, "kev": {"noul": 3.5}}})");
  const Arguments asked = {"decide", "--device", "host",  "--threads", "1",       "x",
                           "--noul", "q",        "--ask", "?",         "--rules", rules};
  const Ended one = engine_run(asked + laya());
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_NE(one.err.find("in place of the checkpoints': laya noul 2.5\n"), std::string::npos) << one.err;
  EXPECT_NE(one.out.find("temperature 2.5 by the rules"), std::string::npos) << one.out;
  const Ended pair = engine_run(asked + laya() + kev() + Arguments{"--json"});
  ASSERT_EQ(pair.code, 0) << pair.err;
  EXPECT_EQ(Json::parse(pair.out)["answers"]["q"]["temperature"], 3.5) << "1.1 sends everything on";
  const Ended kept = engine_run(asked + laya() + kev() + Arguments{"--json", "--threshold", "0"});
  EXPECT_EQ(Json::parse(kept.out)["answers"]["q"]["temperature"], 2.5);
  EXPECT_NE(kept.err.find("laya noul 2.5, kev noul 3.5"), std::string::npos) << kept.err;
  const Ended own =
      engine_run(Arguments{"decide", "--device", "host", "x", "--noul", "q", "--ask", "?", "--json"} + kev());
  EXPECT_EQ(Json::parse(own.out)["answers"]["q"]["temperature"], 1.7) << "the golden head's";
  EXPECT_EQ(Json::parse(own.out)["answers"]["q"]["temperature_from"], "checkpoint");
}

}  // namespace
}  // namespace duet::test
