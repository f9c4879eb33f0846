// Run time of tokenizers.
#include "engine/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "duet/error.h"
#include "engine/tokenizer_added.h"
#include "engine/tokenizer_bpe.h"
#include "engine/tokenizer_decode.h"
#include "engine/tokenizer_normalize.h"
#include "engine/tokenizer_split.h"

namespace duet {

namespace {

// Marks of the known families that checkpoints do not always flag as special.
constexpr std::string_view kChatMarks[] = {"<think>",         "</think>",         "<tool_call>",     "</tool_call>",
                                           "<tool_response>", "</tool_response>", "<start_of_turn>", "<end_of_turn>",
                                           "[INST]",          "[/INST]",          "<<SYS>>",         "<</SYS>>"};

bool structures_a_chat(const AddedToken& token, const std::string& template_text) {
  const std::string& text = token.content;
  if (text.size() > 4 && text.compare(0, 2, "<|") == 0 && text.compare(text.size() - 2, 2, "|>") == 0) return true;
  if (std::find(std::begin(kChatMarks), std::end(kChatMarks), text) != std::end(kChatMarks)) return true;
  return text.find_first_of("<>[]|") != std::string::npos && template_text.find(text) != std::string::npos;
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(TokenizerSpec spec);

  void encode(const std::string& text, const ByteFlags* flags, bool all_control, std::vector<std::int32_t>& ids) const;
  void encode_normalized(const std::string& text, const ByteFlags* flags, bool all_control, bool at_start,
                         std::vector<std::int32_t>& ids) const;
  std::string_view token_of(std::int32_t id) const;

  std::string name;
  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::shared_ptr<const DecoderChain> decoders;
  std::vector<SequenceTemplate> post_processors;
  std::unordered_map<std::int32_t, std::string> added_tokens;    // by id
  std::unordered_map<std::string_view, std::int32_t> added_ids;  // views into added_tokens
  AddedTokenMatcher raw_matcher, normalized_matcher;
  std::vector<bool> special, control;  // by id
  std::vector<std::int32_t> prefix_ids;
  bool normalized_control = false;  // some control token is looked for in normalized text
  std::int32_t id_end = 0;

 private:
  void add_tokens(const std::vector<AddedToken>& tokens, const std::string& template_text);
  void check_post_processors();
};

Tokenizer::Parts::Parts(TokenizerSpec spec)
    : name(std::move(spec.name)),
      model(spec.model, name),
      normalizer(std::move(spec.normalizers), name),
      pre_tokenizer(std::move(spec.pre_tokenizers), name),
      decoders(DecoderChain::compile(std::move(spec.decoders), name)),
      post_processors(std::move(spec.post_processors)) {
  add_tokens(spec.added_tokens, spec.template_text);
  check_post_processors();
}

void Tokenizer::Parts::add_tokens(const std::vector<AddedToken>& tokens, const std::string& template_text) {
  id_end = model.id_end();
  for (const AddedToken& token : tokens) {
    if (token.id < 0 || token.id >= kMaxTokenIds) {
      throw Error(Code::bad_file,
                  fmt::format("{}: the added token '{}' has id {}; ids lie in 0 to {}", name, token.content, token.id,
                              kMaxTokenIds - 1),
                  "Check added_tokens of the file");
    }
    id_end = std::max(id_end, token.id + 1);
  }
  special.assign(static_cast<std::size_t>(id_end), false);
  control.assign(static_cast<std::size_t>(id_end), false);
  std::vector<AddedTokenMatcher::Entry> raw, normalized;
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const auto known = model.id_of(token.content);
    const std::string_view holder = model.token_of(token.id);
    const auto [slot, fresh] = added_tokens.emplace(token.id, token.content);
    if ((known && *known != token.id) || (!holder.empty() && holder != token.content) || !fresh) {
      throw Error(Code::bad_file,
                  fmt::format("{}: the added token '{}' claims id {}, which {}", name, token.content, token.id,
                              known && *known != token.id
                                  ? fmt::format("contradicts its id {} in the vocabulary", *known)
                                  : fmt::format("belongs to '{}'", fresh ? holder : std::string_view(slot->second))),
                  "Give every token its own id");
    }
    if (!added_ids.emplace(slot->second, token.id).second) {
      throw Error(Code::bad_file, fmt::format("{}: the added token '{}' stands twice", name, token.content),
                  "Keep one");
    }
    const auto index = static_cast<std::size_t>(token.id);
    special[index] = token.special;
    control[index] = token.special || structures_a_chat(token, template_text);
    AddedTokenMatcher::Entry entry{token.content, token.id,     token.single_word,
                                   token.lstrip,  token.rstrip, control[index]};
    if (!token.normalized) {
      raw.push_back(std::move(entry));
    } else {
      normalizer.apply(entry.content, nullptr);
      normalized_control = normalized_control || control[index];
      normalized.push_back(std::move(entry));
    }
  }
  raw_matcher = AddedTokenMatcher(std::move(raw));
  normalized_matcher = AddedTokenMatcher(std::move(normalized));
}

void Tokenizer::Parts::check_post_processors() {
  for (const SequenceTemplate& items : post_processors) {
    std::size_t sequences = 0;
    std::vector<std::int32_t> before;
    for (const TemplateItem& item : items) {
      sequences += item.is_sequence ? 1 : 0;
      for (const std::int32_t id : item.ids) {
        if (token_of(id).empty()) {
          throw Error(Code::bad_file, fmt::format("{}: the post-processor adds id {}, which is no token", name, id),
                      "Check post_processor of the file");
        }
        if (sequences == 0) before.push_back(id);
      }
    }
    if (sequences != 1) {
      throw Error(Code::unsupported, fmt::format("{}: the post-processor holds the sequence {} times", name, sequences),
                  "A template must hold it once");
    }
    prefix_ids.insert(prefix_ids.begin(), before.begin(), before.end());  // a later one stands around the earlier
  }
}

std::string_view Tokenizer::Parts::token_of(std::int32_t id) const {
  const auto added = added_tokens.find(id);
  return added != added_tokens.end() ? std::string_view(added->second) : model.token_of(id);
}

/// `flags` null: control tokens are found everywhere (`all_control`) or nowhere; else where the flags allow them.
void Tokenizer::Parts::encode(const std::string& text, const ByteFlags* flags, bool all_control,
                              std::vector<std::int32_t>& ids) const {
  const AddedTokenMatcher::Permission permission{flags, all_control};
  for (const AddedTokenMatcher::Stretch& stretch : raw_matcher.split(text, permission)) {
    const ByteRange range = stretch.range;
    if (stretch.id >= 0) {
      ids.push_back(stretch.id);
      continue;
    }
    std::string piece = text.substr(range.begin, range.end - range.begin);
    if (flags != nullptr && normalized_control) {
      ByteFlags piece_flags = flags->substr(range.begin, range.end - range.begin);
      normalizer.apply(piece, &piece_flags);
      encode_normalized(piece, &piece_flags, false, range.begin == 0, ids);
    } else {
      normalizer.apply(piece, nullptr);
      encode_normalized(piece, nullptr, all_control && flags == nullptr, range.begin == 0, ids);
    }
  }
}

void Tokenizer::Parts::encode_normalized(const std::string& text, const ByteFlags* flags, bool all_control,
                                         bool at_start, std::vector<std::int32_t>& ids) const {
  const std::vector<bool>* forbidden = all_control ? nullptr : &control;
  for (const AddedTokenMatcher::Stretch& stretch : normalized_matcher.split(text, {flags, all_control})) {
    const ByteRange range = stretch.range;
    if (stretch.id >= 0) {
      ids.push_back(stretch.id);
      continue;
    }
    const SplitText split_text =
        pre_tokenizer.apply(text.substr(range.begin, range.end - range.begin), at_start && range.begin == 0);
    for (const ByteRange& piece : split_text.pieces) {
      model.encode(std::string_view(split_text.text).substr(piece.begin, piece.end - piece.begin), forbidden, ids);
    }
  }
}

Tokenizer::Tokenizer(TokenizerSpec spec) : parts_(std::make_unique<const Parts>(std::move(spec))) {}
Tokenizer::~Tokenizer() = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<std::int32_t> ids;
  parts_->encode(valid_utf8(text), nullptr, options.parse_special_tokens, ids);
  if (!options.add_special_tokens) return ids;
  for (const SequenceTemplate& items : parts_->post_processors) {
    std::vector<std::int32_t> all;
    for (const TemplateItem& item : items) {
      const std::vector<std::int32_t>& added = item.is_sequence ? ids : item.ids;
      all.insert(all.end(), added.begin(), added.end());
    }
    ids = std::move(all);
  }
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_parts(std::span<const TextPart> parts) const {
  std::string text;
  ByteFlags flags;
  for (const TextPart& part : parts) {
    text += valid_utf8(part.text);
    flags.resize(text.size(), part.is_template ? '\1' : '\0');
  }
  std::vector<std::int32_t> ids;
  parts_->encode(text, &flags, false, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  DecodeStream stream = decode_stream();
  for (const std::int32_t id : ids) {
    const std::string_view token = token_of(id);
    if (token.empty() || (skip_special_tokens && is_special(id))) continue;
    stream.push(token, text);
  }
  stream.finish(text);
  return text;
}

DecodeStream Tokenizer::decode_stream() const { return DecodeStream(parts_->decoders); }

std::int32_t Tokenizer::vocabulary_size() const { return parts_->id_end; }

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto added = parts_->added_ids.find(token);
  return added != parts_->added_ids.end() ? std::optional(added->second) : parts_->model.id_of(token);
}

std::string_view Tokenizer::token_of(std::int32_t id) const { return parts_->token_of(id); }

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < parts_->id_end && parts_->special[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_control(std::int32_t id) const {
  return id >= 0 && id < parts_->id_end && parts_->control[static_cast<std::size_t>(id)];
}

std::span<const std::int32_t> Tokenizer::prefix_ids() const { return parts_->prefix_ids; }

}  // namespace duet
