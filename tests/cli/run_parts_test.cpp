#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/test_data.h"
#include "tools/run/ask.h"
#include "tools/run/options.h"
#include "tools/run/parse.h"
#include "tools/run/questions.h"
#include "tools/run/report.h"
#include "tools/run/terminal.h"

namespace duet::run {
namespace {

TEST(ParseBytes, KnowsUnits) {
  EXPECT_EQ(parse_bytes("--budget", "6GiB"), std::uint64_t{6} << 30);
  EXPECT_EQ(parse_bytes("--budget", "512 MiB"), std::uint64_t{512} << 20);
  EXPECT_EQ(parse_bytes("--budget", "1.5GiB"), (std::uint64_t{3} << 30) / 2);
  EXPECT_EQ(parse_bytes("--budget", "6GB"), 6000000000U);
  EXPECT_EQ(parse_bytes("--budget", "6442450944"), std::uint64_t{6} << 30);
  EXPECT_EQ(parse_bytes("--budget", "2G"), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("--budget", "4KiB"), 4096U);
  for (const char* bad : {"", "GiB", "6 gibs", "-1GiB", "0", "1e3", "1..5GiB", "99999999TiB", "nan"})
    EXPECT_THROW(parse_bytes("--budget", bad), Error) << bad;
}

TEST(ParseValues, NameWhatIsAllowed) {
  EXPECT_EQ(parse_weight_type("--weights", "nf4"), WeightType::nf4);
  EXPECT_EQ(parse_device("--device", "auto"), Device::automatic);
  EXPECT_EQ(parse_logit_bias("--logit-bias", "12=-5.5").id, 12);
  EXPECT_EQ(parse_logit_bias("--logit-bias", "12=-5.5").bias, -5.5F);
  EXPECT_THROW(parse_logit_bias("--logit-bias", "12"), Error);
  EXPECT_THROW(parse_logit_bias("--logit-bias", "x=1"), Error);
  EXPECT_THROW(parse_int("--block", "6x"), Error);
  try {
    parse_device("--device", "tpu");
    FAIL() << "tpu was taken";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--device is 'tpu'. Give auto, cuda or host.");
  }
}

RunOptions parsed(std::vector<std::string> arguments, int want_code = -1) {
  arguments.insert(arguments.begin(), "engine_run");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  RunOptions options;
  int code = -1;
  testing::internal::CaptureStderr();
  const bool going_on = read_options(static_cast<int>(argv.size()), argv.data(), options, code);
  const std::string errors = testing::internal::GetCapturedStderr();
  EXPECT_EQ(going_on, want_code < 0) << errors;
  EXPECT_EQ(code, want_code) << errors;
  return options;
}

TEST(RunOptions, APairIsRoutedUnlessSaidOtherwise) {
  const std::vector<std::string> pair = {"--kev", "k", "--laya", "l"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), pair.begin(), pair.end());
    return parsed(std::move(more));
  };
  EXPECT_EQ(with({"x"}).mode, Mode::route);
  EXPECT_EQ(with({"--compare", "x"}).mode, Mode::compare);
  EXPECT_EQ(with({"--only", "kev", "x"}).mode, Mode::single);
  EXPECT_EQ(with({"--only", "kev", "x"}).only_model, "kev");
  EXPECT_EQ(parsed({"--kev", "k", "x"}).only_model, "kev");
  EXPECT_EQ(compared_models(with({"--compare", "x"})), (std::vector<std::string>{"laya", "kev"}));
  EXPECT_EQ(with({"--max-tokens", "20", "x"}).rules.deep_max_tokens, 20);
  EXPECT_EQ(with({"--max-tokens", "20", "x"}).rules.fast_max_tokens, 20);
  EXPECT_EQ(with({"--max-tokens", "200", "x"}).rules.fast_max_tokens, 64);
}

TEST(RunOptions, AdaptersAndWeightsReachTheirModels) {
  const RunOptions options = parsed({"--laya",
                                     "l",
                                     "--laya-lora",
                                     "la",
                                     "--kev",
                                     "k",
                                     "--kev-lora",
                                     "ka",
                                     "--model",
                                     "third=t",
                                     "--lora",
                                     "third:extra=ta",
                                     "--lora-scale",
                                     "third:extra=0.5",
                                     "--weights",
                                     "nf4",
                                     "--weights",
                                     "kev=int8",
                                     "--head",
                                     "f16",
                                     "--block",
                                     "kev=32",
                                     "--double-quant=laya=on",
                                     "x",
                                     "--only",
                                     "third"});
  ASSERT_EQ(options.engine.models.size(), 3U);
  const ModelOptions& laya = options.engine.models[0];
  const ModelOptions& kev = options.engine.models[1];
  const ModelOptions& third = options.engine.models[2];
  EXPECT_EQ(laya.adapters.at(0).path, "la");
  EXPECT_EQ(kev.adapters.at(0).name, "kev");
  EXPECT_EQ(third.adapters.at(0).name, "extra");
  EXPECT_EQ(third.adapters.at(0).scale, 0.5);
  EXPECT_EQ(kev.adapters.at(0).scale, 1.0);
  EXPECT_EQ(laya.weights.linear, WeightType::nf4);
  EXPECT_EQ(kev.weights.linear, WeightType::int8);
  EXPECT_EQ(kev.weights.block_size, 32);
  EXPECT_EQ(laya.weights.block_size, 64);
  EXPECT_EQ(third.weights.head, WeightType::f16);
  EXPECT_TRUE(laya.weights.double_quant);
  EXPECT_FALSE(kev.weights.double_quant);
  EXPECT_EQ(options.prompt, "x");
}

