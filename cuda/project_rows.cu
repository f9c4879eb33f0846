// y = W x for matrices that no tiles fill: odd shapes, blocks that straddle rows, float32. Float32 maths throughout.
//   weights  arranged in rows (engine/weights.h), any storage
//   x        [rows, columns] f16 (PreparedRows), zero up to the next multiple of 8 columns
//   y        [rows, out] float32
//   launch   a warp per output and up to 8 rows of the step, 8 columns a lane and turn; 8 warps a block
//   error    float32 sums of code * scale * x in float32 (tests/cuda/project_test.cpp); a row's bits do not depend on
//            the other rows
//   source   engine/weights.h

#include <cstdint>

#include "cuda/check.h"
#include "cuda/device/adapters.cuh"
#include "cuda/device/dependent.cuh"
#include "cuda/launch.h"
#include "cuda/project_paths.h"

namespace duet::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kPerLane = 8;

/// W[row, column .. column + 7] without the weight's factor, zero beyond the last column. `codes`: the 4-bit table, in
/// shared memory.
__device__ inline void load_weights(const WeightView& w, const float* codes, std::int64_t row, std::int64_t column,
                                    float (&values)[kPerLane]) {
  const std::int64_t index = row * w.columns + column;
  if (column + kPerLane > w.columns || index % kPerLane != 0) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      values[i] = 0;
      if (column + i >= w.columns) continue;
      if (is_four_bit(w.held)) {
        const std::uint32_t byte = w.data[(index + i) / 2];
        values[i] = codes[((index + i) % 2 == 0 ? byte >> 4 : byte) & 0xFU];
      } else {
        values[i] = code_at(w, index + i);
      }
      if (w.held >= Held::nf4) values[i] = __fmul_rn(values[i], scale_of(w.scales, (index + i) >> w.block_shift));
    }
    return;
  }
  if (w.held < Held::nf4) return load_eight_as(w.held, w.data, index, values);
  const float scale = scale_of(w.scales, index >> w.block_shift);  // a block holds whole eights
  if (is_four_bit(w.held)) {
    const std::uint32_t packed = *reinterpret_cast<const std::uint32_t*>(w.data + index / 2);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      values[i] = __fmul_rn(codes[(packed >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0))) & 0xFU], scale);
  } else {
    const uint2 packed = *reinterpret_cast<const uint2*>(w.data + index);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      values[i] =
          __fmul_rn(static_cast<float>(static_cast<std::int8_t>((i < 4 ? packed.x : packed.y) >> (i % 4 * 8))), scale);
  }
}

/// kRows: rows of the step a warp serves, 1 or 8.
template <int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    rows_kernel(const __grid_constant__ WeightView weight, const __grid_constant__ ProjectedRows step,
                const __grid_constant__ PartOutput part) {
  __shared__ float codes[16];
  let_next_begin();
  if (threadIdx.x < 16) codes[threadIdx.x] = weight.table.value[threadIdx.x];
  __syncthreads();
  wait_for_previous();

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t o = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  if (o >= part.out) return;

  float sums[kRows] = {};
  for (std::int64_t c = lane * kPerLane; c < weight.columns; c += 32 * kPerLane) {
    float weights[kPerLane];
    load_weights(weight, codes, o, c, weights);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r >= step.row_count) break;
      float x[kPerLane];
      load_eight_as(Held::f16, step.x, (first_row + r) * step.x_stride + c, x);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sums[r] = fmaf(weights[i], x[i], sums[r]);
    }
  }
  // Lane r ends row r.
  float own = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int distance = 16; distance > 0; distance /= 2) sums[r] += __shfl_xor_sync(~0U, sums[r], distance);
    if (lane == r) own = sums[r];
  }
  const int row = first_row + lane;
  const bool ends = lane < kRows && row < step.row_count;
  RowAdapter adapter{};
  if (ends) adapter = adapter_of(step, part, row);
  float factor = part.factor;
  for (unsigned replaced = __ballot_sync(~0U, adapter.replacement != nullptr); replaced != 0;
       replaced &= replaced - 1) {
    const int r = __ffs(static_cast<int>(replaced)) - 1;
    const float product = replaced_product(adapter_of(step, part, first_row + r),
                                           step.x + (first_row + r) * step.x_stride, step.columns, o);
    if (lane == r) own = product, factor = 1.0F;
  }
  if (!ends) return;
  float expansion = 0;
  if (adapter.rank > 0)
    expansion =
        expansion_of(adapter, step.lora + (static_cast<std::int64_t>(row) * kMostParts + part.index) * step.max_rank,
                     step.max_rank, o);
  finish(part, adapter, step.add, row, o, scaled(own, factor, step.factors[row]), expansion);
}

}  // namespace

void project_rows(const Projection& projection, int part, Stream stream) {
  const WeightView weight = view_of(projection.parts[part].weight);
  const ProjectedRows step = rows_of(projection);
  const PartOutput output = output_of(projection, part);
  const auto blocks = static_cast<unsigned>((weight.rows + kWarps - 1) / kWarps);
  if (projection.row_count == 1) {
    launch_dependent(rows_kernel<1>, dim3(blocks), 32 * kWarps, stream, weight, step, output);
  } else {
    const dim3 grid(blocks, static_cast<unsigned>((projection.row_count + 7) / 8));
    launch_dependent(rows_kernel<8>, grid, 32 * kWarps, stream, weight, step, output);
  }
}

}  // namespace duet::cuda
