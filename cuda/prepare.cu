// Activations as the matrix kernels read them: normalised, gated or as they are, in f16 times a power of two per row.
//   x, gate, up  [rows, columns] float32, stride `columns`
//   gamma        [columns] float32, or what the row's adapter puts in its place
//   out          [rows, prepared_stride(columns)] f16, filling zero; factors [rows]
//   launch       one block a row; 4 columns a thread and turn, up to 8 turns in registers (32,768 columns), longer rows
//                are read again. Threads depend on `columns` alone, and so does the order of sums.
//   error        prepare: one rounding to f16. normalise: (14 + turns / 2) * 2^-24, then that rounding. swiglu:
//                2^-21, then that rounding. A row with NaN or infinity, or whose result is beyond float32, lowers its
//                mark and is written as zeros with factor 1.
//   source       RMSNorm, arXiv:1910.07467; SwiGLU, arXiv:2002.05202; engine/host/host_math.cpp

#include <type_traits>

#include "cuda/check.h"
#include "cuda/device/prepare.cuh"
#include "cuda/launch.h"
#include "duet/error.h"

namespace duet::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kPreferredThreads = 768;  // Up to here fewer turns are better than fewer threads.

// ---- kernels ----

struct RowOutput {
  std::uint16_t* x;
  float* factors;
  std::int64_t stride;
  Marks marks;
};

__device__ inline void mark_unless(bool finite, const RowOutput& out, std::int64_t row, std::int32_t layer) {
  if (!finite && threadIdx.x == 0) atomicMin(out.marks.bad_layer + row, layer);
}

template <int kTurns>
__global__ void __launch_bounds__(kMostThreads) prepare_kernel(const float* x, std::int64_t columns, RowOutput out) {
  __shared__ RowShared shared;
  const std::int64_t row = blockIdx.x;
  const HeldRow<kTurns, PlainSource> held({x + row * columns, columns}, out.stride / kVectorElements);
  mark_unless(write_prepared(held, out.x + row * out.stride, out.factors + row, shared), out, row, out.marks.layer);
}

template <int kTurns>
__global__ void __launch_bounds__(kMostThreads)
    swiglu_kernel(const float* gate, const float* up, std::int64_t columns, RowOutput out) {
  __shared__ RowShared shared;
  const std::int64_t row = blockIdx.x;
  const HeldRow<kTurns, SwigluSource> held({gate + row * columns, up + row * columns, columns},
                                           out.stride / kVectorElements);
  mark_unless(write_prepared(held, out.x + row * out.stride, out.factors + row, shared), out, row, out.marks.layer);
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
    normalise_kernel(const float* x, std::int64_t columns, NormArguments norm, RowOutput out) {
  __shared__ RowShared shared;
  const std::int64_t row = blockIdx.x;
  const float* gamma = norm.gamma;
  if (norm.adapters.parts != nullptr && norm.rows[row].adapter_slot >= 0) {
    const std::int64_t slot = norm.rows[row].adapter_slot;
    const void* replacement = norm.adapters.parts[slot * norm.adapters.places + norm.place].replacement;
    if (replacement != nullptr) gamma = static_cast<const float*>(replacement);
  }
  const NormFinite finite =
      write_normalised<kTurns>(x + row * columns, gamma, columns, norm.epsilon, norm.offset,
                               out.stride / kVectorElements, out.x + row * out.stride, out.factors + row, shared);
  mark_unless(finite.input, out, row, out.marks.layer);
  mark_unless(finite.result, out, row, out.marks.own_layer);
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

RowOutput checked_output(int row_count, std::int64_t columns, const PreparedRows& out, const Marks& marks) {
  if (row_count < 0 || columns < 1)
    throw Error(Code::unsupported, "The card's prepare got a shape without columns", "Give at least one column");
  if (reinterpret_cast<std::uintptr_t>(out.x) % 16 != 0)
    throw Error(Code::unsupported, "The card's prepare got rows that are not 16-byte aligned", "Align PreparedRows::x");
  return {out.x, out.factors, prepared_stride(columns), marks};
}

}  // namespace

void prepare(const float* x, int row_count, std::int64_t columns, const PreparedRows& out, const Marks& marks,
             Stream stream) {
  const RowOutput output = checked_output(row_count, columns, out, marks);
  if (row_count == 0) return;
  by_shape(columns, [&](auto turns, unsigned threads) {
    prepare_kernel<decltype(turns)::value>
        <<<static_cast<unsigned>(row_count), threads, 0, stream>>>(x, columns, output);
  });
  DUET_CUDA(cudaGetLastError());
}

void swiglu(const float* gate, const float* up, int row_count, std::int64_t columns, const PreparedRows& out,
            const Marks& marks, Stream stream) {
  const RowOutput output = checked_output(row_count, columns, out, marks);
  if (row_count == 0) return;
  by_shape(columns, [&](auto turns, unsigned threads) {
    swiglu_kernel<decltype(turns)::value>
        <<<static_cast<unsigned>(row_count), threads, 0, stream>>>(gate, up, columns, output);
  });
  DUET_CUDA(cudaGetLastError());
}

void normalise(const float* x, const float* gamma, double epsilon, bool zero_centred, const StepRow* rows,
               int row_count, std::int64_t columns, const AdapterTable& adapters, int place, const PreparedRows& out,
               const Marks& marks, Stream stream) {
  const RowOutput output = checked_output(row_count, columns, out, marks);
  if (row_count == 0) return;
  const NormArguments norm{gamma, static_cast<float>(epsilon), zero_centred ? 1.0F : 0.0F, rows, adapters, place};
  by_shape(columns, [&](auto turns, unsigned threads) {
    normalise_kernel<decltype(turns)::value>
        <<<static_cast<unsigned>(row_count), threads, 0, stream>>>(x, columns, norm, output);
  });
  DUET_CUDA(cudaGetLastError());
}

}  // namespace duet::cuda
