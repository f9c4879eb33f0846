// Activations as the matrix kernels read them: normalised, gated or as they are, in f16 times a power of two per row.
//   x, gate, up  [rows, columns] float32, stride `columns`
//   gamma        [columns] float32, or what the row's adapter puts in its place
//   out          [rows, prepared_stride(columns)] f16, filling zero; factors [rows]
//   launch       one block a row, and beside it one for every 4 ranks of the row's adapter in each part of the product
//                that follows (device/shrink.cuh); 4 columns a thread and turn, up to 8 turns in registers (32,768
//                columns), longer rows are read again. Threads depend on `columns` alone, and so does the order of
//                sums.
//   error        prepare: one rounding to f16. normalise: (14 + turns / 2) * 2^-24, then that rounding. swiglu:
//                2^-21, then that rounding. A row with NaN or infinity, or whose result is beyond float32, lowers its
//                mark and is written as zeros with factor 1.
//   source       RMSNorm, arXiv:1910.07467; SwiGLU, arXiv:2002.05202; engine/host/host_math.cpp

#include <type_traits>

#include "cuda/check.h"
#include "cuda/device/dependent.cuh"
#include "cuda/device/prepare.cuh"
#include "cuda/device/shrink.cuh"
#include "cuda/launch.h"
#include "cuda/project_paths.h"
#include "duet/error.h"

namespace duet::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kPreferredThreads = 768;  // Up to here fewer turns are better than fewer threads.

// ---- kernels ----

struct RowOutput {
  std::uint16_t* x;
  float* factors;
  std::int64_t columns;
  std::int64_t stride;
  Marks marks;
  BesideShrink shrink;
};

struct Shared {
  RowShared row;
  ShrinkShared shrink;
};

/// Block (row, 0) writes the row; block (row, 1 + i) takes the i-th group of ranks.
__device__ inline bool writes_row() { return blockIdx.y == 0; }

/// Begins a block: what it takes of an adapter, whose numbers are on their way when it waits for x. False: nothing.
__device__ inline bool begin(const RowOutput& out, RankGroup& group) {
  let_next_begin();
  if (!writes_row()) {
    group = rank_group_of(out.shrink, blockIdx.x, static_cast<int>(blockIdx.y) - 1);
    if (group.count == 0) return false;
    prefetch_a(group, out.columns);
  }
  return true;
}

/// Ends a block: the row is written or shrunk. False where an element is not finite.
template <int kTurns, class Source>
__device__ inline bool end(const HeldRow<kTurns, Source>& held, const RowOutput& out, const RankGroup& group,
                           float row_factor, Shared& shared) {
  const std::int64_t row = blockIdx.x;
  if (writes_row()) return write_prepared(held, out.x + row * out.stride, out.factors + row, shared.row);
  const RowPower power = power_of(held, shared.row);
  float* z = out.shrink.z + (row * kMostParts + group.part) * out.shrink.max_rank;
  shrink_row(held, power, row_factor, group, out.columns, z, shared.shrink);
  return true;
}

__device__ inline void mark_unless(bool finite, const RowOutput& out, std::int32_t layer) {
  if (!finite && writes_row() && threadIdx.x == 0) atomicMin(out.marks.bad_layer + blockIdx.x, layer);
}

template <int kTurns>
__global__ void __launch_bounds__(kMostThreads) prepare_kernel(const float* x, const __grid_constant__ RowOutput out) {
  __shared__ Shared shared;
  RankGroup group{};
  if (!begin(out, group)) return;
  wait_for_previous();
  const HeldRow<kTurns, PlainSource> held({x + blockIdx.x * out.columns, out.columns}, out.stride / kVectorElements);
  mark_unless(end(held, out, group, 1.0F, shared), out, out.marks.layer);
}

