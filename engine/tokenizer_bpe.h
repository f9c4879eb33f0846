#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer_spec.h"

namespace duet {

/// Ids are below this; a larger one in a file is a mistake or an attack, and would only buy memory.
constexpr std::int32_t kMaxTokenIds = 1 << 24;

/// Byte-pair encoding over a vocabulary and ranked merges.
///
/// Merging always takes the pair of lowest rank, the leftmost of equals, until no pair merges: with a heap over a
/// linked list, in n log n.
class BpeModel {
 public:
  /// Throws Error(bad_file): an id out of range or twice, a merge of unknown tokens, ...
  BpeModel(const BpeSpec& spec, std::string_view name);
  BpeModel(const BpeModel&) = delete;
  BpeModel& operator=(const BpeModel&) = delete;

  /// Appends the ids of one piece. With `forbidden` (a flag an id, may be shorter than the vocabulary), no merge and no
  /// whole-piece match gives a flagged id.
  void encode(std::string_view piece, const std::vector<bool>* forbidden, std::vector<std::int32_t>& ids) const;

  std::optional<std::int32_t> id_of(std::string_view token) const;
  std::string_view token_of(std::int32_t id) const;  ///< Empty when there is none.
  std::int32_t id_end() const { return static_cast<std::int32_t>(tokens_.size()); }

 private:
  struct Merge {
    std::uint64_t pair = kNoPair;  // left id << 32 | right id
    std::int32_t rank = 0, result = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};

  void add_token(const std::string& token, std::int32_t id);
  void add_merges(const BpeSpec& spec);
  void add_character(std::string_view character, std::vector<std::int32_t>& symbols, std::int32_t& unknown) const;
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void merge_all(const std::vector<bool>* forbidden, std::vector<std::int32_t>& symbols) const;

  std::string name_;
  std::vector<std::string> tokens_;                         // by id
  std::unordered_map<std::string_view, std::int32_t> ids_;  // views into tokens_
  std::vector<Merge> merges_;                               // open addressing, size a power of two
  std::vector<std::int32_t> byte_ids_;                      // ids of <0x00> to <0xFF>, -1 where absent
  std::vector<std::int32_t> short_ids_;                     // ids of characters below U+0180, -1 where absent
  std::optional<std::string> unknown_token_;
  std::string prefix_, suffix_;
  bool fuse_unknown_ = false, byte_fallback_ = false, ignore_merges_ = false;
};

}  // namespace duet
