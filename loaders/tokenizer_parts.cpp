// Normalizers, pre-tokenizers, decoders and post-processors of a tokenizer.json.
#include "loaders/tokenizer_parts.h"

#include <fmt/format.h>

#include "duet/error.h"
#include "engine/tokenizer_bpe.h"

namespace duet::loaders {

namespace {

constexpr int kMaxDepth = 64;

std::string shown(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

[[noreturn]] void refuse_type(const JsonNode& node, std::string_view kind, const std::string& type) {
  throw Error(Code::unsupported,
              fmt::format("{} is the {} '{}', which Duet does not support", node.place(), kind, type),
              "Use a tokenizer without it");
}

TextPattern read_pattern(const JsonNode& node) {
  if (node.json().is_string()) return {node.text(), false};
  if (node.has("Regex")) return {node.text("Regex"), true};
  if (node.has("String")) return {node.text("String"), false};
  node.refuse("{\"String\": ...} or {\"Regex\": ...}");
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string name = node.text();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  node.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

/// `add_prefix_space` is the older spelling: false stands for "never", and must not contradict `prepend_scheme`.
PrependScheme read_prepend_scheme(const JsonNode& node) {
  PrependScheme scheme = PrependScheme::always;
  if (node.has("prepend_scheme")) {
    const std::string name = node.text("prepend_scheme");
    if (name == "first") {
      scheme = PrependScheme::first;
    } else if (name == "never") {
      scheme = PrependScheme::never;
    } else if (name != "always") {
      node.at("prepend_scheme").refuse("first, always or never");
    }
  } else if (!node.boolean_or("add_prefix_space", true)) {
    scheme = PrependScheme::never;
  }
  return scheme;
}

std::int32_t read_id(const JsonNode& node) { return static_cast<std::int32_t>(node.integer(0, kMaxTokenIds - 1)); }

}  // namespace

bool JsonNode::has(const char* key) const {
  if (!value_->is_object()) refuse("an object");
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

JsonNode JsonNode::at(const char* key) const {
  if (!has(key)) {
    throw Error(Code::bad_file, fmt::format("{} has no key '{}'", place(), key),
                "The file is not a complete tokenizer");
  }
  return entry(key, (*value_)[key]);
}

JsonNode JsonNode::entry(const std::string& key, const nlohmann::json& value) const {
  return {value, file_, path_.empty() ? key : fmt::format("{}.{}", path_, key)};
}

std::size_t JsonNode::size() const {
  if (!value_->is_array()) refuse("a list");
  return value_->size();
}

JsonNode JsonNode::item(std::size_t index) const {
  return {(*value_)[index], file_, fmt::format("{}[{}]", path_, index)};
}

std::string JsonNode::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get<std::string>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::int64_t JsonNode::integer(std::int64_t smallest, std::int64_t largest) const {
  const bool fits =
      value_->is_number_integer() &&
      !(value_->is_number_unsigned() && value_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX));
  if (!fits || value_->get<std::int64_t>() < smallest || value_->get<std::int64_t>() > largest) {
    refuse(fmt::format("an integer from {} to {}", smallest, largest));
  }
  return value_->get<std::int64_t>();
}

char32_t JsonNode::character() const {
  const std::string string = text();
  if (string.empty() || decode_utf8(string, 0).size != string.size()) refuse("one character");
  return decode_utf8(string, 0).code;
}

void JsonNode::refuse(std::string_view expected) const {
  throw Error(Code::bad_file, fmt::format("{} is {}; {} was expected", place(), shown(*value_), expected),
              "Check the file");
}

nlohmann::json parse_tokenizer_text(std::string_view json_text, std::string_view name) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json_text.size(); ++i) {
    const char c = json_text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) {
        throw Error(Code::bad_file, fmt::format("{} nests deeper than {} levels at byte {}", name, kMaxDepth, i),
                    "Check the file");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  try {
    return nlohmann::json::parse(json_text);
  } catch (const nlohmann::json::exception& error) {
    throw Error(Code::bad_file, fmt::format("{} is not valid JSON: {}", name, error.what()), "Check the file");
  }
}

/// A "Replace" of a normalizer or a decoder.
void read_replacement(const JsonNode& node, TextPattern& pattern, std::string& content) {
  pattern = read_pattern(node.at("pattern"));
  content = node.text("content");
  if (pattern.is_regex && content.find('$') != std::string::npos) {
    throw Error(
        Code::unsupported,
        fmt::format("{}.content refers to groups of its expression ('$'), which Duet does not support", node.place()),
        "Use a tokenizer without it");
  }
}

void read_normalizer(const JsonNode& node, std::vector<NormalizerStep>& steps) {
  using Kind = NormalizerStep::Kind;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    const JsonNode list = node.at("normalizers");
    for (std::size_t i = 0; i < list.size(); ++i) read_normalizer(list.item(i), steps);
    return;
  }
  NormalizerStep step;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = Kind::unicode;
    step.form = type == "NFC"    ? UnicodeForm::nfc
                : type == "NFD"  ? UnicodeForm::nfd
                : type == "NFKC" ? UnicodeForm::nfkc
                                 : UnicodeForm::nfkd;
  } else if (type == "Lowercase") {
    step.kind = Kind::lower_case;
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    step.content = node.text("prepend");
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    read_replacement(node, step.pattern, step.content);
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.left = node.boolean("strip_left");
    step.right = node.boolean("strip_right");
  } else if (type == "StripAccents") {
    step.kind = Kind::strip_accents;
  } else if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
  } else {
    refuse_type(node, "normalizer", type);
  }
  steps.push_back(std::move(step));
}

