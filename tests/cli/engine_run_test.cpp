#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/support/golden.h"
#include "tests/support/test_data.h"

// The real program on golden checkpoints: answers, formats, exit codes.
namespace duet::test {
namespace {

using Json = nlohmann::ordered_json;

GoldenPrompt golden_text(const std::string& model) {
  const GoldenArrays golden("models/" + model + "/expected.json");
  for (GoldenPrompt& prompt : golden_prompts(golden.index()))
    if (!prompt.text.empty()) return prompt;
  throw std::runtime_error(model + " has no prompt with a text");
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::vector<std::string> pair() {
  std::vector<std::string> arguments = {"--device", "host",        "--threads", "1", "--budget",
                                        "1GiB",     "--kv-tokens", "1024",      "-q"};
  return arguments + with_model("--laya", "qwen2") + with_model("--kev", "llama_gqa");
}

TEST(EngineRun, HelpAndVersionEndWell) {
  const Ended help = engine_run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"--kev", "--laya-lora", "--budget", "--compare", "--logprobs", "Exit codes", "Sampling",
                           "--config", "Examples"})
    EXPECT_NE(help.out.find(word), std::string::npos) << word;
  std::istringstream lines(help.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 130U) << line;
  const Ended version = engine_run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, "Duet 0.1.0\n");
}

TEST(EngineRun, MistakesAreOneSentenceAndAnExitCode) {
  struct Mistake {
    std::vector<std::string> arguments;
    int code;
    const char* word;
  };
  const std::vector<std::string> one = with_model("m", "qwen2");
  const std::vector<Mistake> all = {
      {{"hello"}, 1, "No model"},
      {one + std::vector<std::string>{"--temprature", "1"}, 1, "--temprature"},
      {one + std::vector<std::string>{"--temperature", "warm"}, 1, "warm"},
      {{"--model", "m=x", "--budget", "six", "x"}, 1, "--budget"},
      {{"--model", "m=x", "--device", "tpu", "x"}, 1, "tpu"},
      {one + std::vector<std::string>{"--weights", "q4"}, 1, "q4"},
      {one + std::vector<std::string>{"--kv-type", "q4"}, 1, "q4"},
      {one + std::vector<std::string>{"--kv-type", "int8", "x"}, 4, "f32"},
      {one + std::vector<std::string>{"--embedding-on-host=perhaps", "x"}, 1, "perhaps"},
      {one + std::vector<std::string>{"--weights", "n=nf4"}, 2, "'n'"},
      {one + std::vector<std::string>{"--only", "n"}, 2, "'n'"},
      {one + std::vector<std::string>{"--route", "x"}, 1, "Routing"},
      {one + std::vector<std::string>{"--compare", "--only", "m", "x"}, 1, "exclude"},
      {one + std::vector<std::string>{"--rules", "/nothing/rules.json", "x"}, 2, "/nothing/rules.json"},
      {one + std::vector<std::string>{"--config", "/nothing/c.toml", "x"}, 2, "/nothing/c.toml"},
      {one + std::vector<std::string>{"--prompt-file", "/nothing/p.txt"}, 2, "/nothing/p.txt"},
      {one + std::vector<std::string>{"--input", "/nothing/x.jsonl"}, 2, "/nothing/x.jsonl"},
      {one + std::vector<std::string>{"--output", "y.jsonl", "x"}, 1, "--input"},
      {one + std::vector<std::string>{"x", "--input", "y"}, 1, "More than one"},
      {one + std::vector<std::string>{"--max-tokens", "0", "x"}, 1, "max_tokens is 0"},
      {one + std::vector<std::string>{"--top-p", "1.5", "x"}, 1, "top_p"},
      {one + std::vector<std::string>{"--adapter", "a", "x"}, 2, "'a'"},
      {one + std::vector<std::string>{"--raw", "\xC3\x28"}, 1, "UTF-8"},
      {one + std::vector<std::string>{"--raw", "--max-length", "1", "a b c"}, 5, "1"},
      {{"--model", one.back(), "--budget", "4KiB", "x"}, 5, "4.00 KiB"},
      {{"--model", "m=x", "--model", "n=y", "x"}, 1, "--only"},
      {{"--model", "m=/nothing/here", "x"}, 2, "/nothing/here"},
      {{"--model", "m", "x"}, 1, "NAME=DIR"},
      {one + std::vector<std::string>{"--input", "/"}, 1, "'/' cannot be read: Is a directory"},
      {one + std::vector<std::string>{"--input", "/dev/zero"}, 3, "Line 1 of '/dev/zero' is longer than"},
      {one + std::vector<std::string>{"--input", "/dev/null", "--output", std::string(300, 'x')}, 1, "name too long"},
      {one + std::vector<std::string>{"--input", "/dev/null", "--output", "/"}, 1, "'/' cannot be written"},
      {one, 1, "Standard input is empty"},
  };
  for (const Mistake& mistake : all) {
    const Ended ended = engine_run(mistake.arguments);
    EXPECT_EQ(ended.code, mistake.code) << mistake.word << ": " << ended.err;
    EXPECT_NE(ended.err.find(mistake.word), std::string::npos) << mistake.word << ": " << ended.err;
    EXPECT_EQ(count_lines(ended.err), 1U) << ended.err;
    EXPECT_EQ(ended.err.find("engine_run: "), 0U) << ended.err;
  }
}

