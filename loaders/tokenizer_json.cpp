// tokenizer.json to a Tokenizer.
#include "loaders/tokenizer_json.h"

#include <fmt/format.h>

#include <utility>

#include "duet/error.h"
#include "engine/tokenizer_bpe.h"
#include "loaders/tokenizer_parts.h"

namespace duet::loaders {

namespace {

std::pair<std::string, std::string> read_merge(const JsonNode& node) {
  if (node.json().is_array()) {
    if (node.size() != 2) node.refuse("a pair of tokens");
    return {node.item(0).text(), node.item(1).text()};
  }
  const std::string line = node.text();
  const std::size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
    node.refuse("two tokens with one space between");
  return {line.substr(0, space), line.substr(space + 1)};
}

BpeSpec read_model(const JsonNode& node) {
  // Old files leave the type out; merges tell BPE from the others.
  const std::string type = node.has("type") ? node.text("type") : node.has("merges") ? "BPE" : "unknown";
  if (type != "BPE") {
    throw Error(Code::unsupported, fmt::format("{} is of type {}; Duet knows BPE", node.place(), type),
                "Use a model with a BPE tokenizer");
  }
  BpeSpec model;
  if (node.has("dropout")) {
    const JsonNode dropout = node.at("dropout");
    if (!dropout.json().is_number()) dropout.refuse("a number");
    if (dropout.json().get<double>() != 0) {
      throw Error(
          Code::unsupported,
          fmt::format("{} is {}: merges would be left out at random", dropout.place(), dropout.json().get<double>()),
          "Set it to null");
    }
  }
  if (node.has("unk_token")) model.unknown_token = node.text("unk_token");
  if (node.has("continuing_subword_prefix")) model.continuing_subword_prefix = node.text("continuing_subword_prefix");
  if (node.has("end_of_word_suffix")) model.end_of_word_suffix = node.text("end_of_word_suffix");
  model.fuse_unknown = node.boolean_or("fuse_unk", false);
  model.byte_fallback = node.boolean_or("byte_fallback", false);
  model.ignore_merges = node.boolean_or("ignore_merges", false);

  const JsonNode vocabulary = node.at("vocab");
  if (!vocabulary.json().is_object()) vocabulary.refuse("an object of tokens and ids");
  model.vocabulary.reserve(vocabulary.json().size());
  for (const auto& [token, id] : vocabulary.json().items()) {
    const bool plain = id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(kMaxTokenIds);
    const std::int64_t number =
        plain ? id.get<std::int64_t>() : vocabulary.entry(token, id).integer(0, kMaxTokenIds - 1);
    model.vocabulary.emplace_back(token, static_cast<std::int32_t>(number));
  }
  const JsonNode merges = node.at("merges");
  const std::size_t count = merges.size();
  model.merges.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const nlohmann::json& merge = merges.json()[i];
    if (merge.is_string()) {
      const auto& line = merge.get_ref<const std::string&>();
      if (line.rfind("#version", 0) == 0) continue;
    }
    model.merges.push_back(read_merge(merges.item(i)));
  }
  return model;
}

AddedToken read_added_token(const JsonNode& node) {
  AddedToken token;
  token.id = static_cast<std::int32_t>(node.at("id").integer(0, kMaxTokenIds - 1));
  token.content = node.text("content");
  token.single_word = node.boolean_or("single_word", false);
  token.lstrip = node.boolean_or("lstrip", false);
  token.rstrip = node.boolean_or("rstrip", false);
  token.special = node.boolean_or("special", false);
  token.normalized = node.boolean_or("normalized", !token.special);
  return token;
}

}  // namespace

TokenizerSpec read_tokenizer_spec(std::string_view json_text, std::string_view name) {
  const nlohmann::json json = parse_tokenizer_text(json_text, name);
  const JsonNode root(json, std::string(name));
  TokenizerSpec spec;
  spec.name = name;
  spec.model = read_model(root.at("model"));
  if (root.has("normalizer")) read_normalizer(root.at("normalizer"), spec.normalizers);
  if (root.has("pre_tokenizer")) read_pre_tokenizer(root.at("pre_tokenizer"), spec.pre_tokenizers);
  if (root.has("decoder")) read_decoder(root.at("decoder"), spec.decoders);
  if (root.has("post_processor")) read_post_processor(root.at("post_processor"), spec.post_processors);
  if (root.has("added_tokens")) {
    const JsonNode tokens = root.at("added_tokens");
    for (std::size_t i = 0; i < tokens.size(); ++i) spec.added_tokens.push_back(read_added_token(tokens.item(i)));
  }
  return spec;
}

std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string_view json_text, std::string_view name) {
  return std::make_shared<const Tokenizer>(read_tokenizer_spec(json_text, name));
}

}  // namespace duet::loaders