template <int kTurns>
__global__ void __launch_bounds__(kMostThreads)
    swiglu_kernel(const float* gate, const float* up, const __grid_constant__ RowOutput out) {
  __shared__ Shared shared;
  RankGroup group{};
  if (!begin(out, group)) return;
  wait_for_previous();
  const std::int64_t first = blockIdx.x * out.columns;
  const HeldRow<kTurns, SwigluSource> held({gate + first, up + first, out.columns}, out.stride / kVectorElements);
  mark_unless(end(held, out, group, 1.0F, shared), out, out.marks.layer);
}

struct NormArguments {
  const float* gamma;
  float epsilon;
  float offset;
  const StepRow* rows;
  AdapterTable adapters;
  int place;
};

template <int kTurns>
__global__ void __launch_bounds__(kMostThreads)
    normalise_kernel(const float* x, const __grid_constant__ NormArguments norm,
                     const __grid_constant__ RowOutput out) {
  __shared__ Shared shared;
  RankGroup group{};
  if (!begin(out, group)) return;
  const std::int64_t row = blockIdx.x;
  const float* source = norm.gamma;
  if (norm.adapters.parts != nullptr && norm.rows[row].adapter_slot >= 0) {
    const std::int64_t slot = norm.rows[row].adapter_slot;
    const void* replacement = norm.adapters.parts[slot * norm.adapters.places + norm.place].replacement;
    if (replacement != nullptr) source = static_cast<const float*>(replacement);
  }
  const HeldGamma<kTurns> gamma({source, out.columns}, out.stride / kVectorElements);
  wait_for_previous();
  const NormFinite finite = end_normalised<kTurns>(
      x + row * out.columns, gamma, out.columns, norm.epsilon, norm.offset, out.stride / kVectorElements, shared.row,
      [&](const auto& held) { return end(held, out, group, 1.0F, shared); });
  mark_unless(finite.input, out, out.marks.layer);
  mark_unless(finite.result, out, out.marks.own_layer);
}

/// The ranks alone, of rows that are prepared already.
struct PreparedSource {
  const std::uint16_t* x;
  __device__ float4 operator()(int, std::int64_t vector) const {
    const uint2 words = *reinterpret_cast<const uint2*>(x + vector * kVectorElements);
    const float2 low = pair_as_floats(true, words.x);
    const float2 high = pair_as_floats(true, words.y);
    return make_float4(low.x, low.y, high.x, high.y);
  }
};

template <int kTurns>
__global__ void __launch_bounds__(kMostThreads) shrink_kernel(const __grid_constant__ RowOutput out) {
  __shared__ Shared shared;
  RankGroup group{};
  if (!begin(out, group) || writes_row()) return;
  const HeldRow<kTurns, PreparedSource> held({out.x + blockIdx.x * out.stride}, out.stride / kVectorElements);
  end(held, out, group, out.factors[blockIdx.x], shared);
}

// ---- launchers ----

struct Shape {
  int turns;  // 0: longer than registers hold.
  unsigned threads;
};

Shape shape_of(std::int64_t columns) {
  const std::int64_t vectors = prepared_stride(columns) / kVectorElements;
  for (const int turns : {1, 2, 4, 8}) {
    const std::int64_t threads = ((vectors + turns - 1) / turns + kWarpThreads - 1) / kWarpThreads * kWarpThreads;
    if (threads <= (turns == 8 ? kMostThreads : kPreferredThreads)) return {turns, static_cast<unsigned>(threads)};
  }
  return {0, kMostThreads};
}

/// launch(turns as a constant, threads).
template <class Launch>
void by_shape(std::int64_t columns, Launch launch) {
  const Shape shape = shape_of(columns);
  switch (shape.turns) {
    case 1:
      return launch(std::integral_constant<int, 1>{}, shape.threads);
    case 2:
      return launch(std::integral_constant<int, 2>{}, shape.threads);
    case 4:
      return launch(std::integral_constant<int, 4>{}, shape.threads);
    case 8:
      return launch(std::integral_constant<int, 8>{}, shape.threads);
    default:
      return launch(std::integral_constant<int, 0>{}, shape.threads);
  }
}

