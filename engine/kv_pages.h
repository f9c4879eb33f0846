#pragma once

#include <cstdint>
#include <vector>

namespace duet {

/// The pool of KV pages: ids 0 ... count - 1 with reference counts, no bytes. A page is free, held (one or more
/// references) or idle (no reference, not free: its content may still be wanted; see prefix_cache.h).
/// Nothing is allocated after construction. Not thread-safe: the worker owns it.
class KvPages {
 public:
  explicit KvPages(std::int64_t count);

  /// A free page, held once; -1 when none is free. Lowest ids first in a fresh pool.
  std::int32_t take();
  void add_reference(std::int32_t page);
  /// References left. At 0 the page is idle until `free` or `add_reference`.
  int drop_reference(std::int32_t page);
  /// `page` must be idle.
  void free(std::int32_t page);

  int references(std::int32_t page) const { return references_[static_cast<std::size_t>(page)]; }
  std::int64_t count() const { return static_cast<std::int64_t>(references_.size()); }
  std::int64_t free_count() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  std::vector<std::int32_t> references_;
  std::vector<std::int32_t> free_;  ///< A stack.
  std::vector<bool> is_free_;
};

}  // namespace duet
