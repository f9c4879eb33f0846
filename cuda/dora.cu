// DoRA's row scales, once when an adapter is loaded: magnitude over the length of each row of W + s B A.
//   W          [out, in] in either arrangement and any storage; of the embedding [vocabulary, hidden]
//   A, B       [rank, in], [out, rank] in f16, bf16 or f32
//   magnitude  [out] float32, replaced in place
//   launch     by rows: a block a row, 256 threads over the columns. By columns (the embedding): a block of 32 columns
//   by 32
//              tokens at a time.
//   error      elements in float32 as the host makes them, squares summed in float64 in a fixed order
//   source     arXiv:2402.09353; engine/host/host_weights.cpp

#include "cuda/check.h"
#include "cuda/device/adapters.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/launch.h"
#include "duet/error.h"

namespace duet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;
constexpr int kTokens = 32;
constexpr int kMostRank = 1024;  // B's row stands in shared memory.

struct LowRank {
  const void* a;
  const void* b;
  Held a_held;
  Held b_held;
  int rank;
  float scale;
};

// ---- kernels ----

__global__ void __launch_bounds__(kThreads)
    row_lengths_kernel(const __grid_constant__ WeightView w, LowRank lora, float* __restrict__ magnitude) {
  __shared__ float b[kMostRank];
  __shared__ double sums[kMostWarps];
  const std::int64_t row = blockIdx.x;
  for (int r = static_cast<int>(threadIdx.x); r < lora.rank; r += kThreads)
    b[r] = lora.scale * load_as(lora.b_held, lora.b, row * lora.rank + r);
  __syncthreads();
  double squares = 0;
  for (std::int64_t column = threadIdx.x; column < w.columns; column += kThreads) {
    float value = element_of(w, row, column);
    for (int r = 0; r < lora.rank; ++r)
      value = __fadd_rn(value, __fmul_rn(b[r], load_as(lora.a_held, lora.a, r * w.columns + column)));
    squares += static_cast<double>(value) * value;
  }
  const double sum = reduce_block(squares, 0.0, Sum{}, sums);
  if (threadIdx.x == 0) magnitude[row] = static_cast<float>(magnitude[row] / sqrt(sum));
}

/// Threads (column, token): threadIdx.x runs over columns, so that a warp reads neighbours of one row.
__global__ void __launch_bounds__(kColumns* kTokens)
    column_lengths_kernel(const __grid_constant__ WeightView w, LowRank lora, float* __restrict__ magnitude) {
  __shared__ double sums[kTokens][kColumns + 1];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  double squares = 0;
  if (column < w.columns) {
    for (std::int64_t token = threadIdx.y; token < w.rows; token += kTokens) {
      float value = element_of(w, token, column);
      for (int r = 0; r < lora.rank; ++r) {
        const float factor = __fmul_rn(lora.scale, load_as(lora.b_held, lora.b, column * lora.rank + r));
        value = __fadd_rn(value, __fmul_rn(factor, load_as(lora.a_held, lora.a, r * w.rows + token)));
      }
      squares += static_cast<double>(value) * value;
    }
  }
  sums[threadIdx.y][threadIdx.x] = squares;
  __syncthreads();
  if (threadIdx.y != 0 || column >= w.columns) return;
  double sum = 0;
  for (int i = 0; i < kTokens; ++i) sum += sums[i][threadIdx.x];
  magnitude[column] = static_cast<float>(magnitude[column] / sqrt(sum));
}

}  // namespace

// ---- launcher ----

void dora_row_scales(const DeviceMatrix& weight, const AdapterPart& part, float scale, bool by_column, float* magnitude,
                     Stream stream) {
  if (part.rank < 1 || part.rank > kMostRank || part.a == nullptr || part.b == nullptr)
    throw Error(Code::unsupported, "The card's DoRA got an adapter of a rank it has no room for",
                "Use rank 1 to 1,024");
  const WeightView w = view_of(weight);
  const LowRank lora{part.a,    part.b, static_cast<Held>(part.a_storage), static_cast<Held>(part.b_storage),
                     part.rank, scale};
  if (by_column) {
    const auto blocks = static_cast<unsigned>((w.columns + kColumns - 1) / kColumns);
    column_lengths_kernel<<<blocks, dim3(kColumns, kTokens), 0, stream>>>(w, lora, magnitude);
  } else {
    row_lengths_kernel<<<static_cast<unsigned>(w.rows), kThreads, 0, stream>>>(w, lora, magnitude);
  }
  DUET_CUDA(cudaGetLastError());
}

}  // namespace duet::cuda
