// Tokenizers against the reference's ids and texts (tests/golden/make_tokenizer_golden.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "engine/text_stream.h"
#include "engine/tokenizer_normalize.h"
#include "loaders/tokenizer_json.h"
#include "tests/support/test_data.h"
#include "tests/tokenizers/tokenizer_support.h"

namespace duet::test {
namespace {

nlohmann::json patched(nlohmann::json base, const nlohmann::json& patch) {
  for (const auto& [key, value] : patch.items()) {
    if (key == "model") {
      base["model"].update(value);
    } else {
      base[key] = value;
    }
  }
  return base;
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special_tokens) {
  TextStream stream(tokenizer, skip_special_tokens);
  std::string text;
  for (const std::int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

void check_toy(const nlohmann::json& toy, const Tokenizer& tokenizer, const nlohmann::json& texts) {
  for (const auto& row : toy["cases"]) {
    const std::string text = texts[row[0].get<std::size_t>()];
    const Ids expected = row[1];
    EXPECT_EQ(tokenizer.encode(text, kParsed), expected) << "text: '" << text << "'";
    if (row.size() > 2) {
      const Ids plain = row[2].is_null() ? expected : row[2].get<Ids>();
      EXPECT_EQ(tokenizer.encode(text, kPlain), plain) << "special tokens as text: '" << text << "'";
    }
  }
  for (const auto& row : toy["decoded"]) {
    const Ids ids = row[0];
    const std::string text = row[1], skipped = row.size() > 2 ? row[2] : row[1];
    EXPECT_EQ(tokenizer.decode(ids, false), text);
    EXPECT_EQ(tokenizer.decode(ids, true), skipped);
    EXPECT_EQ(streamed(tokenizer, ids, false), text);
    EXPECT_EQ(streamed(tokenizer, ids, true), skipped);
  }
  if (toy.contains("with_special")) {
    for (const auto& row : toy["with_special"]) {
      const EncodeOptions options{.add_special_tokens = true, .parse_special_tokens = true};
      EXPECT_EQ(tokenizer.encode(row[0].get<std::string>(), options), row[1].get<Ids>());
    }
  }
}

TEST(TokenizerGolden, EveryComponentGivesTheReferencesIdsAndTexts) {
  const nlohmann::json data = golden("toys.json");
  std::size_t cases = 0;
  for (const auto& toy : data["toys"]) {
    SCOPED_TRACE(toy["name"].get<std::string>());
    const nlohmann::json json = patched(data["bases"][toy["base"].get<std::string>()], toy["patch"]);
    check_toy(toy, *parse(json), data["texts"]);
    cases += toy["cases"].size();
  }
  EXPECT_GT(cases, 3000U);
}

TEST(TokenizerGolden, RealTokenizersOnAMixedCorpus) {
  const nlohmann::json data = golden("real.json");
  std::size_t found = 0;
  for (const auto& [name, ids] : data["ids"].items()) {
    const auto tokenizer = shared_tokenizer(name);
    if (!tokenizer) continue;
    ++found;
    SCOPED_TRACE(name);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string text = data["texts"][i];
      const Ids expected = ids[i];
      EXPECT_EQ(tokenizer->encode(text, kParsed), expected) << text;
      EXPECT_EQ(streamed(*tokenizer, expected, false), tokenizer->decode(expected, false)) << text;
    }
  }
  if (found == 0) GTEST_SKIP() << "no tokenizers in the shared data";
}

/// The tokenizers of the golden checkpoints, read as an engine reads them, on the prompts whose text is stored.
TEST(TokenizerGolden, TokenizersOfTheGoldenCheckpoints) {
  std::size_t prompts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden_directory() / "models")) {
    if (!std::filesystem::exists(entry.path() / "tokenizer.json")) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const auto tokenizer = loaders::load_tokenizer(entry.path());
    const auto expected = nlohmann::json::parse(read_file(entry.path() / "expected.json"));
    for (const auto& prompt : expected["prompts"]) {
      if (!prompt.contains("text")) continue;
      const EncodeOptions options{.add_special_tokens = true, .parse_special_tokens = true};
      EXPECT_EQ(tokenizer->encode(prompt["text"].get<std::string>(), options), prompt["ids"].get<Ids>());
      ++prompts;
    }
  }
  EXPECT_GT(prompts, 10U);
}

std::uint64_t fnv1a(std::string_view bytes, std::uint64_t value) {
  for (const char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001B3U;
  return value;
}

/// Every character of Unicode between "a" and U+0301, through each normalizer, against hashes of the reference's texts.
TEST(TokenizerGolden, NormalizersOnAllOfUnicode) {
  const nlohmann::json data = golden("unicode.json");
  const auto block = data["block"].get<char32_t>();
  const std::set<std::uint32_t> young = data["young"];
  for (const auto& [name, hashes] : data["hashes"].items()) {
    TokenizerSpec spec = loaders::read_tokenizer_spec(
        patched(bare_tokenizer({{"a", 0}}, nlohmann::json::array()), {{"normalizer", {{"type", name}}}}).dump(), name);
    const Normalizer normalizer(std::move(spec.normalizers), name);
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      std::uint64_t value = 0xCBF29CE484222325U;
      for (char32_t code = static_cast<char32_t>(i) * block; code < static_cast<char32_t>(i + 1) * block; ++code) {
        if ((code >= 0xD800 && code < 0xE000) || young.count(code) > 0) continue;
        std::string text = "a";
        append_utf8(text, code);
        append_utf8(text, 0x301);
        ByteFlags flags(text.size(), '\1');
        normalizer.apply(text, code % 2 == 0 ? &flags : nullptr);
        value = fnv1a(text, value);
      }
      EXPECT_EQ(fmt::format("{:016x}", value), hashes[i].get<std::string>()) << name << ", block " << i;
    }
  }
}

}  // namespace
}  // namespace duet::test
