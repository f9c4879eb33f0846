#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

/// The driver's management library (NVML), found at run time: what nvidia-smi shows comes from it.
namespace duet::cuda {

/// Used bytes of the card at `bus_id` ("0000:06:00.0"); empty without the library.
std::optional<std::size_t> used_bytes_of_card(const char* bus_id);
/// Used bytes of this process there; empty when the library does not know this process.
std::optional<std::size_t> used_bytes_of_process(const char* bus_id);

}  // namespace duet::cuda
