// Byte-pair encoding.
#include "engine/tokenizer_bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>

#include "duet/error.h"
#include "engine/unicode.h"

namespace duet {

namespace {

constexpr std::size_t kShortIds = 0x180;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

std::size_t hash_of(std::uint64_t pair) {
  pair ^= pair >> 29;
  pair *= 0x9E3779B97F4A7C15u;
  return static_cast<std::size_t>(pair ^ (pair >> 32));
}

bool is_forbidden(const std::vector<bool>* forbidden, std::int32_t id) {
  const auto index = static_cast<std::size_t>(id);
  return forbidden != nullptr && index < forbidden->size() && (*forbidden)[index];
}

}  // namespace

BpeModel::BpeModel(const BpeSpec& spec, std::string_view name)
    : name_(name),
      unknown_token_(spec.unknown_token),
      prefix_(spec.continuing_subword_prefix),
      suffix_(spec.end_of_word_suffix),
      fuse_unknown_(spec.fuse_unknown),
      byte_fallback_(spec.byte_fallback),
      ignore_merges_(spec.ignore_merges) {
  std::int32_t end = 0;
  for (const auto& [token, id] : spec.vocabulary) {
    if (id < 0 || id >= kMaxTokenIds) {
      throw Error(Code::bad_file,
                  fmt::format("{}: token '{}' has id {}; ids lie in 0 to {}", name_, token, id, kMaxTokenIds - 1),
                  "Check the vocabulary of the file");
    }
    end = std::max(end, id + 1);
  }
  tokens_.resize(static_cast<std::size_t>(end));
  ids_.reserve(spec.vocabulary.size());
  for (const auto& [token, id] : spec.vocabulary) add_token(token, id);
  add_merges(spec);
  for (int byte = 0; byte < 256; ++byte) byte_ids_.push_back(id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1));
  for (char32_t code = 0; code < kShortIds; ++code) {
    std::string character;
    append_utf8(character, code);
    short_ids_.push_back(id_of(character).value_or(-1));
  }
}

void BpeModel::add_token(const std::string& token, std::int32_t id) {
  if (token.empty()) return;  // never matches anything
  std::string& slot = tokens_[static_cast<std::size_t>(id)];
  if (!slot.empty()) {
    throw Error(Code::bad_file, fmt::format("{}: the tokens '{}' and '{}' both have id {}", name_, slot, token, id),
                "Give every token its own id");
  }
  slot = token;
  if (!ids_.emplace(slot, id).second) {
    throw Error(Code::bad_file, fmt::format("{}: token '{}' stands twice in the vocabulary", name_, token), "Keep one");
  }
}

void BpeModel::add_merges(const BpeSpec& spec) {
  std::size_t size = 16;
  while (size < spec.merges.size() * 2) size *= 2;
  merges_.resize(size);
  for (std::size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    // The continuing prefix of the right half falls away: "a" + "##b" is "ab".
    const std::string result = left + (right.size() >= prefix_.size() ? right.substr(prefix_.size()) : std::string());
    const auto left_id = id_of(left), right_id = id_of(right), result_id = id_of(result);
    if (!left_id || !right_id || !result_id) {
      throw Error(
          Code::bad_file,
          fmt::format("{}: merge {} ('{}' + '{}') needs '{}', which is not in the vocabulary", name_, rank, left, right,
                      !left_id    ? left
                      : !right_id ? right
                                  : result),
          "Check that vocabulary and merges belong together");
    }
    const std::uint64_t pair = pair_of(*left_id, *right_id);
    std::size_t slot = hash_of(pair) & (size - 1);
    while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair) slot = (slot + 1) & (size - 1);
    merges_[slot] = {pair, static_cast<std::int32_t>(rank), *result_id};  // a pair listed twice keeps its last rank
  }
}

const BpeModel::Merge* BpeModel::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  const std::size_t mask = merges_.size() - 1;
  for (std::size_t slot = hash_of(pair) & mask; merges_[slot].pair != kNoPair; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) return &merges_[slot];
  }
  return nullptr;
}

