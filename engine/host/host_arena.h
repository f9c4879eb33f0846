#pragma once

#include <cstddef>

/// The host backend's one allocation.
namespace duet::host {

/// Zeroed memory, aligned to 2 MiB and backed by large pages where the system has them; given back at the end.
class HostArena {
 public:
  explicit HostArena(std::size_t bytes);  ///< Throws Error(no_room) when the system has no such memory.
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  std::byte* data() const { return data_; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace duet::host
