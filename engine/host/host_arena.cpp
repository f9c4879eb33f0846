#include "engine/host/host_arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>

#include "duet/error.h"
#include "engine/plan.h"

namespace duet::host {
namespace {
constexpr std::size_t kAlignment = std::size_t{2} << 20;
}

HostArena::HostArena(std::size_t bytes) : mapped_bytes_(bytes + kAlignment) {
  mapping_ = mapped_bytes_ < bytes
                 ? MAP_FAILED
                 : mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED)
    throw Error(Code::no_room, fmt::format("The system did not give the arena's {}", human_bytes(bytes)),
                "Close other programs, or choose smaller models, weights of fewer bits or fewer --kv-tokens");
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = static_cast<std::byte*>(mapping_) + (kAlignment - address % kAlignment) % kAlignment;
#if defined(MADV_HUGEPAGE)
  (void)madvise(mapping_, mapped_bytes_, MADV_HUGEPAGE);  // Advice: without it reads only cost more address look-ups.
#endif
}

HostArena::~HostArena() { (void)munmap(mapping_, mapped_bytes_); }

}  // namespace duet::host