void read_pre_tokenizer(const JsonNode& node, std::vector<PreTokenizerStep>& steps) {
  using Kind = PreTokenizerStep::Kind;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    const JsonNode list = node.at("pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i) read_pre_tokenizer(list.item(i), steps);
    return;
  }
  PreTokenizerStep step;
  if (type == "Split") {
    step.kind = Kind::split;
    step.pattern = read_pattern(node.at("pattern"));
    step.behavior = read_behavior(node.at("behavior"));
    step.invert = node.boolean_or("invert", false);
  } else if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
    step.add_prefix_space = node.boolean("add_prefix_space");
    step.use_regex = node.boolean_or("use_regex", true);
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    step.replacement = node.at("replacement").character();
    step.prepend_scheme = read_prepend_scheme(node);
    step.split = node.boolean_or("split", true);
  } else if (type == "Digits") {
    step.kind = Kind::digits;
    step.individual_digits = node.boolean("individual_digits");
  } else if (type == "Punctuation") {
    step.kind = Kind::punctuation;
    if (node.has("behavior")) step.behavior = read_behavior(node.at("behavior"));
  } else if (type == "Whitespace") {
    step.kind = Kind::whitespace;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::whitespace_split;
  } else {
    refuse_type(node, "pre-tokenizer", type);
  }
  steps.push_back(std::move(step));
}

void read_decoder(const JsonNode& node, std::vector<DecoderStep>& steps) {
  using Kind = DecoderStep::Kind;
  constexpr std::int64_t kMaxStrip = 1 << 20;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    const JsonNode list = node.at("decoders");
    for (std::size_t i = 0; i < list.size(); ++i) read_decoder(list.item(i), steps);
    return;
  }
  DecoderStep step;
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Fuse") {
    step.kind = Kind::fuse;
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    read_replacement(node, step.pattern, step.content);
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.character = node.at("content").character();
    step.start = static_cast<std::size_t>(node.at("start").integer(0, kMaxStrip));
    step.stop = static_cast<std::size_t>(node.at("stop").integer(0, kMaxStrip));
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    step.character = node.at("replacement").character();
    step.prepend_scheme = read_prepend_scheme(node);
  } else {
    refuse_type(node, "decoder", type);
  }
  steps.push_back(std::move(step));
}

namespace {

/// TemplateProcessing: `single` holds the sequence A and names of special tokens, `special_tokens` their ids.
SequenceTemplate read_template(const JsonNode& node) {
  SequenceTemplate items;
  const JsonNode single = node.at("single");
  for (std::size_t i = 0; i < single.size(); ++i) {
    const JsonNode item = single.item(i);
    if (item.has("Sequence")) {
      const JsonNode id = item.at("Sequence").at("id");
      if (id.text() != "A") id.refuse("sequence A");
      items.push_back({true, {}});
      continue;
    }
    const std::string name = item.at("SpecialToken").text("id");
    const JsonNode ids = node.at("special_tokens").at(name.c_str()).at("ids");
    TemplateItem made;
    for (std::size_t k = 0; k < ids.size(); ++k) made.ids.push_back(read_id(ids.item(k)));
    items.push_back(std::move(made));
  }
  return items;
}

/// BERT's and RoBERTa's: ["token", id] before and behind.
SequenceTemplate read_surrounding(const JsonNode& node) {
  const auto id_of = [&](const char* key) {
    const JsonNode pair = node.at(key);
    if (pair.size() != 2) pair.refuse("[token, id]");
    return read_id(pair.item(1));
  };
  return {{false, {id_of("cls")}}, {true, {}}, {false, {id_of("sep")}}};
}

}  // namespace

void read_post_processor(const JsonNode& node, std::vector<SequenceTemplate>& templates) {
  const std::string type = node.text("type");
  if (type == "Sequence") {
    const JsonNode list = node.at("processors");
    for (std::size_t i = 0; i < list.size(); ++i) read_post_processor(list.item(i), templates);
  } else if (type == "TemplateProcessing") {
    templates.push_back(read_template(node));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    templates.push_back(read_surrounding(node));
  } else if (type != "ByteLevel") {  // ByteLevel moves offsets only
    refuse_type(node, "post-processor", type);
  }
}

}  // namespace duet::loaders
