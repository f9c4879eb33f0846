// A token's row of the embedding, with what its row's adapter does to it.
//   embedding  [vocabulary, hidden] in any storage, rows or tiles; device memory, or pinned host memory read through
//              the bus (neighbouring threads read neighbouring bytes, each byte of the row once)
//   residual   [rows, hidden] float32
//   y = row_scale .* (E[token] + s (B A[:, token] + c)), E the base's or the adapter's replacement
//   launch     one column a thread, 256 a block; grid (hidden / 256, rows)
//   error      base alone: none, bit-equal to engine/quant_blocks.cpp. LoRA: sums in float32 in the order of r.
//   source     engine/host/host_step.cpp, embed_token

#include "cuda/check.h"
#include "cuda/device/numbers.cuh"
#include "cuda/device/tiles.cuh"
#include "cuda/launch.h"
#include "duet/error.h"

namespace duet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostRows = 65535;  // A grid's second dimension.

/// What LoRA, bias and DoRA make of `value`, element (token, column). Every thread of the block calls it; `shared`
/// [kThreads].
__device__ inline float adapt(const AdapterPart& part, float request_scale, std::int64_t vocabulary,
                              std::int64_t hidden, std::int64_t token, std::int64_t column, float value,
                              float* shared) {
  const Held a_held = static_cast<Held>(part.a_storage);
  const Held b_held = static_cast<Held>(part.b_storage);
  const int own = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int first = 0; first < part.rank; first += kThreads) {
    const int count = min(part.rank - first, kThreads);
    __syncthreads();
    if (own < count) shared[own] = number_at(part.a, a_held, (first + own) * vocabulary + token);
    __syncthreads();
    if (column >= hidden) continue;
    for (int r = 0; r < count; ++r) sum += shared[r] * number_at(part.b, b_held, column * part.rank + first + r);
  }
  if (column >= hidden) return 0;
  if (part.lora_bias != nullptr) sum += part.lora_bias[column];
  value += part.scale * request_scale * sum;
  return part.row_scale == nullptr ? value : value * part.row_scale[column];
}

__global__ void __launch_bounds__(kThreads)
    embed_kernel(WeightView embedding, const StepRow* rows, AdapterTable adapters, int place, float* residual,
                 std::int32_t* bad_layer) {
  __shared__ float shared[kThreads];
  const StepRow row = rows[blockIdx.y];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t hidden = embedding.columns;
  float* out = residual + blockIdx.y * hidden;
  if (blockIdx.x == 0 && threadIdx.x == 0) bad_layer[blockIdx.y] = kNoBadLayer;
  if (row.active == 0 || row.token < 0 || row.token >= embedding.rows) {  // Filling: numbers that do no harm.
    if (column < hidden) out[column] = 0;
    return;
  }

  const AdapterPart* part = nullptr;
  if (adapters.parts != nullptr && row.adapter_slot >= 0)
    part = adapters.parts + static_cast<std::int64_t>(row.adapter_slot) * adapters.places + place;
  const void* replacement = part == nullptr ? nullptr : part->replacement;
  float value = 0;
  if (column < hidden)
    value = replacement == nullptr
                ? element_of(embedding, row.token, column)
                : number_at(replacement, static_cast<Held>(part->replacement_storage), row.token * hidden + column);
  if (part != nullptr && part->a != nullptr)
    value = adapt(*part, row.adapter_scale, embedding.rows, hidden, row.token, column, value, shared);
  if (column < hidden) out[column] = value;
}

}  // namespace

void embed(const DeviceMatrix& embedding, const StepRow* rows, int row_count, const AdapterTable& adapters, int place,
           float* residual, std::int32_t* bad_layer, Stream stream) {
  const WeightView view = view_of(embedding);
  if (row_count < 0 || row_count > kMostRows || view.columns < 1)
    throw Error(Code::unsupported, "The card's embed got a shape it has no launch for",
                "Give 0 to 65,535 rows of at least one column");
  if (row_count == 0) return;
  const dim3 grid(static_cast<unsigned>((view.columns + kThreads - 1) / kThreads), static_cast<unsigned>(row_count));
  embed_kernel<<<grid, kThreads, 0, stream>>>(view, rows, adapters, place, residual, bad_layer);
  DUET_CUDA(cudaGetLastError());
}

}  // namespace duet::cuda
