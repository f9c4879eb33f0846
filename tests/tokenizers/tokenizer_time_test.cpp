// Tokenizing takes time in proportion to the text (O-20), and gives the ids of the slow loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer_bpe.h"
#include "loaders/tokenizer_json.h"
#include "tests/support/test_data.h"
#include "tests/tokenizers/tokenizer_support.h"

namespace duet::test {
namespace {

std::string repeated(std::string_view piece, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += piece;
  return text;
}

std::string random_text(std::string_view alphabet, std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) text += alphabet[random() % alphabet.size()];
  return text;
}

std::string chinese(std::size_t bytes) {
  std::mt19937 random(7);
  std::string text;
  while (text.size() < bytes) append_utf8(text, static_cast<char32_t>(0x4E00 + random() % 3000));
  return text;
}

std::string hostile_text(std::size_t kind, std::size_t bytes) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  switch (kind) {
    case 0:
      return repeated("_", bytes);
    case 1:
      return repeated("a", bytes);
    case 2:
      return random_text(kLetters, bytes, 1);
    case 3:
      return chinese(bytes);
    case 4:
      return random_text(kBase64, bytes, 2);
    case 5:
      return repeated(" ", bytes);
    case 6:
      return repeated("😀", bytes);
    case 7:
      return repeated("e\u0301\u0323", bytes);
    case 8:
      return repeated("\u0301\u0323", bytes);  // one run of marks, to be sorted
    default:
      return repeated("<|im_start|", bytes);
  }
}
constexpr std::size_t kKinds = 10;
constexpr const char* kReal[] = {"qwen3", "gpt2", "llama2", "modernbert"};

double seconds_to_encode(const Tokenizer& tokenizer, const std::string& text) {
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < 3; ++i) {
    const std::clock_t start = std::clock();  // of this process: other programs do not count
    const Ids ids = tokenizer.encode(text, kPlain);
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    EXPECT_FALSE(ids.empty());
  }
  return best;
}

/// Eight times the text may take at most 2.5^3 of the processor time (and a grain for the clock); quadratic time would
/// be 64 times.
TEST(TokenizerTime, GrowsInProportionToTheText) {
  bool any = false;
  for (const std::string name : kReal) {
    const auto tokenizer = shared_tokenizer(name);
    if (!tokenizer) continue;
    any = true;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const double small = seconds_to_encode(*tokenizer, hostile_text(kind, 25'000));
      const double large = seconds_to_encode(*tokenizer, hostile_text(kind, 200'000));
      EXPECT_LE(large, 15.6 * small + 0.02) << name << ", kind " << kind << ": " << small << " s, " << large << " s";
      EXPECT_LE(large, 2.0) << name << ", kind " << kind;
    }
  }
  if (!any) GTEST_SKIP() << "no tokenizers in the shared data";
}

/// The repository's own tokenizers, some of which take the whole text as one piece, and the real ones where they are.
TEST(TokenizerTime, AHundredKilobytesTakeFarLessThanASecond) {
  const nlohmann::json toys = golden("toys.json");
  std::map<std::string, std::shared_ptr<const Tokenizer>> tokenizers;
  for (const auto& [name, json] : toys["bases"].items()) tokenizers["toy " + name] = parse(json);
  for (const std::string name : {"qwen2", "llama_gqa"})
    tokenizers[name] = loaders::load_tokenizer(golden_directory() / "models" / name);
  for (const std::string name : kReal)
    if (const auto tokenizer = shared_tokenizer(name)) tokenizers["real " + name] = tokenizer;
  for (const auto& [name, tokenizer] : tokenizers)
    for (std::size_t kind = 0; kind < kKinds; ++kind)
      EXPECT_LE(seconds_to_encode(*tokenizer, hostile_text(kind, 100'000)), 0.5) << name << ", kind " << kind;
}

/// The loop of the definition: again and again the pair of lowest rank, the leftmost of equals.
Ids slow_merge(std::vector<std::string> symbols, const BpeSpec& spec) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (std::size_t i = 0; i < spec.merges.size(); ++i) ranks[spec.merges[i]] = i;
  while (true) {
    std::size_t best = ranks.size(), at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == ranks.size()) break;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& symbol : symbols) {
    ids.push_back(std::find_if(spec.vocabulary.begin(), spec.vocabulary.end(), [&](const auto& row) {
                    return row.first == symbol;
                  })->second);
  }
  return ids;
}

/// Random vocabularies over two to four letters, where merges overlap all the time.
TEST(TokenizerTime, TheHeapGivesTheIdsOfTheSlowLoop) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    BpeSpec spec;
    const std::string letters = std::string("abcd").substr(0, 2 + seed % 3);
    for (const char letter : letters)
      spec.vocabulary.emplace_back(std::string(1, letter), static_cast<std::int32_t>(spec.vocabulary.size()));
    std::map<std::string, bool> known;
    for (int i = 0; i < 60; ++i) {
      const std::string left = spec.vocabulary[random() % spec.vocabulary.size()].first;
      const std::string right = spec.vocabulary[random() % spec.vocabulary.size()].first;
      if (left.size() + right.size() > 12 || !known.emplace(left + right, true).second) continue;
      spec.merges.emplace_back(left, right);
      spec.vocabulary.emplace_back(left + right, static_cast<std::int32_t>(spec.vocabulary.size()));
    }
    const BpeModel model(spec, "random");
    for (const std::size_t size : {1U, 2U, 3U, 17U, 2000U}) {
      const std::string text = random_text(letters, size, seed * 31 + static_cast<unsigned>(size));
      std::vector<std::string> symbols;
      for (const char letter : text) symbols.emplace_back(1, letter);
      Ids ids;
      model.encode(text, nullptr, ids);
      EXPECT_EQ(ids, slow_merge(std::move(symbols), spec)) << "seed " << seed << ", " << size << " letters";
    }
  }
}

}  // namespace
}  // namespace duet::test
