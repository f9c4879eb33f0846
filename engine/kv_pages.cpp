// The page pool.
#include "engine/kv_pages.h"

#include <cassert>
#include <cstddef>

namespace duet {

KvPages::KvPages(std::int64_t count)
    : references_(static_cast<std::size_t>(count), 0), is_free_(static_cast<std::size_t>(count), true) {
  free_.reserve(references_.size());
  for (std::int64_t page = count - 1; page >= 0; --page) free_.push_back(static_cast<std::int32_t>(page));
}

std::int32_t KvPages::take() {
  if (free_.empty()) return -1;
  const std::int32_t page = free_.back();
  free_.pop_back();
  is_free_[static_cast<std::size_t>(page)] = false;
  references_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void KvPages::add_reference(std::int32_t page) {
  assert(!is_free_[static_cast<std::size_t>(page)]);
  ++references_[static_cast<std::size_t>(page)];
}

int KvPages::drop_reference(std::int32_t page) {
  assert(references_[static_cast<std::size_t>(page)] > 0);
  return --references_[static_cast<std::size_t>(page)];
}

void KvPages::free(std::int32_t page) {
  assert(references_[static_cast<std::size_t>(page)] == 0 && !is_free_[static_cast<std::size_t>(page)]);
  is_free_[static_cast<std::size_t>(page)] = true;
  free_.push_back(page);
}

}  // namespace duet
