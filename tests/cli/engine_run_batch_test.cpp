#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/support/test_data.h"

// engine_run --input x.jsonl --output y.jsonl: order, bad lines, going on after a stop.
namespace duet::test {
namespace {

using Json = nlohmann::ordered_json;

class Batch : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  void input(const std::string& text) { write_file(file("in.jsonl"), text); }

  std::vector<std::string> arguments(const std::vector<std::string>& more = {}) const {
    return with_model("m", "qwen2") +
           std::vector<std::string>{"--raw",   "--ignore-end-tokens", "--max-tokens", "6",
                                    "--input", file("in.jsonl"),      "--output",     file("out.jsonl")} +
           more;
  }
  std::vector<Json> answers() const {
    std::vector<Json> lines;
    std::istringstream in(read_file(file("out.jsonl")));
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  // What must not depend on when and how often the program ran.
  static std::vector<Json> essence(std::vector<Json> lines) {
    for (Json& line : lines) {
      line.erase("timings_ms");
      line.erase("counters");
    }
    return lines;
  }

  TemporaryDirectory folder_;
};

TEST_F(Batch, AnswersKeepTheOrderAndCarryIds) {
  std::string text;
  for (int i = 0; i < 20; ++i)
    text += Json{{"id", "q" + std::to_string(i)}, {"prompt", "refund " + std::to_string(i)}}.dump() + "\n";
  input(text + "\n" + R"({"prompt_ids": [1, 2, 3], "max_tokens": 2, "logprobs": 2})" + "\r\n");
  const Ended ended = engine_run(arguments());
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
  EXPECT_EQ(ended.out, "");
  const std::vector<Json> lines = answers();
  ASSERT_EQ(lines.size(), 21U);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(lines[i]["line"], i + 1);
    EXPECT_EQ(lines[i]["id"], "q" + std::to_string(i));
    EXPECT_EQ(lines[i]["ids"].size(), 6U);
    EXPECT_FALSE(lines[i].contains("error"));
  }
  EXPECT_EQ(lines[20]["line"], 22);
  EXPECT_FALSE(lines[20].contains("id"));
  EXPECT_EQ(lines[20]["ids"].size(), 2U);
  EXPECT_EQ(lines[20]["logprobs"][1].size(), 2U);
}

TEST_F(Batch, ALineMaySetWhatTheFlagsSet) {
  input(R"({"prompt": "one", "max_tokens": 3, "logit_bias": {"70": 1000}, "ignore_end_tokens": true})"
        "\n"
        R"({"prompt": "one two three four", "max_length": 4, "length_policy": "truncate", "max_tokens": 2})"
        "\n"
        R"({"prompt": "one", "logit_bias": {"seventy": 1}})"
        "\n"
        R"({"prompt": "one", "length_policy": "shorten"})"
        "\n");
  const Ended ended = engine_run(arguments());
  EXPECT_NE(ended.err.find("seventy"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("line 3 is skipped"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("line 4 is skipped"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("shorten"), std::string::npos) << ended.err;
  const std::vector<Json> lines = answers();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["ids"], Json({70, 70, 70}));
  EXPECT_EQ(lines[1]["counters"]["prompt_tokens"], 4);
  EXPECT_GT(lines[1]["counters"]["removed_tokens"], 0);
}

TEST_F(Batch, BadLinesAreNamedAndSkippedAndTheRestIsAnswered) {
  const std::string deep = R"({"prompt": "x", "stop": )" + std::string(100000, '[') + "\n";
  input(R"({"prompt": "one"})"
        "\n"
        "{not json}\n"
        R"({"prompt": "three", "max_tokns": 4})"
        "\n"
        R"({"id": 4})"
        "\n" +
        deep +
        R"({"prompt": "\ud83d"})"
        "\n"
        "{\"prompt\": \"\xC3\x28\"}\n"
        R"({"prompt": "x", "max_tokens": "5"})"
        "\n"
        R"({"prompt": "x", "max_tokens": 1e18})"
        "\n"
        R"({"prompt": "x", "prompt_ids": [1]})"
        "\n"
        R"(["prompt"])"
        "\n"
        R"({"prompt": "x", "prompt": "y"})"
        "\n"
        R"({"prompt": "thirteen"})"
        "\n");
  const Ended ended = engine_run(arguments());
  EXPECT_EQ(ended.code, 3);
  for (int line = 2; line <= 12; ++line)
    EXPECT_NE(ended.err.find("line " + std::to_string(line) + " is skipped"), std::string::npos) << line << ended.err;
  EXPECT_NE(ended.err.find("'max_tokens'"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("'prompt' twice"), std::string::npos) << ended.err;
  const std::vector<Json> lines = answers();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["line"], 1);
  EXPECT_EQ(lines[1]["line"], 13);
}

TEST_F(Batch, EscapesAreDecodedBeforeTokenizing) {  // O-23
  input(R"({"prompt": "caf\u00e9 \ud83c\udf0d"})"
        "\n"
        R"({"prompt": "café 🌍"})"
        "\n"
        R"({"prompt": "cafe"})"
        "\n");
  ASSERT_EQ(engine_run(arguments()).code, 0);
  const std::vector<Json> lines = answers();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["prompt_ids"], lines[1]["prompt_ids"]);
  EXPECT_NE(lines[0]["prompt_ids"], lines[2]["prompt_ids"]);
}

TEST_F(Batch, AFailedRequestIsALineWithAnError) {
  input(R"({"prompt": "one"})"
        "\n"
        R"({"prompt": "two", "model": "n"})"
        "\n"
        R"({"prompt": "three", "top_p": 3})"
        "\n"
        R"({"prompt": "four"})"
        "\n");
  const Ended ended = engine_run(arguments());
  EXPECT_EQ(ended.code, 2);
  const std::vector<Json> lines = answers();
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[1]["error"]["code"], "not_found");
  EXPECT_EQ(lines[2]["error"]["code"], "invalid_argument");
  EXPECT_EQ(lines[2]["finish"], "error");
  EXPECT_FALSE(lines[3].contains("error"));
}

TEST_F(Batch, ASecondRunAsksOnlyWhatIsMissing) {
  std::string text;
  for (int i = 0; i < 6; ++i) text += Json{{"id", i}, {"prompt", "refund " + std::to_string(i)}}.dump() + "\n";
  input(text);
  ASSERT_EQ(engine_run(arguments()).code, 0);
  const std::string whole = read_file(file("out.jsonl"));
  const std::vector<Json> want = essence(answers());

  ASSERT_EQ(engine_run(arguments()).code, 0);
  EXPECT_EQ(read_file(file("out.jsonl")), whole) << "a second run changed a complete output";

  // Cut in the middle of a line, at every kind of place.
  for (const std::size_t keep :
       {whole.size() - 1, whole.size() - 7, whole.size() / 2, std::size_t{5}, std::size_t{0}}) {
    write_file(file("out.jsonl"), whole.substr(0, keep));
    const Ended ended = engine_run(arguments());
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(essence(answers()), want) << keep;
    const std::size_t kept = whole.substr(0, keep).rfind('\n');
    if (kept == std::string::npos) continue;
    EXPECT_EQ(read_file(file("out.jsonl")).substr(0, kept), whole.substr(0, kept));
  }
}

TEST_F(Batch, AnOutputOfSomethingElseIsNotTouched) {
  input(R"({"id": "a", "prompt": "one"})"
        "\n");
  write_file(file("out.jsonl"), "precious notes\nmore\n");
  EXPECT_EQ(engine_run(arguments()).code, 3);
  EXPECT_EQ(read_file(file("out.jsonl")), "precious notes\nmore\n");
  const std::string other = R"({"line":1,"id":"b","model":"m"})"
                            "\n";
  write_file(file("out.jsonl"), other);
  const Ended ended = engine_run(arguments());
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("\"b\""), std::string::npos) << ended.err;
  EXPECT_EQ(read_file(file("out.jsonl")), other);
}

