#include "tests/cli/session.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "duet/engine.h"
#include "tests/cli/program.h"
#include "tests/support/test_data.h"

// Sessions of the real program, through pipes and on a terminal: what a person at the keys sees.
namespace duet::test {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> asking(const std::vector<std::string>& more) { return with_model("m", "qwen2") + more; }

/// The same without -q, so that remarks are made.
std::vector<std::string> aloud(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = asking(more);
  std::erase(arguments, "-q");
  return arguments;
}

Engine reference_engine() {
  Options options;
  options.models = {{.name = "m", .path = (golden_directory() / "models" / "qwen2").string()}};
  options.device = Device::host;
  options.kv_tokens = 64;
  return Engine::open(options);
}

std::vector<std::int32_t> ids_of(const Json& ids) { return ids.get<std::vector<std::int32_t>>(); }

/// The last whole line that is shown.
Json last_line(const Session& session) {
  const std::string& shown = session.shown();
  const std::size_t end = shown.rfind('\n');
  const std::size_t begin = shown.rfind("\n", end - 1);
  std::string line = shown.substr(begin == std::string::npos ? 0 : begin + 1, end - begin - 1);
  while (line.starts_with("> ")) line.erase(0, 2);  // The prompt, on a terminal.
  return Json::parse(line);
}

Json ask(Session& session, const std::string& question) {
  session.type(question + "\n");
  EXPECT_TRUE(session.wait_for("}\n")) << session.shown();
  return last_line(session);
}

class Chat : public testing::TestWithParam<Line> {};

TEST_P(Chat, ASessionRemembersWhatWasSaidUntilItIsToldToForget) {
  Session session(GetParam(), asking({"-i", "--chat", "--json", "--max-tokens", "4", "--ignore-end-tokens", "--system",
                                      "Be brief."}));
  const Json first = ask(session, "My card was charged twice");
  const Json second = ask(session, "Twice!");
  session.type("/new\n");
  const Json third = ask(session, "Twice!");
  session.type("/quit\n");
  EXPECT_EQ(session.wait(), 0);

  const Engine engine = reference_engine();
  const auto ids = [&](const std::string& text) { return engine.tokenize("m", text, true); };
  const std::string system = "<|im_start|>system\nBe brief.<|im_end|>\n";
  const std::string asked = "<|im_start|>user\nMy card was charged twice<|im_end|>\n";
  const std::string answered = "<|im_start|>assistant\n" + first["text"].get<std::string>() + "<|im_end|>\n";
  const std::string again = "<|im_start|>user\nTwice!<|im_end|>\n";
  const std::string turn = "<|im_start|>assistant\n";
  EXPECT_EQ(ids_of(first["prompt_ids"]), ids(system + asked + turn));
  EXPECT_EQ(ids_of(second["prompt_ids"]), ids(system + asked + answered + again + turn));
  EXPECT_EQ(ids_of(third["prompt_ids"]), ids(system + again + turn));
  EXPECT_EQ(third["ids"].size(), 4U);
}

TEST_P(Chat, WithoutChatEveryQuestionStandsAlone) {
  Session session(GetParam(), asking({"-i", "--json", "--max-tokens", "4", "--ignore-end-tokens"}));
  const Json first = ask(session, "refund");
  const Json second = ask(session, "refund");
  session.end_input();
  EXPECT_EQ(session.wait(), 0);
  EXPECT_EQ(second["prompt_ids"], first["prompt_ids"]);
  EXPECT_EQ(second["ids"], first["ids"]);
}

TEST_P(Chat, CtrlCEndsTheAnswerAndNotTheSession) {
  Session session(GetParam(), asking({"-i", "--max-tokens", "900", "--ignore-end-tokens"}));
  std::string questions;  // Many, so that one is being answered whenever the signal comes.
  for (int i = 0; i < 100; ++i) questions += "refund\n";
  session.type(questions);
  ASSERT_TRUE(session.wait_for_bytes(20)) << session.shown();
  session.interrupt();
  ASSERT_TRUE(session.wait_for("engine_run: The request was cancelled.\n")) << session.shown();
  session.type("refund\n");  // A terminal forgets what was typed ahead of a Ctrl-C.
  EXPECT_TRUE(session.wait_for_bytes(20)) << "the session ended: " << session.shown();
}

TEST_P(Chat, CtrlCBetweenAnswersEndsTheSession) {
  Session session(GetParam(), asking({"-i"}));
  session.type("/stats\n");
  ASSERT_TRUE(session.wait_for("0 requests, ")) << session.shown();
  session.interrupt();
  EXPECT_EQ(session.wait(), 0) << session.shown();
}

INSTANTIATE_TEST_SUITE_P(Through, Chat, testing::Values(Line::pipe, Line::terminal),
                         [](const auto& line) { return line.param == Line::pipe ? "Pipe" : "Terminal"; });

TEST(ASession, OnATerminalAsksWithAPrompt) {
  Session session(Line::terminal, aloud({"--max-tokens", "2"}));
  ASSERT_TRUE(session.wait_for("Ask; /help says what else there is.")) << session.shown();
  ASSERT_TRUE(session.wait_for("\n> ")) << session.shown();
  session.type("/help\n");
  ASSERT_TRUE(session.wait_for("/quit      end; so does Ctrl-D\n")) << session.shown();
  ASSERT_TRUE(session.wait_for("\n> ")) << session.shown();
  session.type("\n");
  ASSERT_TRUE(session.wait_for("> ")) << session.shown();
  session.end_input();
  EXPECT_EQ(session.wait(), 0);
  EXPECT_TRUE(session.shown().ends_with("> \n")) << session.shown();
}

// The program cannot write, so the first Ctrl-C has nothing that it could end; the second needs nobody's help.
TEST(ASession, ASecondCtrlCEndsTheProgramWith130) {
  Session session(Line::pipe, asking({"-i"}));
  session.type("/help\n");
  ASSERT_TRUE(session.wait_for("or the session.\n")) << session.shown();
  const std::size_t help_bytes = session.shown().size();
  std::string keys;
  for (std::size_t i = 0; i <= kPipeBytes / help_bytes; ++i) keys += "/help\n";
  session.type(keys);
  const std::size_t full = kPipeBytes / help_bytes * help_bytes;  // No room for one more.
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  for (int i = 0; i < 1200 && session.unread() < full; ++i) pause();
  ASSERT_GE(session.unread(), full);
  session.interrupt();
  pause();
  EXPECT_FALSE(session.ended()) << "one Ctrl-C ended a program that had something to write";
  for (int i = 0; i < 1200 && !session.ended(); ++i) {
    session.interrupt();
    pause();
  }
  EXPECT_EQ(session.wait(), 130);
}

bool has_escapes(const std::string& text) { return text.find('\x1b') != std::string::npos; }

std::string shown_on(Line line, const std::vector<std::string>& environment) {
  Session session(line, aloud({"--raw", "--max-tokens", "2", "--stats", "refund"}), environment);
  EXPECT_EQ(session.wait(), 0);
  return session.shown();
}

TEST(Colours, AreOnATerminalOnlyAndNotWhereNoColorIsSet) {
  const std::string coloured = shown_on(Line::terminal, {});
  EXPECT_NE(coloured.find("\x1b[2mloaded in "), std::string::npos) << coloured;
  EXPECT_EQ(coloured.find("\x1b[2mloaded in "), coloured.rfind('\x1b', coloured.find("\x1b[0m") - 1)) << coloured;
  EXPECT_NE(shown_on(Line::terminal, {"NO_COLOR="}).find("\x1b[2m"), std::string::npos) << "empty means not set";
  const std::string plain = shown_on(Line::terminal, {"NO_COLOR=1"});
  EXPECT_NE(plain.find("loaded in "), std::string::npos) << plain;
  EXPECT_FALSE(has_escapes(plain)) << plain;
  const std::string piped = shown_on(Line::pipe, {});
  EXPECT_NE(piped.find("loaded in "), std::string::npos) << piped;
  EXPECT_FALSE(has_escapes(piped)) << piped;
}

}  // namespace
}  // namespace duet::test
