#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer.h"

/// What the tokenizer tests share.
namespace duet::test {

using Ids = std::vector<std::int32_t>;

/// An xz file of the shared data, unpacked by the program `xz`; empty when the file or the program is absent.
std::optional<std::string> read_xz(const std::string& path_in_shared_data);

/// A real tokenizer of the shared data ("qwen3", "gpt2", "llama2", "modernbert"), read once; null when absent.
std::shared_ptr<const Tokenizer> shared_tokenizer(const std::string& name);

/// tests/golden/data/tokenizers/<name>.
nlohmann::json golden(const std::string& name);

/// A tokenizer.json with the given model and nothing else; change it before parsing.
nlohmann::json bare_tokenizer(const nlohmann::json& vocabulary, const nlohmann::json& merges);

std::shared_ptr<const Tokenizer> parse(const nlohmann::json& json);

constexpr EncodeOptions kPlain{.add_special_tokens = false, .parse_special_tokens = false};
constexpr EncodeOptions kParsed{.add_special_tokens = false, .parse_special_tokens = true};

}  // namespace duet::test

#define DUET_SHARED_TOKENIZER_OR_SKIP(variable, name)                     \
  const auto variable = ::duet::test::shared_tokenizer(name);             \
  if (!variable) {                                                        \
    GTEST_SKIP() << "no tokenizer '" << (name) << "' in the shared data"; \
  }
