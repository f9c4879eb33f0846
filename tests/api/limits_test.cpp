#include <gtest/gtest.h>

#include <filesystem>

#include "duet/engine.h"
#include "engine/api/prepare.h"
#include "tests/support/test_data.h"

// O-20: the cap on a text's size holds before anything is tokenized, on every way to the tokenizer. A byte that is no
// UTF-8 at the end of each text says where a refusal came from: the size is looked at first, the text after it.
namespace duet::test {
namespace {

namespace fs = std::filesystem;
using api::kMaxPromptBytes;

Options options_for(const fs::path& model) {
  Options options;
  options.models = {{.name = "m", .path = model.string()}};
  options.device = Device::host;
  options.kv_tokens = 256;
  options.threads = 1;
  return options;
}

std::string text_of(std::size_t bytes, char last) {
  std::string text(bytes, 'a');
  text.back() = last;
  return text;
}

void expect_too_large(Code code, const std::string& message, std::size_t bytes) {
  EXPECT_EQ(code, Code::no_room) << message;
  EXPECT_EQ(message, "The text has " + std::to_string(bytes) + " bytes; at most 16777216 are taken. Shorten it.");
}

void expect_looked_at(Code code, const std::string& message) {
  EXPECT_EQ(code, Code::invalid_argument) << message;
  EXPECT_NE(message.find("not valid UTF-8"), std::string::npos) << message;
}

Answer ask_prompt(Engine& engine, std::string prompt) {
  Request request;
  request.model = "m";
  request.prompt = std::move(prompt);
  return engine.run(request);
}

Answer ask_messages(Engine& engine, std::vector<Message> messages) {
  Request request;
  request.model = "m";
  request.messages = std::move(messages);
  request.max_tokens = 2;
  return engine.run(request);
}

TEST(TextSize, IsCappedBeforeTokenizing) {
  Engine engine = Engine::open(options_for(golden_directory() / "models" / "qwen2"));
  const std::string largest = text_of(kMaxPromptBytes, '\xFF');
  const std::string larger = text_of(kMaxPromptBytes + 1, '\xFF');

  Answer answer = ask_prompt(engine, larger);
  expect_too_large(answer.code, answer.message, kMaxPromptBytes + 1);
  answer = ask_prompt(engine, largest);
  expect_looked_at(answer.code, answer.message);

  answer = ask_messages(engine, {{"user", larger}});
  expect_too_large(answer.code, answer.message, kMaxPromptBytes + 1);
  answer = ask_messages(engine, {{"user", largest}});
  expect_looked_at(answer.code, answer.message);
  answer = ask_messages(engine, {{"system", "a"}, {"user", largest}});
  expect_too_large(answer.code, answer.message, kMaxPromptBytes + 1);

  for (const std::string& text : {largest, larger}) {
    try {
      (void)engine.tokenize("m", text, false);
      FAIL() << "tokenized " << text.size() << " bytes";
    } catch (const Error& error) {
      if (text.size() > kMaxPromptBytes)
        expect_too_large(error.code(), error.what(), text.size());
      else
        expect_looked_at(error.code(), error.what());
    }
  }
  EXPECT_EQ(engine.counters().active_sequences, 0);
}

TEST(TextSize, CountsWhatATemplateMakesOfAChat) {
  const TemporaryDirectory folder;
  fs::copy(golden_directory() / "models" / "qwen2", folder.path() / "m", fs::copy_options::recursive);
  write_file(folder.path() / "m" / "chat_template.jinja",
             "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}");
  Engine engine = Engine::open(options_for(folder.path() / "m"));
  const Answer answer = ask_messages(engine, {{"user", std::string(kMaxPromptBytes / 2 + 1, 'a')}});
  expect_too_large(answer.code, answer.message, kMaxPromptBytes + 2);
  EXPECT_EQ(ask_messages(engine, {{"user", "refund"}}).code, Code::ok);
}

}  // namespace
}  // namespace duet::test
