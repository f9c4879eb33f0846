#pragma once

// z = A x beside the preparation of x: further blocks of the same launch make the row for themselves and multiply it by
// a few rows of A, so that an adapter adds no kernel to a decode step. z [rows, kMostParts, max_rank] float32;
// untouched where a row has no adapter, a part no LoRA, beyond its rank. Source: LoRA, arXiv:2106.09685.

#include <cstdint>

#include "cuda/device/adapters.cuh"
#include "cuda/device/dependent.cuh"
#include "cuda/device/prepare.cuh"

namespace duet::cuda {

constexpr int kBesideRanks = 4;  // Of a block.

struct BesideShrink {
  const StepRow* rows;
  AdapterTable adapters;
  float* z;  // null: nothing is shrunk
  int places[kMostParts];
  int max_rank;
  int blocks_of_part;
};

/// What one block takes: ranks [first, first + count) of one part; count 0: nothing.
struct RankGroup {
  const void* a;
  Held held;
  int part;
  int first;
  int count;
};

/// `block` counts over parts and groups of ranks.
__device__ inline RankGroup rank_group_of(const BesideShrink& shrink, std::int64_t row, int block) {
  RankGroup group{};
  group.part = block / shrink.blocks_of_part;
  group.first = block % shrink.blocks_of_part * kBesideRanks;
  const std::int64_t slot = shrink.rows[row].adapter_slot;
  if (slot < 0) return group;
  const AdapterPart& own = shrink.adapters.parts[slot * shrink.adapters.places + shrink.places[group.part]];
  if (own.a == nullptr || group.first >= own.rank) return group;
  group.a = own.a;
  group.held = static_cast<Held>(own.a_storage);
  group.count = min(kBesideRanks, own.rank - group.first);
  return group;
}

/// A[rank, 4 vector ... + 3], zero at or beyond `columns`.
__device__ inline float4 load_a(const RankGroup& group, std::int64_t rank, std::int64_t vector, std::int64_t columns) {
  const std::int64_t column = vector * kVectorElements;
  const std::int64_t index = rank * columns + column;
  if (columns % kVectorElements == 0) {
    if (group.held == Held::f32) return *reinterpret_cast<const float4*>(static_cast<const float*>(group.a) + index);
    const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(group.a) + index);
    const float2 low = pair_as_floats(group.held == Held::f16, raw.x);
    const float2 high = pair_as_floats(group.held == Held::f16, raw.y);
    return make_float4(low.x, low.y, high.x, high.y);
  }
  const auto at = [&](int i) { return column + i < columns ? load_as(group.held, group.a, index + i) : 0.0F; };
  return make_float4(at(0), at(1), at(2), at(3));
}

/// Towards the cache, while the row itself is still being made elsewhere.
__device__ inline void prefetch_a(const RankGroup& group, std::int64_t columns) {
  constexpr std::int64_t kLine = 128;
  const std::int64_t element = group.held == Held::f32 ? 4 : 2;
  const char* first = static_cast<const char*>(group.a) + group.first * columns * element;
  const std::int64_t bytes = group.count * columns * element;
  for (std::int64_t at = threadIdx.x * kLine; at < bytes; at += blockDim.x * kLine) prefetch(first + at);
}

struct ShrinkShared {
  float partial[kBesideRanks][kMostWarps];
};

/// z of one group of ranks from a held row; the order of sums depends on the number of threads alone.
template <int kTurns, class Source>
__device__ inline void shrink_row(const HeldRow<kTurns, Source>& held, const RowPower& power, float row_factor,
                                  const RankGroup& group, std::int64_t columns, float* z, ShrinkShared& shared) {
  float sums[kBesideRanks] = {};
  held.each([&](std::int64_t vector, const float4& v) {
    const FourHalves halves = prepared_elements(v, power);
    const float2 low = __half22float2(halves.low);
    const float2 high = __half22float2(halves.high);
    float4 a[kBesideRanks];
#pragma unroll
    for (int j = 0; j < kBesideRanks; ++j) a[j] = load_a(group, group.first + min(j, group.count - 1), vector, columns);
#pragma unroll
    for (int j = 0; j < kBesideRanks; ++j) {
      sums[j] = fmaf(a[j].x, low.x, sums[j]);
      sums[j] = fmaf(a[j].y, low.y, sums[j]);
      sums[j] = fmaf(a[j].z, high.x, sums[j]);
      sums[j] = fmaf(a[j].w, high.y, sums[j]);
    }
  });
#pragma unroll
  for (int j = 0; j < kBesideRanks; ++j) {
    sums[j] = reduce_warp(sums[j], Sum{});
    if (lane_of_thread() == 0) shared.partial[j][warp_of_thread()] = sums[j];
  }
  __syncthreads();
  const int j = static_cast<int>(threadIdx.x);
  if (j >= group.count) return;
  float sum = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarpThreads; ++warp) sum += shared.partial[j][warp];
  z[group.first + j] = __fmul_rn(__fmul_rn(sum, power.power), row_factor);
}

}  // namespace duet::cuda
