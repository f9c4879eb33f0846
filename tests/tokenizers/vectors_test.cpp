// Real tokenizers against the published vectors of the shared data.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/support/test_data.h"
#include "tests/tokenizers/tokenizer_support.h"

namespace duet::test {
namespace {

std::vector<std::string> split_lines(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  for (std::size_t next = text.find(separator); next != std::string::npos; next = text.find(separator, at)) {
    parts.push_back(text.substr(at, next - at));
    at = next + separator.size();
  }
  parts.push_back(text.substr(at));
  return parts;
}

Ids ids_of(const std::string& line) {
  std::istringstream stream(line);
  Ids ids;
  for (std::int32_t id = 0; stream >> id;) ids.push_back(id);
  return ids;
}

void check_vectors(const std::string& tokenizer_name, const std::string& vectors) {
  DUET_SHARED_TOKENIZER_OR_SKIP(tokenizer, tokenizer_name);
  const auto base = *shared_data_directory() / "tokenizer-vectors" / vectors;
  const auto texts = split_lines(read_file(base.string() + ".inp"), "\n__ggml_vocab_test__\n");
  auto lines = split_lines(read_file(base.string() + ".out"), "\n");
  if (lines.size() == texts.size() + 1 && lines.back().empty()) lines.pop_back();
  ASSERT_EQ(texts.size(), lines.size());
  ASSERT_GE(texts.size(), 46U);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Ids expected = ids_of(lines[i]);
    const Ids ids = tokenizer->encode(texts[i], kPlain);
    EXPECT_EQ(ids, expected) << "text " << i << ": " << texts[i];
    if (tokenizer_name != "qwen3") {  // NFC may change the text on its way
      EXPECT_EQ(tokenizer->decode(ids, false), texts[i]) << "text " << i;
    }
  }
}

TEST(TokenizerVectors, Qwen2) { check_vectors("qwen3", "qwen2"); }
TEST(TokenizerVectors, DeepSeekR1Qwen) { check_vectors("qwen3", "deepseek-r1-qwen"); }
TEST(TokenizerVectors, Gpt2) { check_vectors("gpt2", "gpt-2"); }
TEST(TokenizerVectors, Llama2) { check_vectors("llama2", "llama-spm"); }

TEST(TokenizerVectors, ModernBert) {
  DUET_SHARED_TOKENIZER_OR_SKIP(tokenizer, "modernbert");
  const EncodeOptions options{.add_special_tokens = true, .parse_special_tokens = true};
  EXPECT_EQ(tokenizer->encode("Hello world!", options), (Ids{50281, 12092, 1533, 2, 50282}));
  EXPECT_EQ(tokenizer->encode("The capital of France is [MASK].", options),
            (Ids{50281, 510, 5347, 273, 6181, 310, 50284, 15, 50282}));
  EXPECT_EQ(tokenizer->decode(Ids{50281, 12092, 1533, 2, 50282}, true), "Hello world!");
}

}  // namespace
}  // namespace duet::test