TEST_F(Batch, CtrlCLeavesWholeLinesToGoOnFrom) {
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += Json{{"id", i}, {"prompt", "refund " + std::to_string(i)}, {"max_tokens", 300}}.dump() + "\n";
  input(text);
  Running running(with_model("m", "qwen2") + std::vector<std::string>{"--raw", "--ignore-end-tokens", "--max-sequences",
                                                                      "2", "--input", file("in.jsonl")});
  ASSERT_TRUE(running.wait_for_output(100));
  running.signal(SIGINT);
  const Ended ended = running.wait();
  ASSERT_TRUE(ended.code == 7 || ended.code == 0) << ended.code << ended.err;
  ASSERT_FALSE(ended.out.empty());
  EXPECT_EQ(ended.out.back(), '\n');
  write_file(file("out.jsonl"), ended.out);
  std::size_t number = 0;
  for (const Json& line : answers()) EXPECT_EQ(line["line"], ++number);
  ASSERT_EQ(engine_run(arguments()).code, 0);
  const std::vector<Json> lines = answers();
  ASSERT_EQ(lines.size(), 60U);
  for (std::size_t i = 0; i < 60; ++i) {
    EXPECT_EQ(lines[i]["line"], i + 1);
    EXPECT_EQ(lines[i]["ids"].size(), 300U);
  }
}

TEST_F(Batch, RoutesAndComparesLines) {
  input(R"({"id": 1, "prompt": "refund"})"
        "\n");
  const std::vector<std::string> pair = std::vector<std::string>{"--device",
                                                                 "host",
                                                                 "--budget",
                                                                 "1GiB",
                                                                 "--kv-tokens",
                                                                 "1024",
                                                                 "-q",
                                                                 "--raw",
                                                                 "--max-tokens",
                                                                 "4",
                                                                 "--ignore-end-tokens",
                                                                 "--input",
                                                                 file("in.jsonl"),
                                                                 "--output",
                                                                 file("out.jsonl")} +
                                        with_model("--laya", "qwen2") + with_model("--kev", "llama_gqa");
  const Ended routed = engine_run(pair);
  ASSERT_EQ(routed.code, 0) << routed.err;
  EXPECT_TRUE(answers().at(0)["route"].is_object());
  std::filesystem::remove(file("out.jsonl"));
  const Ended compared = engine_run(pair + std::vector<std::string>{"--compare"});
  ASSERT_EQ(compared.code, 0) << compared.err;
  const Json line = answers().at(0);
  ASSERT_EQ(line["answers"].size(), 2U);
  EXPECT_EQ(line["answers"][0]["model"], "laya");
  EXPECT_EQ(line["answers"][1]["model"], "kev");
  EXPECT_EQ(line["id"], 1);
}

TEST_F(Batch, StandardInputAndOutputServeToo) {
  const Ended ended =
      engine_run(with_model("m", "qwen2") + std::vector<std::string>{"--raw", "--max-tokens", "2", "--input", "-"},
                 R"({"prompt": "refund"})"
                 "\n");
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(Json::parse(ended.out)["line"], 1);
}

}  // namespace
}  // namespace duet::test
