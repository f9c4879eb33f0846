// Tokenizers: switches, gaps, streams, refusals. Expected values are worked out by hand.
#include "engine/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "duet/error.h"
#include "engine/text_stream.h"
#include "loaders/tokenizer_json.h"
#include "tests/support/test_data.h"
#include "tests/tokenizers/tokenizer_support.h"

namespace duet::test {
namespace {

nlohmann::json added(int id, const std::string& content, bool special, bool normalized = false) {
  return {{"id", id}, {"content", content}, {"special", special}, {"normalized", normalized}};
}

/// <0x00> to <0xFF> as ids 0 to 255.
nlohmann::json byte_vocabulary() {
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = byte;
  return vocabulary;
}

nlohmann::json byte_fallback_tokenizer() {
  nlohmann::json vocabulary = byte_vocabulary();
  vocabulary["▁a"] = 300;
  nlohmann::json json = bare_tokenizer(vocabulary, nlohmann::json::array());
  json["model"]["byte_fallback"] = true;
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return json;
}

// ---- switches (O-17) ----

TEST(TokenizerSwitches, IgnoreMergesLooksUpWholePiecesFirst) {
  nlohmann::json json = bare_tokenizer({{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"abc", 4}}, {"a b"});
  EXPECT_EQ(parse(json)->encode("abc", kPlain), (Ids{3, 2}));
  json["model"]["ignore_merges"] = false;
  EXPECT_EQ(parse(json)->encode("abc", kPlain), (Ids{3, 2}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(parse(json)->encode("abc", kPlain), (Ids{4}));
  EXPECT_EQ(parse(json)->encode("abcc", kPlain), (Ids{3, 2, 2}));
}

TEST(TokenizerSwitches, MergesAsStringsAndAsPairs) {
  const nlohmann::json vocabulary = {{"a", 0}, {"b", 1}, {" ", 2}, {"ab", 3}, {"a ", 4}};
  EXPECT_EQ(parse(bare_tokenizer(vocabulary, {"a b"}))->encode("abb", kPlain), (Ids{3, 1}));
  EXPECT_EQ(parse(bare_tokenizer(vocabulary, nlohmann::json::array({{"a", "b"}, {"a", " "}})))->encode("aba b", kPlain),
            (Ids{3, 4, 1}));
}

TEST(TokenizerSwitches, DropoutOfZeroOnly) {
  nlohmann::json json = bare_tokenizer({{"a", 0}}, nlohmann::json::array());
  json["model"]["dropout"] = nullptr;
  EXPECT_NO_THROW(parse(json));
  json["model"]["dropout"] = 0.0;
  EXPECT_NO_THROW(parse(json));
  json["model"]["dropout"] = 0.1;
  EXPECT_THROW(parse(json), Error);
}

/// Equal spellings give equal ids with NFC and different ones without.
TEST(TokenizerSwitches, NfcMakesSpellingsEqual) {
  const std::vector<std::vector<std::string>> equal = {{"e\u0301", "\u00e9"},
                                                       {"\u1100\u1161\u11a8", "\uac01"},
                                                       {"a\u0302\u0323", "a\u0323\u0302", "\u1ead"},
                                                       {"\u212b", "\u00c5"},
                                                       {"\u0958", "\u0915\u093c"}};
  nlohmann::json json = byte_fallback_tokenizer();
  const auto raw = parse(json);
  json["normalizer"] = {{"type", "NFC"}};
  const auto composed = parse(json);
  for (const auto& spellings : equal) {
    for (std::size_t i = 1; i < spellings.size(); ++i) {
      EXPECT_EQ(composed->encode(spellings[0], kPlain), composed->encode(spellings[i], kPlain)) << spellings[i];
      EXPECT_NE(raw->encode(spellings[0], kPlain), raw->encode(spellings[i], kPlain)) << spellings[i];
    }
  }
  EXPECT_EQ(composed->encode("\u0958", kPlain), raw->encode("\u0915\u093c", kPlain));
  EXPECT_EQ(composed->encode("\ufb01", kPlain), raw->encode("\ufb01", kPlain));
}

TEST(TokenizerSwitches, InvalidUtf8IsReadAsReplacementCharacters) {
  const auto tokenizer = parse(byte_fallback_tokenizer());
  const Ids replacement = {0xEF, 0xBF, 0xBD};
  EXPECT_EQ(tokenizer->encode("\xFF", kPlain), replacement);
  EXPECT_EQ(tokenizer->encode("\xE5\xAD", kPlain), replacement);
  EXPECT_EQ(tokenizer->encode("\xED\xA0\x80", kPlain).size(), 9U);  // a surrogate: three broken parts
  const std::vector<TextPart> parts = {{"\xE5", true}, {"\xAD\xA3", false}};
  EXPECT_EQ(tokenizer->encode_parts(parts).size(), 9U);  // bytes of two parts never join to a character
}

// ---- ids beyond (O-16) ----

TEST(TokenizerIds, GapsAndBeyondDecodeToNothing) {
  nlohmann::json json = bare_tokenizer({{"a", 0}, {"b", 7}}, nlohmann::json::array());
  json["decoder"] = {{"type", "Fuse"}};
  json["added_tokens"] = nlohmann::json::array({added(11, "<x>", true)});
  const auto tokenizer = parse(json);
  EXPECT_EQ(tokenizer->vocabulary_size(), 12);
  EXPECT_EQ(tokenizer->decode(Ids{0, 3, 7, 350, -1, 11, 2147483647}, false), "ab<x>");
  EXPECT_EQ(tokenizer->decode(Ids{0, 3, 7, 350, -1, 11}, true), "ab");
  TextStream stream(*tokenizer);
  EXPECT_EQ(stream.push(350), "");
  EXPECT_EQ(stream.push(5), "");
  EXPECT_EQ(stream.push(7), "b");
  EXPECT_EQ(tokenizer->token_of(3), "");
  EXPECT_EQ(tokenizer->token_of(-5), "");
  EXPECT_FALSE(tokenizer->is_special(350));
  EXPECT_EQ(tokenizer->id_of("<x>"), 11);
  EXPECT_EQ(tokenizer->id_of("c"), std::nullopt);
}

// ---- streams (O-21) ----

bool is_valid_utf8(const std::string& text) { return valid_utf8(text) == text; }

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, std::vector<std::string>* deltas = nullptr) {
  TextStream stream(tokenizer);
  std::string text;
  for (const std::int32_t id : ids) {
    const std::string delta = stream.push(id);
    EXPECT_TRUE(is_valid_utf8(delta));
    if (deltas != nullptr) deltas->push_back(delta);
    text += delta;
  }
  const std::string last = stream.finish();
  EXPECT_TRUE(is_valid_utf8(last));
  return text + last;
}

Ids byte_ids(std::string_view text) {
  Ids ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

TEST(TextStream, ACharacterComesOutWithItsLastByte) {
  const auto tokenizer = parse(byte_fallback_tokenizer());
  std::vector<std::string> deltas;
  EXPECT_EQ(streamed(*tokenizer, byte_ids("\xF0\x9F\x8C\x8D"), &deltas), "🌍");
  EXPECT_EQ(deltas, (std::vector<std::string>{"", "", "", "🌍"}));
  const std::string family = "👨‍👩‍👧";
  ASSERT_EQ(family.size(), 18U);
  EXPECT_EQ(streamed(*tokenizer, byte_ids(family)), family);
  EXPECT_EQ(streamed(*tokenizer, byte_ids("季")), "季");
}

/// Byte-level tokens of one, two and five bytes.
TEST(TextStream, PiecesOfSeveralBytes) {
  const std::string family = "👨‍👩‍👧";
  nlohmann::json vocabulary;
  Ids ids;
  for (std::size_t at = 0, size = 1; at < family.size(); at += size, size = size == 1 ? 2 : size == 2 ? 5 : 1) {
    std::string token;
    for (const char byte : family.substr(at, size)) {
      const auto code = static_cast<unsigned char>(byte);
      // Bytes of UTF-8 beyond ASCII: 0x80 to 0xA0 and 0xAD are written from U+0122 on, the others as themselves.
      append_utf8(token, code <= 0xA0   ? char32_t{0x122} + code - 0x80
                         : code == 0xAD ? char32_t{0x143}
                                        : char32_t{code});
    }
    const auto id = static_cast<std::int32_t>(vocabulary.size());
    if (!vocabulary.contains(token)) vocabulary[token] = id;
    ids.push_back(vocabulary[token]);
  }
  nlohmann::json json = bare_tokenizer(vocabulary, nlohmann::json::array());
  json["decoder"] = {{"type", "ByteLevel"}};
  const auto tokenizer = parse(json);
  EXPECT_EQ(streamed(*tokenizer, ids), family);
  EXPECT_EQ(tokenizer->decode(ids, true), family);
}

TEST(TextStream, AnEndInMidCharacterGivesOneReplacement) {
  const auto tokenizer = parse(byte_fallback_tokenizer());
  for (const std::string_view cut : {"\xE5\xAD", "\xF0\x9F\x8C", "\xE5"}) {
    const Ids ids = byte_ids("a" + std::string(cut));
    EXPECT_EQ(streamed(*tokenizer, ids), "a\uFFFD");
    EXPECT_EQ(tokenizer->decode(ids, true), "a\uFFFD");
  }
  // Bytes that can never become a character do not wait, and valid ones around them stay.
  EXPECT_EQ(streamed(*tokenizer, byte_ids("季\xFF季")), "季\uFFFD季");
  EXPECT_EQ(streamed(*tokenizer, Ids{0xE5, 300}), "\uFFFD a");
}

TEST(TextStream, IsFreshAfterFinish) {
  const auto tokenizer = parse(byte_fallback_tokenizer());
  TextStream stream(*tokenizer);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(stream.push(300), "a");  // the leading space is stripped each time
    EXPECT_EQ(stream.push(300), " a");
    EXPECT_EQ(stream.finish(), "");
  }
}

// ---- files that are wrong ----

std::string refusal(const std::string& json, Code code) {
  try {
    loaders::parse_tokenizer_json(json, "bad.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << json.substr(0, 200);
  return {};
}

TEST(TokenizerRefusals, UnknownComponentsByName) {
  for (const auto& [key, type] : std::vector<std::pair<std::string, std::string>>{{"normalizer", "Nmt"},
                                                                                  {"normalizer", "Precompiled"},
                                                                                  {"normalizer", "BertNormalizer"},
                                                                                  {"normalizer", "Fancy"},
                                                                                  {"pre_tokenizer", "UnicodeScripts"},
                                                                                  {"pre_tokenizer", "BertPreTokenizer"},
                                                                                  {"pre_tokenizer", "Fancy"},
                                                                                  {"decoder", "WordPiece"},
                                                                                  {"decoder", "CTC"},
                                                                                  {"post_processor", "Fancy"}}) {
    nlohmann::json json = bare_tokenizer({{"a", 0}}, nlohmann::json::array());
    json[key] = {{"type", type}};
    const std::string what = refusal(json.dump(), Code::unsupported);
    EXPECT_NE(what.find("'" + type + "'"), std::string::npos) << what;
    EXPECT_NE(what.find("bad.json: "), std::string::npos) << what;
    json[key] = {{"type", "Sequence"},
                 {"normalizers", {{{"type", type}}}},
                 {"pretokenizers", {{{"type", type}}}},
                 {"decoders", {{{"type", type}}}},
                 {"processors", {{{"type", type}}}}};
    EXPECT_NE(refusal(json.dump(), Code::unsupported).find("'" + type + "'"), std::string::npos);
  }
  nlohmann::json json = bare_tokenizer({{"a", 0}}, nlohmann::json::array());
  json["model"]["type"] = "Unigram";
  EXPECT_NE(refusal(json.dump(), Code::unsupported).find("Unigram"), std::string::npos);
}

TEST(TokenizerRefusals, ContradictionsNameThePlace) {
  const auto with = [](const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json json = bare_tokenizer({{"a", 0}, {"b", 1}}, nlohmann::json::array());
    json[nlohmann::json::json_pointer(pointer)] = value;
    return refusal(json.dump(), Code::bad_file);
  };
  EXPECT_NE(with("/model/vocab/a", -1).find("bad.json: model.vocab.a is -1"), std::string::npos);
  EXPECT_NE(with("/model/vocab/a", 2147483648).find("16777215"), std::string::npos);
  EXPECT_NE(with("/model/vocab/a", 18446744073709551615U).find("16777215"), std::string::npos);
  EXPECT_NE(with("/model/vocab/a", 1).find("both have id 1"), std::string::npos);
  EXPECT_NE(with("/model/vocab/a", "x").find("model.vocab.a"), std::string::npos);
  EXPECT_NE(with("/model/merges", {"a b"}).find("'ab'"), std::string::npos);
  EXPECT_NE(with("/model/merges", {"a  b"}).find("merges[0]"), std::string::npos);
  EXPECT_NE(with("/model/merges", {{"a"}}).find("merges[0]"), std::string::npos);
  EXPECT_NE(with("/added_tokens", nlohmann::json::array({added(0, "x", false)})).find("belongs to 'a'"),
            std::string::npos);
  EXPECT_NE(with("/added_tokens", nlohmann::json::array({added(5, "a", false)})).find("its id 0"), std::string::npos);
  EXPECT_NE(with("/added_tokens", nlohmann::json::array({added(99999999, "x", false)})).find("added_tokens[0].id"),
            std::string::npos);
  EXPECT_NE(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}).find("one character"),
            std::string::npos);
  EXPECT_NE(with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}}).find("behavior"),
            std::string::npos);
  EXPECT_NE(with("/post_processor", {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "Q"}}}}}}})
                .find("special_tokens"),
            std::string::npos);
  EXPECT_NE(with("/post_processor", {{"type", "BertProcessing"}, {"cls", {"a", 77}}, {"sep", {"b", 1}}}).find("77"),
            std::string::npos);
}