TEST(EngineRun, JsonHoldsTheAnswerOfTheReference) {
  const GoldenPrompt golden = golden_text("qwen2");
  const Ended ended =
      engine_run(with_model("m", "qwen2") + std::vector<std::string>{"--raw", "--ignore-end-tokens", "--max-tokens",
                                                                     "16", "--logprobs", "3", "--json", golden.text});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
  const std::vector<Json> lines = lines_of(ended.out);
  ASSERT_EQ(lines.size(), 1U);
  std::vector<std::string> keys;
  for (const auto& [key, value] : lines[0].items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"model", "prompt_ids", "ids", "text", "finish", "logprobs", "route",
                                            "timings_ms", "counters"}));
  EXPECT_EQ(lines[0]["model"], "m");
  EXPECT_EQ(lines[0]["prompt_ids"].get<std::vector<std::int32_t>>(), golden.ids);
  EXPECT_EQ(lines[0]["ids"].get<std::vector<std::int32_t>>(), golden.greedy);
  EXPECT_EQ(lines[0]["finish"], "length");
  EXPECT_TRUE(lines[0]["route"].is_null());
  ASSERT_EQ(lines[0]["logprobs"].size(), 16U);
  for (std::size_t i = 0; i < 16; ++i) {
    const Json& best = lines[0]["logprobs"][i];
    ASSERT_EQ(best.size(), 3U);
    EXPECT_EQ(best[0][0], golden.greedy[i]);
    EXPECT_GE(best[0][1].get<double>(), best[1][1].get<double>());
    EXPECT_GE(best[1][1].get<double>(), best[2][1].get<double>());
    EXPECT_LE(best[0][1].get<double>(), 0);
  }
  EXPECT_EQ(lines[0]["counters"]["generated_tokens"], 16);
  EXPECT_EQ(lines[0]["counters"]["prompt_tokens"], golden.ids.size());
  EXPECT_GT(lines[0]["timings_ms"]["total"].get<double>(), 0);
}

TEST(EngineRun, ThePromptMayComeFromAnywhere) {
  const TemporaryDirectory folder;
  write_file(folder.path() / "prompt.txt", "refund\n");
  const std::vector<std::string> base =
      with_model("m", "qwen2") + std::vector<std::string>{"--raw", "--max-tokens", "8"};
  const Ended positional = engine_run(base + std::vector<std::string>{"refund"});
  ASSERT_EQ(positional.code, 0) << positional.err;
  EXPECT_EQ(positional.out.back(), '\n');
  EXPECT_EQ(engine_run(base + std::vector<std::string>{"-p", "refund"}).out, positional.out);
  EXPECT_EQ(engine_run(base + std::vector<std::string>{"--prompt", "refund"}).out, positional.out);
  EXPECT_EQ(engine_run(base, "refund\n").out, positional.out);
  EXPECT_EQ(engine_run(base + std::vector<std::string>{"--prompt-file", (folder.path() / "prompt.txt").string()}).out,
            positional.out);
  const Ended session = engine_run(base + std::vector<std::string>{"-i"}, "refund\n\nrefund\n/quit\nnever\n");
  EXPECT_EQ(session.code, 0);
  EXPECT_EQ(session.out, positional.out + positional.out);
}

TEST(EngineRun, AConfigFileHoldsAnyOption) {
  const TemporaryDirectory folder;
  const std::string file = (folder.path() / "run.toml").string();
  write_file(file, "model = [\"m=" + (golden_directory() / "models" / "qwen2").string() +
                       "\"]\ndevice = \"host\"\nkv-tokens = 1024\nbudget = \"1GiB\"\nmax-tokens = 3\nraw = true\n"
                       "json = true\nquiet = true\n");
  const Ended from_file = engine_run({"--config", file, "refund"});
  ASSERT_EQ(from_file.code, 0) << from_file.err;
  EXPECT_EQ(lines_of(from_file.out).at(0)["ids"].size(), 3U);
  const Ended overruled = engine_run({"--config", file, "--max-tokens", "5", "--ignore-end-tokens", "refund"});
  EXPECT_EQ(lines_of(overruled.out).at(0)["ids"].size(), 5U);
  write_file(file, "no-such-option = 3\n");
  EXPECT_EQ(engine_run({"--config", file, "refund"}).code, 1);
}