TEST(RunOptions, DoubleQuantAloneMeansOn) {
  EXPECT_TRUE(parsed({"--kev", "k", "--double-quant", "x"}).engine.models[0].weights.double_quant);
  EXPECT_FALSE(parsed({"--kev", "k", "--double-quant=off", "x"}).engine.models[0].weights.double_quant);
}

TEST(Questions, ReadEveryField) {
  RunOptions options;
  options.only_model = "m";
  options.system = "brief";
  const Question question = parse_question(
      R"({"id": "a", "prompt": "hi", "model": "k", "adapter": "none", "max_tokens": 3, "temperature": 0.5, "top_k": 2,
          "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.1, "seed": 9, "stop": "x", "logprobs": 2, "priority": -1,
          "deadline": 2.5, "max_length": 10})",
      "in:1", options);
  const Request& request = question.request;
  EXPECT_EQ(question.id_json, "\"a\"");
  EXPECT_EQ(question.mode, Mode::single);
  ASSERT_EQ(request.messages.size(), 2U);
  EXPECT_EQ(request.messages[0].content, "brief");
  EXPECT_EQ(request.messages[1].content, "hi");
  EXPECT_EQ(request.model, "k");
  EXPECT_EQ(request.adapter, "none");
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_k, 2);
  EXPECT_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(request.sampling.seed, 9U);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x"}));
  EXPECT_EQ(request.logprobs, 2);
  EXPECT_EQ(request.priority, -1);
  EXPECT_EQ(request.deadline, 2.5);
  EXPECT_EQ(request.max_length_tokens, 10);
  const Question raw = parse_question(R"({"prompt": "hi", "raw": true, "system": "s"})", "in:1", RunOptions());
  EXPECT_EQ(raw.request.prompt, "hi");
  EXPECT_TRUE(raw.request.messages.empty());
  const Question chat =
      parse_question(R"({"messages": [{"role": "user", "content": "a\u0000b"}], "stop": ["p", "q"]})", "in:1", options);
  EXPECT_EQ(chat.request.messages.at(0).content, std::string("a\0b", 3));
  EXPECT_EQ(chat.request.stop.size(), 2U);
}

TEST(Report, WhateverTheTextTheJsonIsValidUtf8) {
  Answer answer;
  answer.model = "m\xFF";
  answer.text = "a\xC3\x28\n\"\\\x01";
  answer.tokens.push_back({.id = 3, .logprob = -0.5F, .best = {{3, -0.5F}, {4, -1.5F}}});
  const auto json = nlohmann::json::parse(json_of(answer, nullptr, {}));
  EXPECT_EQ(json["text"], "a\uFFFD(\n\"\\\x01");
  EXPECT_EQ(json["logprobs"][0][1][0], 4);
  EXPECT_EQ(json_of(answer, nullptr, {}).find('\n'), std::string::npos);
}

TEST(Report, SaysWhoTookOverAndWhatWasCut) {
  Reply reply;
  reply.routed = true;
  reply.route.fast.model = "laya";
  reply.route.answer.model = "kev";
  reply.route.escalated = true;
  reply.route.reason = "confidence 0.41 is below 0.70";
  reply.answers = {reply.route.answer};
  EXPECT_EQ(remark_on(reply), "kev took over from laya: confidence 0.41 is below 0.70");
  reply.answers[0].cut = {.removed_tokens = 7, .first_removed = 256};
  EXPECT_EQ(remark_on(reply),
            "kev took over from laya: confidence 0.41 is below 0.70; 7 tokens of the prompt were left out, from token "
            "256 on");
}

TEST(Terminal, TheBarShowsRateAndTimeLeft) {
  EXPECT_EQ(progress_text("answering", Progress::Unit::lines, 6, 12, 2.0),
            "answering [############------------] 6/12  2.0/s  0:03 left");
  EXPECT_EQ(progress_text("answering", Progress::Unit::lines, 6, 0, 2.0), "answering 6  2.0/s");
  EXPECT_EQ(progress_text("loading", Progress::Unit::bytes, 0, 1 << 20, 0),
            "loading [------------------------] 0.0 MiB/1.0 MiB");
  EXPECT_EQ(progress_text("answering", Progress::Unit::lines, 1, 7201, 1.0).substr(52), "2:00:00 left");
}

TEST(Terminal, ControlCharactersAreLeftOut) { EXPECT_EQ(without_controls("a\x1b[31mb\r\n\tc\x7f"), "a[31mb\n\tc"); }

}  // namespace
}  // namespace duet::run
