// Rows to tiles, on the way in (cuda/matrix.h), and the largest magnitude that decides a bf16 matrix's power of two.
//   source   [rows, columns] row-major in any storage that has tiles, or bf16 / f32 on their way to f16
//   target   tiles of the whole matrix, of which rows [first_row, first_row + rows) are written
//   launch   a thread per 16 bytes of a tile (a lane's piece of rows g and g + 8), another per scale; 256 threads a
//   block error    none: codes, scales and f16 move; bf16 and f32 are rounded to f16 once (tests/cuda/tile_test.cpp)

#include <cstdint>

#include "cuda/check.h"
#include "cuda/device/tiles.cuh"
#include "cuda/launch.h"
#include "duet/error.h"
#include "engine/quant_blocks.h"

namespace duet::cuda {
namespace {

static_assert(static_cast<int>(Held::f32) == static_cast<int>(Storage::f32) &&
              static_cast<int>(Held::f16) == static_cast<int>(Storage::f16) &&
              static_cast<int>(Held::bf16) == static_cast<int>(Storage::bf16) &&
              static_cast<int>(Held::nf4) == static_cast<int>(Storage::nf4) &&
              static_cast<int>(Held::fp4) == static_cast<int>(Storage::fp4) &&
              static_cast<int>(Held::int8) == static_cast<int>(Storage::int8));

constexpr int kThreads = 256;

// ---- kernels ----

/// Four numbers of a row, times `inverse`, as f16.
__device__ inline uint2 as_halves(float4 values, float inverse) {
  const __half2 low = __floats2half2_rn(values.x * inverse, values.y * inverse);
  const __half2 high = __floats2half2_rn(values.z * inverse, values.w * inverse);
  return {reinterpret_cast<const std::uint32_t&>(low), reinterpret_cast<const std::uint32_t&>(high)};
}

/// Eight bytes of a tile: those at `index` (in elements) of the row-major source.
template <Held kHeld>
__device__ inline uint2 piece_of(const std::uint8_t* source, std::int64_t index, float inverse) {
  if constexpr (kHeld == Held::nf4) return *reinterpret_cast<const uint2*>(source + index / 2);
  if constexpr (kHeld == Held::int8) return *reinterpret_cast<const uint2*>(source + index);
  if constexpr (kHeld == Held::f32) return as_halves(*reinterpret_cast<const float4*>(source + index * 4), inverse);
  const uint2 raw = *reinterpret_cast<const uint2*>(source + index * 2);
  if constexpr (kHeld == Held::f16) return raw;
  return as_halves({__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000U), __uint_as_float(raw.y << 16),
                    __uint_as_float(raw.y & 0xFFFF0000U)},
                   inverse);
}

/// kHeld: of the source (nf4 stands for both 4-bit formats). `pieces`: 16-byte pieces of all tiles written.
template <Held kHeld>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(const std::uint8_t* __restrict__ source, std::int64_t columns, std::int64_t pieces, float inverse,
                uint4* __restrict__ target) {
  constexpr int kWidth = kHeld == Held::nf4 ? 64 : kHeld == Held::int8 ? 32 : 16;
  const std::int64_t piece = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (piece >= pieces) return;
  const std::int64_t tile = piece / 32;
  const int lane = static_cast<int>(piece % 32);
  const std::int64_t tiles_per_row = columns / kWidth;
  const std::int64_t row = tile / tiles_per_row * 16 + lane / 4;
  const std::int64_t column = tile % tiles_per_row * kWidth + lane % 4 * (kWidth / 4);
  const uint2 upper = piece_of<kHeld>(source, row * columns + column, inverse);
  const uint2 lower = piece_of<kHeld>(source, (row + 8) * columns + column, inverse);
  target[piece] = uint4{upper.x, upper.y, lower.x, lower.y};
}

/// Scale is float or a code of one; [rows, per_row] to [rows / 16, per_row, 16].
template <class Scale>
__global__ void __launch_bounds__(kThreads) tile_scales_kernel(const Scale* __restrict__ source, std::int64_t per_row,
                                                               std::int64_t count, Scale* __restrict__ target) {
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (place >= count) return;
  const std::int64_t row = place / (16 * per_row) * 16 + place % 16;
  target[place] = source[row * per_row + place / 16 % per_row];
}

__device__ inline float as_float(float value) { return value; }
__device__ inline float as_float(__half value) { return __half2float(value); }
__device__ inline float as_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class Input>
__global__ void __launch_bounds__(kThreads)
    largest_magnitude_kernel(const Input* __restrict__ source, std::int64_t count, float* __restrict__ largest) {
  float most = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const float magnitude = fabsf(as_float(source[i]));
    most = fmaxf(most, isnan(magnitude) ? __uint_as_float(0x7F800000U) : magnitude);
  }
  for (int distance = 16; distance > 0; distance /= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, distance));
  // Floats that are not negative are ordered as their bits are.
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(largest), __float_as_int(most));
}

// ---- launchers ----

