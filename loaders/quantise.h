#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "engine/weights.h"

/// Float matrices to any storage: converting to 16 bit and quantising to blocks, streamed in bounded memory.
///
/// What equals bitsandbytes 0.50 (CPU backend) to the last bit:
///   nf4, fp4        every code byte and every absmax, a short last block included.
///   nested scales   the 256-entry map, every 8-bit code and every second-level absmax, *given* the offset.
///   nested offset   the mean of the absmax values. PyTorch sums them in an order that depends on the machine; Duet
///   sums
///                   in float64 and rounds once, so the two may differ in the last bits.
/// Its CUDA kernels agree for nf4 where the block is whole; elsewhere they differ in ties and signs of zero
/// (docs/formats.md).
namespace duet::loaders {

/// Hands out elements [first, first + destination.size()) of the flattened row-major matrix, exact in float32.
/// Called from several threads at once.
using ElementReader = std::function<void(std::int64_t first, std::span<float> destination)>;

/// Fills `region` (exactly layout_of(rows, columns, spec).bytes) from `read`. The result does not depend on the number
/// of threads. Throws Error(non_finite) starting with `tensor` and naming the element for NaN and infinity, and for a
/// value beyond what f16 or bf16 can hold. Beyond the region it needs a fixed 256 KiB a thread and, when nested, 4
/// bytes a block.
void store_matrix(const ElementReader& read, std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
                  std::span<std::byte> region, std::string_view tensor, int threads = 0);

/// The signed dynamic 8-bit map of double quantisation, ascending (arXiv:1511.04561, as bitsandbytes builds it).
const std::array<float, 256>& dynamic_map();

/// Mean of the scales: float64 sum in order, rounded once.
float nested_offset_of(std::span<const float> scales);

/// Second level: codes[b] of (scales[b] - offset) over blocks of 256, nested_scales[ceil(n / 256)] their absmax.
void quantise_scales(std::span<const float> scales, float offset, std::span<std::uint8_t> codes,
                     std::span<float> nested_scales);

}  // namespace duet::loaders
