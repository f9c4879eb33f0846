#pragma once

#include <cstddef>
#include <span>

#include "engine/weights.h"
#include "loaders/safetensors.h"

namespace duet::loaders {

/// How a matrix of an adapter is held: F16 and BF16 as they are; F32 and F64 as f16 or bf16 when every value is one,
/// else as f32, so that nothing is lost on the way in. Throws Error(non_finite) naming the tensor for NaN and infinity,
/// Error(bad_file) when it is of an integer type.
Storage choose_storage(const Tensor& tensor);

/// The tensor in `storage` (f32, f16 or bf16), elements in file order; `destination` is exactly as long.
void read_as(const Tensor& tensor, Storage storage, std::span<std::byte> destination);

}  // namespace duet::loaders
