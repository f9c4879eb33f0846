#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer_spec.h"

/// Components of a tokenizer.json to plain data.
namespace duet::loaders {

/// A JSON value and where it stands ("tokenizer.json: model.vocab"), so that every complaint says so. A view.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string file, std::string path = {})
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *value_; }
  std::string place() const { return path_.empty() ? file_ : file_ + ": " + path_; }

  bool has(const char* key) const;  ///< Present and not null; the value must be an object.
  JsonNode at(const char* key) const;
  JsonNode item(std::size_t index) const;
  JsonNode entry(const std::string& key, const nlohmann::json& value) const;  ///< Of an object being walked through.
  std::size_t size() const;                                                   ///< Of an array.

  std::string text() const;
  bool boolean() const;
  std::int64_t integer(std::int64_t smallest, std::int64_t largest) const;
  char32_t character() const;  ///< A string of exactly one character.

  std::string text(const char* key) const { return at(key).text(); }
  bool boolean(const char* key) const { return at(key).boolean(); }
  bool boolean_or(const char* key, bool fallback) const { return has(key) ? at(key).boolean() : fallback; }

  /// Error(bad_file): "<place> is <value>; <expected> was expected".
  [[noreturn]] void refuse(std::string_view expected) const;

 private:
  const nlohmann::json* value_;
  std::string file_, path_;
};

/// Parses a text, refusing nesting deeper than 64. `name` is for messages. Throws Error(bad_file).
nlohmann::json parse_tokenizer_text(std::string_view json_text, std::string_view name);

// Each appends the steps of one component (a Sequence gives several). An unknown type is refused by name.
void read_normalizer(const JsonNode& node, std::vector<NormalizerStep>& steps);
void read_pre_tokenizer(const JsonNode& node, std::vector<PreTokenizerStep>& steps);
void read_decoder(const JsonNode& node, std::vector<DecoderStep>& steps);
void read_post_processor(const JsonNode& node, std::vector<SequenceTemplate>& templates);

}  // namespace duet::loaders