std::optional<std::int32_t> BpeModel::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::string_view BpeModel::token_of(std::int32_t id) const {
  return id >= 0 && id < id_end() ? std::string_view(tokens_[static_cast<std::size_t>(id)]) : std::string_view();
}

void BpeModel::encode(std::string_view piece, const std::vector<bool>* forbidden,
                      std::vector<std::int32_t>& ids) const {
  if (piece.empty()) return;
  if (ignore_merges_) {
    const auto whole = id_of(piece);
    if (whole && !is_forbidden(forbidden, *whole)) {
      ids.push_back(*whole);
      return;
    }
  }
  std::vector<std::int32_t> symbols;
  symbols.reserve(piece.size());
  std::int32_t unknown = -1;  // an unknown token that waits, to be fused with the next one
  std::string decorated;
  for (std::size_t at = 0; at < piece.size();) {
    const Utf8Char c = decode_utf8(piece, at);
    const std::string_view character = piece.substr(at, c.size);
    const bool first = at == 0, last = at + c.size == piece.size();
    at += c.size;
    const bool bare = (first || prefix_.empty()) && (!last || suffix_.empty());
    if (bare && c.code < kShortIds && short_ids_[c.code] >= 0 && unknown < 0) {
      symbols.push_back(short_ids_[c.code]);
      continue;
    }
    decorated.clear();
    if (!first) decorated += prefix_;
    decorated += character;
    if (last) decorated += suffix_;
    add_character(decorated, symbols, unknown);
  }
  if (unknown >= 0) symbols.push_back(unknown);
  merge_all(forbidden, symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

/// The first symbols of one character: its token, else its bytes, else the unknown token. A waiting unknown token stays
/// behind bytes that follow it, as in the reference.
void BpeModel::add_character(std::string_view character, std::vector<std::int32_t>& symbols,
                             std::int32_t& unknown) const {
  if (const auto id = id_of(character)) {
    if (unknown >= 0) symbols.push_back(unknown);
    unknown = -1;
    symbols.push_back(*id);
    return;
  }
  const auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (byte_fallback_ &&
      std::all_of(character.begin(), character.end(), [&](char byte) { return byte_id(byte) >= 0; })) {
    for (const char byte : character) symbols.push_back(byte_id(byte));
    return;
  }
  if (!unknown_token_) return;  // without an unknown token the character is lost, as in the reference
  const auto unknown_id = id_of(*unknown_token_);
  if (!unknown_id) {
    throw Error(Code::bad_file,
                fmt::format("{}: the unknown token '{}' is needed and not in the vocabulary", name_, *unknown_token_),
                "Add it to the vocabulary");
  }
  if (unknown >= 0 && !fuse_unknown_) symbols.push_back(unknown);
  unknown = *unknown_id;
}

void BpeModel::merge_all(const std::vector<bool>* forbidden, std::vector<std::int32_t>& symbols) const {
  constexpr std::size_t kEnd = ~std::size_t{0};
  struct Candidate {
    std::int32_t rank, result;
    std::size_t position;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  if (symbols.size() < 2) return;
  struct Link {
    std::size_t previous, next;
  };
  std::vector<Link> links(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](std::size_t position) {
    const Merge* merge = find_merge(symbols[position], symbols[links[position].next]);
    if (merge != nullptr && !is_forbidden(forbidden, merge->result)) queue.push({merge->rank, merge->result, position});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i)
    links[i] = {i == 0 ? kEnd : i - 1, i + 1 == symbols.size() ? kEnd : i + 1};
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) offer(i);
  constexpr std::int32_t kGone = -1;
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const std::size_t left = best.position;
    if (symbols[left] == kGone || links[left].next == kEnd) continue;
    const std::size_t right = links[left].next;
    const Merge* merge = find_merge(symbols[left], symbols[right]);
    if (merge == nullptr || merge->result != best.result) continue;  // the pair has changed since
    symbols[left] = best.result;
    symbols[right] = kGone;
    links[left].next = links[right].next;
    if (links[right].next != kEnd) links[links[right].next].previous = left;
    if (links[left].previous != kEnd) offer(links[left].previous);
    if (links[left].next != kEnd) offer(left);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kGone), symbols.end());
}

}  // namespace duet