BesideShrink beside_of(const Projection* projection) {
  BesideShrink shrink{};
  if (projection == nullptr || projection->adapters.parts == nullptr || projection->max_rank == 0) return shrink;
  shrink.rows = projection->rows;
  shrink.adapters = projection->adapters;
  shrink.z = projection->lora;
  for (int i = 0; i < projection->part_count; ++i) shrink.places[i] = projection->parts[i].place;
  shrink.max_rank = projection->max_rank;
  shrink.blocks_of_part = (projection->max_rank + kBesideRanks - 1) / kBesideRanks;
  return shrink;
}

RowOutput checked_output(int row_count, std::int64_t columns, const PreparedRows& out, const Marks& marks,
                         const Projection* shrink_for) {
  if (row_count < 0 || columns < 1)
    throw Error(Code::unsupported, "The card's prepare got a shape without columns", "Give at least one column");
  if (reinterpret_cast<std::uintptr_t>(out.x) % 16 != 0)
    throw Error(Code::unsupported, "The card's prepare got rows that are not 16-byte aligned", "Align PreparedRows::x");
  if (shrink_for != nullptr && (shrink_for->columns != columns || row_count > kMostRowsBesideShrink))
    throw Error(Code::unsupported, "The card's prepare got a projection of another width, or too many rows beside it",
                "Call lora_shrink for more than 32 rows");
  return {out.x, out.factors, columns, prepared_stride(columns), marks, beside_of(shrink_for)};
}

dim3 grid_of(int row_count, const RowOutput& out, const Projection* shrink_for) {
  const int groups = out.shrink.z == nullptr ? 0 : shrink_for->part_count * out.shrink.blocks_of_part;
  return dim3(static_cast<unsigned>(row_count), static_cast<unsigned>(1 + groups));
}

}  // namespace

void prepare(const float* x, int row_count, std::int64_t columns, const PreparedRows& out, const Marks& marks,
             Stream stream, const Projection* shrink_for) {
  const RowOutput output = checked_output(row_count, columns, out, marks, shrink_for);
  if (row_count == 0) return;
  by_shape(columns, [&](auto turns, unsigned threads) {
    launch_dependent(prepare_kernel<decltype(turns)::value>, grid_of(row_count, output, shrink_for), threads, stream, x,
                     output);
  });
}

void swiglu(const float* gate, const float* up, int row_count, std::int64_t columns, const PreparedRows& out,
            const Marks& marks, Stream stream, const Projection* shrink_for) {
  const RowOutput output = checked_output(row_count, columns, out, marks, shrink_for);
  if (row_count == 0) return;
  by_shape(columns, [&](auto turns, unsigned threads) {
    launch_dependent(swiglu_kernel<decltype(turns)::value>, grid_of(row_count, output, shrink_for), threads, stream,
                     gate, up, output);
  });
}

void normalise(const float* x, const float* gamma, double epsilon, bool zero_centred, const StepRow* rows,
               int row_count, std::int64_t columns, const AdapterTable& adapters, int place, const PreparedRows& out,
               const Marks& marks, Stream stream, const Projection* shrink_for) {
  const RowOutput output = checked_output(row_count, columns, out, marks, shrink_for);
  if (row_count == 0) return;
  const NormArguments norm{gamma, static_cast<float>(epsilon), zero_centred ? 1.0F : 0.0F, rows, adapters, place};
  by_shape(columns, [&](auto turns, unsigned threads) {
    launch_dependent(normalise_kernel<decltype(turns)::value>, grid_of(row_count, output, shrink_for), threads, stream,
                     x, norm, output);
  });
}

void lora_shrink_few(const Projection& projection, Stream stream) {
  const RowOutput output = checked_output(projection.row_count, projection.columns, projection.x, {}, &projection);
  by_shape(projection.columns, [&](auto turns, unsigned threads) {
    shrink_kernel<decltype(turns)::value>
        <<<grid_of(projection.row_count, output, &projection), threads, 0, stream>>>(output);
  });
  DUET_CUDA(cudaGetLastError());
}

}  // namespace duet::cuda
