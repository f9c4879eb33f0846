// What the tokenizer tests share.
#include "tests/tokenizers/tokenizer_support.h"

#include <cstdio>
#include <filesystem>
#include <map>

#include "loaders/tokenizer_json.h"
#include "tests/support/test_data.h"

namespace duet::test {

std::optional<std::string> read_xz(const std::string& path_in_shared_data) {
  const auto directory = shared_data_directory();
  if (!directory || !std::filesystem::exists(*directory / path_in_shared_data)) return std::nullopt;
  const std::string command = "xz -dc '" + (*directory / path_in_shared_data).string() + "' 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string content;
  char buffer[65536];
  for (std::size_t size = fread(buffer, 1, sizeof buffer, pipe); size > 0;
       size = fread(buffer, 1, sizeof buffer, pipe)) {
    content.append(buffer, size);
  }
  if (pclose(pipe) != 0) return std::nullopt;
  return content;
}

std::shared_ptr<const Tokenizer> shared_tokenizer(const std::string& name) {
  static std::map<std::string, std::shared_ptr<const Tokenizer>> known;
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  std::shared_ptr<const Tokenizer> tokenizer;
  if (const auto json = read_xz("tokenizers/" + name + "/tokenizer.json.xz")) {
    tokenizer = loaders::parse_tokenizer_json(*json, name + "/tokenizer.json");
  }
  return known[name] = tokenizer;
}

nlohmann::json golden(const std::string& name) {
  return nlohmann::json::parse(read_file(golden_directory() / "tokenizers" / name));
}

nlohmann::json bare_tokenizer(const nlohmann::json& vocabulary, const nlohmann::json& merges) {
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

std::shared_ptr<const Tokenizer> parse(const nlohmann::json& json) {
  return loaders::parse_tokenizer_json(json.dump(), "toy.json");
}

}  // namespace duet::test