TEST(TokenizerRefusals, BrokenAndHostileJson) {
  EXPECT_NE(refusal(std::string(100'000, '['), Code::bad_file).find("64 levels"), std::string::npos);
  EXPECT_NE(refusal("{\"model\":" + std::string(100'000, '{'), Code::bad_file).find("64 levels"), std::string::npos);
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("null"),
                                  std::string("{\"model\":3}"), std::string("{\"model\":{\"type\":\"BPE\"}}"),
                                  std::string("{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}"),
                                  std::string("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xFF\":0},\"merges\":[]}}")}) {
    refusal(text, Code::bad_file);
  }
}

TEST(TokenizerRefusals, RegularExpressionsThatMeanSomethingElse) {
  for (const std::string pattern :
       {"[a[bc]]", "[a-z&&[^b]]", "(a)\\1", "(?<n>a)", "(*FAIL)", "(?R)", "a{2}+", "(?(1)a)", "[[:alpha:]]",
        "\\p{Alpha}", "(", "\\k<n>", "[", "\\", "\\p{Nonsense}"}) {
    nlohmann::json json = bare_tokenizer({{"a", 0}}, nlohmann::json::array());
    json["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    EXPECT_NE(refusal(json.dump(), Code::unsupported).find("bad.json: pre-tokenizer Split"), std::string::npos)
        << pattern;
  }
}

// ---- tokenizer_config.json ----

TEST(TokenizerConfig, AddsTokensFlagsAndStartTokens) {
  const nlohmann::json base = bare_tokenizer({{"a", 0}, {"<s>", 1}, {"</s>", 2}}, nlohmann::json::array());
  const auto with = [&](const nlohmann::json& config) {
    TokenizerSpec spec = loaders::read_tokenizer_spec(base.dump(), "tokenizer.json");
    loaders::apply_tokenizer_config(spec, config.dump(), "tokenizer_config.json");
    return std::make_shared<const Tokenizer>(std::move(spec));
  };
  const nlohmann::json names = {
      {"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}, {"lstrip", true}}}, {"pad_token", "<pad>"}};
  auto config = names;
  EXPECT_TRUE(with(config)->is_special(1));
  EXPECT_EQ(with(config)->encode("a </s>", kParsed), (Ids{0, 2}));
  EXPECT_EQ(with(config)->id_of("<pad>"), std::nullopt);
  EXPECT_EQ(with(config)->encode("a", {}), (Ids{0}));
  config["add_bos_token"] = true;
  EXPECT_EQ(with(config)->encode("a", {}), (Ids{1, 0}));
  config["add_eos_token"] = true;
  EXPECT_EQ(with(config)->encode("a", {}), (Ids{1, 0, 2}));
  config["bos_token"] = nullptr;
  EXPECT_EQ(with(config)->encode("a", {}), (Ids{0, 2}));
  config["bos_token"] = "<none>";
  EXPECT_THROW(with(config), Error);
  config = names;
  config["added_tokens_decoder"] = {{"9", {{"content", "<tool>"}, {"special", false}}}};
  EXPECT_EQ(with(config)->encode("<tool>", kPlain), (Ids{9}));
  config["chat_template"] = "{{ '<tool>' }}";  // a template that spells it makes it a control token
  EXPECT_NE(with(config)->encode("<tool>", kPlain), (Ids{9}));
  EXPECT_EQ(with(config)->encode("<tool>", kParsed), (Ids{9}));
  config["added_tokens_decoder"] = {{"0", {{"content", "<tool>"}}}};
  EXPECT_THROW(with(config), Error);
  config["added_tokens_decoder"] = {{"-1", {{"content", "<tool>"}}}};
  EXPECT_THROW(with(config), Error);
}

TEST(TokenizerConfig, OfACheckpointFolder) {
  const TemporaryDirectory directory;
  EXPECT_THROW(loaders::load_tokenizer(directory.path()), Error);
  write_file(directory.path() / "tokenizer.json",
             bare_tokenizer({{"a", 0}, {"<s>", 1}}, nlohmann::json::array()).dump());
  EXPECT_EQ(loaders::load_tokenizer(directory.path())->encode("a", {}), (Ids{0}));
  write_file(directory.path() / "tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": true})");
  EXPECT_EQ(loaders::load_tokenizer(directory.path())->encode("a", {}), (Ids{1, 0}));
}

}  // namespace
}  // namespace duet::test
