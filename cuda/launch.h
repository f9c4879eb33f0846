#pragma once

#include <cstdint>

#include "engine/weights.h"

/// Every launcher of the CUDA backend: arguments, what it supports, and the work a launch does. No CUDA header here, so
/// that the dispatcher, tests and benchmarks stay plain C++. Matrix views hold device pointers. Launchers check what
/// their kernel assumes, launch on the given stream and return at once; they throw Error(unsupported) before launching,
/// never after.
struct CUstream_st;

namespace duet::cuda {

using Stream = CUstream_st*;

/// Bytes a launch must move and operations it must do: the floor that benchmarks compare with.
struct Work {
  double bytes_read = 0;
  double bytes_written = 0;
  double operations = 0;
};

// ---- dequantise.cu: blocks to numbers ----

/// destination [rows, columns] row-major in `output` (f32, f16 or bf16), bit for bit what bitsandbytes' dequantize_4bit
/// gives: code * scale in one float32 rounding, then one rounding to `output`.
void dequantise(const Matrix& matrix, Storage output, void* destination, Stream stream);
bool dequantise_supports(const StorageSpec& spec, Storage output);
Work work_of_dequantise(const Matrix& matrix, Storage output);

// ---- quantise.cu: numbers to blocks, on the way in ----

/// `source` [rows, columns] in f32, f16 or bf16 to the blocks of `region`, laid out by layout_of(rows, columns, spec);
/// bit for bit what loaders/quantise.h gives, except that an all-zero block may hold another code of zero. Not nested:
/// the second quantisation needs the mean of all scales and runs on the host. `first_bad` (device, one std::int64_t,
/// preset to -1 by the caller) receives an index of a non-finite element when there is one.
void quantise(const void* source, Storage source_type, std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
              std::byte* region, std::int64_t* first_bad, Stream stream);
bool quantise_supports(Storage source_type, const StorageSpec& spec);
Work work_of_quantise(std::int64_t rows, std::int64_t columns, Storage source_type, const StorageSpec& spec);

}  // namespace duet::cuda
