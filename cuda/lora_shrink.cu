// z = A x, the first half of every adapter of a projection: z[row][part][r] = sum_c A[r, c] x[row, c].
//   A       [rank, columns] row-major f16, bf16 or f32 of the row's own adapter, read from the table in device memory
//   x       [rows, columns] f16 (PreparedRows)
//   z       [rows, parts, max_rank] float32; untouched where a row has no adapter, a part no LoRA, beyond its rank
//   launch  up to 32 rows: device/shrink.cuh, by prepare.cu
//           more: a block per 16 rows, part and 16 ranks on the tensor cores, its 8 warps along the columns; once for
//           each adapter that the 16 rows use
//   error   float32 products and sums; more than 32 rows and f32 adapters: A to 22 bits (tests/cuda/lora_test.cpp).
//           Within either launch a row's bits do not depend on the other rows.
//   source  LoRA, arXiv:2106.09685

#include <cstdint>

#include "cuda/check.h"
#include "cuda/device/adapters.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/launch.h"
#include "cuda/project_paths.h"

namespace duet::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kPerLane = 8;

struct Shrink {
  ProjectedRows step;
  float* z;
  int places[kMostParts];
};

__device__ inline const AdapterPart* part_of(const Shrink& arguments, int slot, int part) {
  if (slot < 0) return nullptr;
  const AdapterPart* own = arguments.step.adapters.parts +
                           static_cast<std::int64_t>(slot) * arguments.step.adapters.places + arguments.places[part];
  return own->a != nullptr ? own : nullptr;
}

__device__ inline float* z_of(const Shrink& arguments, int row, int part) {
  return arguments.z + (static_cast<std::int64_t>(row) * kMostParts + part) * arguments.step.max_rank;
}

/// A[r, c .. c + 7], zero beyond the last column. kWhole: columns are a multiple of 8.
template <Held kHeld, bool kWhole>
__device__ inline void load_a(const void* a, std::int64_t r, std::int64_t c, std::int64_t columns,
                              float (&values)[kPerLane]) {
  if constexpr (kWhole) {
    load_eight_as(kHeld, a, r * columns + c, values);
  } else {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) values[i] = c + i < columns ? load_as(kHeld, a, r * columns + c + i) : 0.0F;
  }
}

/// Calls body<held, whole>() for the storage and the width at hand.
template <class Body>
__device__ inline void with_storage(Held held, bool whole, const Body& body) {
  if (held == Held::f16)
    return whole ? body.template operator()<Held::f16, true>() : body.template operator()<Held::f16, false>();
  if (held == Held::bf16)
    return whole ? body.template operator()<Held::bf16, true>() : body.template operator()<Held::bf16, false>();
  return whole ? body.template operator()<Held::f32, true>() : body.template operator()<Held::f32, false>();
}

// ---- many rows ----

constexpr int kTile = 16;   // rows of the step, and ranks
constexpr int kChunk = 32;  // columns a warp takes at once: 8 a lane

__global__ void __launch_bounds__(kThreads) shrink_many_kernel(const __grid_constant__ Shrink arguments) {
  __shared__ float partial[kWarps][kTile][kTile + 1];
  __shared__ int slots[kTile];
  const ProjectedRows& step = arguments.step;
  const int first_rank = static_cast<int>(blockIdx.x) * kTile;
  const int part = static_cast<int>(blockIdx.y);
  const int first_row = static_cast<int>(blockIdx.z) * kTile;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  if (threadIdx.x < kTile) {
    const int row = first_row + static_cast<int>(threadIdx.x);
    slots[threadIdx.x] = row < step.row_count ? step.rows[row].adapter_slot : -1;
  }
  __syncthreads();

  for (int i = 0; i < kTile; ++i) {
    const int slot = slots[i];
    bool seen = false;
    for (int j = 0; j < i; ++j) seen |= slots[j] == slot;
    const AdapterPart* own = seen ? nullptr : part_of(arguments, slot, part);
    if (own == nullptr || first_rank >= own->rank) continue;  // the same in all threads
    const int last_rank = own->rank - 1;

    float sums[2][4] = {};
    with_storage(static_cast<Held>(own->a_storage), step.columns % kPerLane == 0, [&]<Held kHeld, bool kWhole>() {
#pragma unroll 2
      for (std::int64_t chunk = warp * kChunk; chunk < step.columns; chunk += kWarps * kChunk) {
        const std::int64_t c = chunk + t * kPerLane;
        float x[2][kPerLane] = {};
        float weights[2][kPerLane] = {};
        if (c < step.columns) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            if (first_row + g + 8 * n < step.row_count)
              load_eight_as(Held::f16, step.x, (first_row + g + 8 * n) * step.x_stride + c, x[n]);
            load_a<kHeld, kWhole>(own->a, min(first_rank + g + 8 * n, last_rank), c, step.columns, weights[n]);
          }
        }
        // Columns 2 s and 2 s + 1 of a lane's eight stand for k = t and t + 4 of product s.
#pragma unroll
        for (int s = 0; s < kPerLane / 2; ++s) {
          const float left[4] = {x[0][2 * s], x[1][2 * s], x[0][2 * s + 1], x[1][2 * s + 1]};
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const float right[2] = {leading_bits(weights[n][2 * s]), leading_bits(weights[n][2 * s + 1])};
            mma_exact(sums[n], left, right);
            if constexpr (kHeld == Held::f32) {
              const float rest[2] = {leading_bits(weights[n][2 * s] - right[0]),
                                     leading_bits(weights[n][2 * s + 1] - right[1])};
              mma_exact(sums[n], left, rest);
            }
          }
        }
      }
    });
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int k = 0; k < 4; ++k) partial[warp][g + k / 2 * 8][n * 8 + 2 * t + k % 2] = sums[n][k];
    __syncthreads();
    const int row = static_cast<int>(threadIdx.x) / kTile;
    const int rank = static_cast<int>(threadIdx.x) % kTile;
    if (slots[row] == slot && first_rank + rank <= last_rank) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += partial[w][row][rank];
      z_of(arguments, first_row + row, part)[first_rank + rank] = sum * step.factors[first_row + row];
    }
    __syncthreads();
  }
}

}  // namespace

void lora_shrink(const Projection& projection, Stream stream) {
  if (projection.adapters.parts == nullptr || projection.row_count == 0 || projection.max_rank == 0) return;
  if (projection.row_count <= kMostNarrowRows) return lora_shrink_few(projection, stream);
  Shrink arguments{};
  arguments.step = rows_of(projection);
  arguments.z = projection.lora;
  for (int i = 0; i < projection.part_count; ++i) arguments.places[i] = projection.parts[i].place;
  const auto parts = static_cast<unsigned>(projection.part_count);
  const auto rows = static_cast<unsigned>(projection.row_count);
  const auto ranks = static_cast<unsigned>(projection.max_rank);
  shrink_many_kernel<<<dim3((ranks + kTile - 1) / kTile, parts, (rows + kTile - 1) / kTile), kThreads, 0, stream>>>(
      arguments);
  DUET_CUDA(cudaGetLastError());
}

}  // namespace duet::cuda