unsigned blocks_for(std::int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

template <Held kHeld>
void launch_tiles(const Matrix& source, std::int64_t columns, float factor, std::byte* target, Stream stream) {
  const std::int64_t pieces = source.rows / kTileRows *
                              (columns / (kHeld == Held::nf4    ? 64
                                          : kHeld == Held::int8 ? 32
                                                                : 16)) *
                              32;
  tile_kernel<kHeld><<<blocks_for(pieces), kThreads, 0, stream>>>(reinterpret_cast<const std::uint8_t*>(source.data),
                                                                  columns, pieces, 1.0F / factor,
                                                                  reinterpret_cast<uint4*>(target));
  DUET_CUDA(cudaGetLastError());
}

template <class Input>
void launch_largest(const void* source, std::int64_t count, float* largest, Stream stream) {
  const std::int64_t blocks = (count + kThreads - 1) / kThreads;
  largest_magnitude_kernel<<<static_cast<unsigned>(blocks < 2048 ? blocks : 2048), kThreads, 0, stream>>>(
      static_cast<const Input*>(source), count, largest);
  DUET_CUDA(cudaGetLastError());
}

[[noreturn]] void refuse(const char* what) {
  throw Error(Code::unsupported, what, "Arrange the matrix as arrangement_of says");
}

/// Codes, or numbers, of the rows from `first_row` on.
void tile_codes(const Matrix& source, const DeviceMatrix& target, std::int64_t first_row, Stream stream) {
  const Matrix& m = target.matrix;
  const std::int64_t first_tile = first_row / kTileRows * (m.columns / tile_columns(m.spec.storage));
  std::byte* codes = const_cast<std::byte*>(m.data) + first_tile * kTileBytes;
  switch (source.spec.storage) {
    case Storage::nf4:
    case Storage::fp4:
      launch_tiles<Held::nf4>(source, m.columns, 1.0F, codes, stream);
      break;
    case Storage::int8:
      launch_tiles<Held::int8>(source, m.columns, 1.0F, codes, stream);
      break;
    case Storage::f16:
      launch_tiles<Held::f16>(source, m.columns, 1.0F, codes, stream);
      break;
    case Storage::bf16:
      launch_tiles<Held::bf16>(source, m.columns, target.factor, codes, stream);
      break;
    case Storage::f32:
      launch_tiles<Held::f32>(source, m.columns, target.factor, codes, stream);
      break;
  }
}

void tile_scales(const Matrix& source, const Matrix& target, std::int64_t first_row, Stream stream) {
  const std::int64_t per_row = target.columns / target.spec.block_size;
  const std::int64_t count = source.rows * per_row;
  if (target.spec.nested) {
    tile_scales_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
        source.scale_codes, per_row, count, const_cast<std::uint8_t*>(target.scale_codes) + first_row * per_row);
  } else {
    tile_scales_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
        source.scales, per_row, count, const_cast<float*>(target.scales) + first_row * per_row);
  }
  DUET_CUDA(cudaGetLastError());
}

}  // namespace

WeightView view_of(const DeviceMatrix& matrix) {
  const Matrix& m = matrix.matrix;
  if (matrix.arrangement == Arrangement::tiles && arrangement_of(m.rows, m.columns, m.spec) != Arrangement::tiles)
    refuse("A weight of the card is said to lie in tiles, which its shape and blocks do not fill");
  WeightView view{};
  view.data = reinterpret_cast<const std::uint8_t*>(m.data);
  view.scales = {m.scales, m.scale_codes, m.nested_scales, m.nested_map, m.nested_offset};
  const auto& codes = m.spec.storage == Storage::fp4 ? kFp4Codes : kNf4Codes;
  for (std::size_t i = 0; i < codes.size(); ++i) view.table.value[i] = codes[i];
  view.rows = m.rows;
  view.columns = m.columns;
  view.factor = matrix.factor;
  while ((1 << view.block_shift) < m.spec.block_size) ++view.block_shift;
  view.held = static_cast<Held>(m.spec.storage);
  view.tiled = matrix.arrangement == Arrangement::tiles;
  return view;
}

void tile(const Matrix& source, const DeviceMatrix& target, std::int64_t first_row, Stream stream) {
  const Matrix& m = target.matrix;
  const Storage from = source.spec.storage;
  const bool rounded = m.spec.storage == Storage::f16 && (from == Storage::bf16 || from == Storage::f32);
  if (target.arrangement != Arrangement::tiles || arrangement_of(m.rows, m.columns, m.spec) != Arrangement::tiles)
    refuse("The card's tile got a target that is not in tiles");
  if (source.columns != m.columns || source.rows % kTileRows != 0 || first_row % kTileRows != 0 || first_row < 0 ||
      first_row + source.rows > m.rows)
    refuse("The card's tile got rows that are no whole tiles of its target");
  if (!rounded && source.spec != m.spec) refuse("The card's tile got a storage that its target does not hold");
  if (source.rows == 0) return;

  if (source.data != nullptr) tile_codes(source, target, first_row, stream);
  if (source.scales != nullptr || source.scale_codes != nullptr) tile_scales(source, m, first_row, stream);
}

void largest_magnitude(const void* source, Storage type, std::int64_t count, float* largest, Stream stream) {
  if (count <= 0) return;
  switch (type) {
    case Storage::f32:
      return launch_largest<float>(source, count, largest, stream);
    case Storage::f16:
      return launch_largest<__half>(source, count, largest, stream);
    case Storage::bf16:
      return launch_largest<__nv_bfloat16>(source, count, largest, stream);
    default:
      refuse("The card's largest_magnitude got a quantised storage");
  }
}

}  // namespace duet::cuda