TEST(EngineRun, TheFastModelAnswersFirstAndTheDeepOneTakesOver) {
  const TemporaryDirectory folder;
  const std::string rules = (folder.path() / "rules.json").string();
  write_file(rules, R"({"threshold": 1, "fast_max_tokens": 4, "deep_max_tokens": 6, "hedge_words": []})");
  const Ended deep = engine_run(
      pair() + std::vector<std::string>{"--raw", "--rules", rules, "--ignore-end-tokens", "--json", "refund"});
  ASSERT_EQ(deep.code, 0) << deep.err;
  const Json answer = lines_of(deep.out).at(0);
  EXPECT_EQ(answer["model"], "kev");
  EXPECT_EQ(answer["ids"].size(), 6U);
  EXPECT_EQ(answer["route"]["escalated"], true);
  EXPECT_EQ(answer["route"]["fast"]["model"], "laya");
  EXPECT_EQ(answer["route"]["fast"]["ids"].size(), 4U);
  EXPECT_NE(answer["route"]["reason"].get<std::string>().find("is below"), std::string::npos);

  write_file(rules, R"({"threshold": 0, "fast_max_tokens": 4, "hedge_words": []})");
  std::vector<std::string> loud = pair();
  loud.erase(std::find(loud.begin(), loud.end(), "-q"));
  const Ended fast = engine_run(loud + std::vector<std::string>{"--raw", "--route", "--rules", rules, "refund"});
  ASSERT_EQ(fast.code, 0) << fast.err;
  EXPECT_NE(fast.err.find("laya: confidence 0."), std::string::npos) << fast.err;
  EXPECT_EQ(fast.err.find('\x1b'), std::string::npos) << "colours on something that is no terminal";
}

TEST(EngineRun, CompareShowsEveryModelAndOnlyAsksOne) {
  const std::vector<std::string> base =
      pair() + std::vector<std::string>{"--raw", "--max-tokens", "5", "--ignore-end-tokens"};
  const std::vector<Json> both =
      lines_of(engine_run(base + std::vector<std::string>{"--compare", "--json", "refund"}).out);
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[0]["model"], "laya");
  EXPECT_EQ(both[1]["model"], "kev");
  const Ended text = engine_run(base + std::vector<std::string>{"--compare", "refund"});
  EXPECT_EQ(text.out,
            "laya:\n" + both[0]["text"].get<std::string>() + "\n\nkev:\n" + both[1]["text"].get<std::string>() + "\n");
  const std::vector<Json> kev =
      lines_of(engine_run(base + std::vector<std::string>{"--only", "kev", "--json", "refund"}).out);
  ASSERT_EQ(kev.size(), 1U);
  EXPECT_EQ(kev[0]["ids"], both[1]["ids"]);
}

TEST(EngineRun, PlansWithoutLoadingAndFromConfigsAlone) {
  const Ended plan = engine_run(pair() + std::vector<std::string>{"--plan"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  for (const char* word : {"laya", "kev", "budget"}) EXPECT_NE(plan.out.find(word), std::string::npos) << plan.out;
  const TemporaryDirectory folder;
  std::filesystem::copy_file(golden_directory() / "models" / "qwen2" / "config.json", folder.path() / "config.json");
  const Ended bare = engine_run({"--device", "host", "--model", "bare=" + folder.path().string(), "--plan"});
  EXPECT_EQ(bare.code, 0) << bare.err;
  EXPECT_NE(bare.out.find("bare"), std::string::npos) << bare.out;
}

TEST(EngineRun, StatsAndReportGoToStandardError) {
  std::vector<std::string> loud = with_model("m", "qwen2");
  loud.erase(std::find(loud.begin(), loud.end(), "-q"));
  const Ended ended =
      engine_run(loud + std::vector<std::string>{"--raw", "--max-tokens", "3", "--stats", "-v", "refund"});
  ASSERT_EQ(ended.code, 0);
  EXPECT_NE(ended.err.find("requests   1"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("model 'm': Qwen2ForCausalLM"), std::string::npos) << ended.err;
  EXPECT_EQ(ended.out.find("requests"), std::string::npos);
}

TEST(EngineRun, ASeedReproducesASampledAnswer) {
  const auto ids = [](const std::string& seed) {
    return lines_of(engine_run(with_model("m", "qwen2") +
                               std::vector<std::string>{"--raw", "--json", "--temperature", "1", "--ignore-end-tokens",
                                                        "--max-tokens", "20", "--seed", seed, "refund"})
                        .out)
        .at(0)["ids"];
  };
  EXPECT_EQ(ids("5"), ids("5"));
  EXPECT_NE(ids("5"), ids("6"));
}

TEST(EngineRun, CtrlCEndsAnAnswerCleanly) {
  Running running(with_model("m", "qwen2") + std::vector<std::string>{"--raw", "--ignore-end-tokens", "--max-tokens",
                                                                      "1000", "--max-length", "1024", "refund"});
  ASSERT_TRUE(running.wait_for_output(1));
  running.signal(SIGINT);
  const Ended ended = running.wait();
  EXPECT_TRUE(ended.code == 7 || ended.code == 0) << ended.code << ": " << ended.err;  // 0: it was done first.
  EXPECT_FALSE(ended.out.empty());
  EXPECT_EQ(ended.out.back(), '\n');
}

}  // namespace
}  // namespace duet::test
