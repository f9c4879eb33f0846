#pragma once

// What follows a product W x: factors, the row's adapter (LoRA's expansion, DoRA's row scale, replaced tensors), bias
// and the store. Adapters are read from the table in device memory, so that a captured graph stays valid when they
// change. Nothing here depends on the other rows of a step.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device/tiles.cuh"
#include "cuda/step_types.h"

namespace duet::cuda {

struct Projection;

constexpr int kMostParts = 3;  // launch.h's kMostProjectionParts

/// One matrix of a launch, as the epilogue sees it.
struct PartOutput {
  const float* bias;  // [out] or null
  float* y;           // [rows, out]
  std::int64_t out;
  float factor;  // of the weight
  int index;     // among the projection's parts
  int place;
  int bias_place;
};

/// The step: what all parts share.
struct ProjectedRows {
  const __half* x;       // [rows, x_stride], zero beyond `columns`
  const float* factors;  // [rows]
  const StepRow* rows;
  AdapterTable adapters;
  const float* lora;  // [rows, kMostParts, max_rank]
  std::int64_t columns;
  std::int64_t x_stride;
  int row_count;
  int max_rank;
  bool add;
};

/// Host code, project.cu.
ProjectedRows rows_of(const Projection& projection);
PartOutput output_of(const Projection& projection, int part);

/// What one row of a step adds to one part.
struct RowAdapter {
  const void* b;            // [out, rank], unless rank is 0
  const float* lora_bias;   // [out] or null
  const float* row_scale;   // [out] or null
  const void* replacement;  // [out, columns] in place of W, or null
  const float* bias;        // [out] or null: the base's or the adapter's
  float scale;              // of the LoRA term
  std::int32_t rank;        // 0: no LoRA
  Held b_held;
  Held replacement_held;
};

__device__ inline RowAdapter adapter_of(const ProjectedRows& step, const PartOutput& part, int row) {
  RowAdapter adapter{};
  adapter.bias = part.bias;
  if (step.adapters.parts == nullptr || step.rows[row].adapter_slot < 0) return adapter;
  const AdapterPart* parts =
      step.adapters.parts + static_cast<std::int64_t>(step.rows[row].adapter_slot) * step.adapters.places;
  const AdapterPart& own = parts[part.place];
  if (own.a != nullptr) {
    adapter.b = own.b;
    adapter.lora_bias = own.lora_bias;
    adapter.scale = own.scale * step.rows[row].adapter_scale;
    adapter.rank = own.rank;
    adapter.b_held = static_cast<Held>(own.b_storage);
  }
  adapter.row_scale = own.row_scale;
  adapter.replacement = own.replacement;
  adapter.replacement_held = static_cast<Held>(own.replacement_storage);
  if (part.bias_place >= 0 && parts[part.bias_place].replacement != nullptr)
    adapter.bias = static_cast<const float*>(parts[part.bias_place].replacement);
  return adapter;
}

/// Element `index` of a row-major tensor in f32, f16 or bf16.
__device__ inline float load_as(Held held, const void* tensor, std::int64_t index) {
  if (held == Held::f32) return static_cast<const float*>(tensor)[index];
  if (held == Held::f16) return __half2float(static_cast<const __half*>(tensor)[index]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(tensor)[index]);
}

/// Two 16-bit numbers as float32.
__device__ inline float2 pair_as_floats(bool is_f16, std::uint32_t bits) {
  if (is_f16) return __half22float2(reinterpret_cast<const __half2&>(bits));
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000U)};
}

/// Elements [index, index + 8); `index` a multiple of 8, the tensor 16-byte aligned.
__device__ inline void load_eight_as(Held held, const void* tensor, std::int64_t index, float (&values)[8]) {
  if (held == Held::f32) {
    const float4* source = reinterpret_cast<const float4*>(static_cast<const float*>(tensor) + index);
    const float4 low = source[0];
    const float4 high = source[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
    return;
  }
  const uint4 raw = *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(tensor) + index);
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = pair_as_floats(held == Held::f16, words[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

/// sum_r B[o, r] z[r]
__device__ inline float expansion_of(const RowAdapter& adapter, const float* z, int max_rank, std::int64_t o) {
  float sum = 0;
  const std::int64_t first = o * adapter.rank;
  if (adapter.rank % 8 == 0 && max_rank % 4 == 0) {
    for (int r = 0; r < adapter.rank; r += 8) {
      float b[8];
      load_eight_as(adapter.b_held, adapter.b, first + r, b);
      const float4 low = *reinterpret_cast<const float4*>(z + r);
      const float4 high = *reinterpret_cast<const float4*>(z + r + 4);
      sum = fmaf(b[0], low.x, sum), sum = fmaf(b[1], low.y, sum), sum = fmaf(b[2], low.z, sum);
      sum = fmaf(b[3], low.w, sum), sum = fmaf(b[4], high.x, sum), sum = fmaf(b[5], high.y, sum);
      sum = fmaf(b[6], high.z, sum), sum = fmaf(b[7], high.w, sum);
    }
    return sum;
  }
  for (int r = 0; r < adapter.rank; ++r) sum = fmaf(load_as(adapter.b_held, adapter.b, first + r), z[r], sum);
  return sum;
}

/// sum_c R[o, c] x[c] of a replaced matrix, by one whole warp; x without its row's factor. Rare, so it is plain.
__device__ inline float replaced_product(const RowAdapter& adapter, const __half* x, std::int64_t columns,
                                         std::int64_t o) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
  if (columns % 8 == 0) {
    for (std::int64_t c = lane * 8; c < columns; c += 256) {
      float weights[8];
      float values[8];
      load_eight_as(adapter.replacement_held, adapter.replacement, o * columns + c, weights);
      load_eight_as(Held::f16, x, c, values);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(weights[i], values[i], sum);
    }
  } else {
    for (std::int64_t c = lane; c < columns; c += 32)
      sum = fmaf(load_as(adapter.replacement_held, adapter.replacement, o * columns + c), __half2float(x[c]), sum);
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
  return sum;
}

__device__ inline float scaled(float sum, float weight_factor, float x_factor) {
  return __fmul_rn(__fmul_rn(sum, weight_factor), x_factor);
}

/// The end of every path. `product` is (W x)[o] with all factors in it (scaled), `expansion` is (B z)[o].
__device__ inline void finish(const PartOutput& part, const RowAdapter& adapter, bool add, int row, std::int64_t o,
                              float product, float expansion) {
  // Every rounding is written out, so that kernels made for different numbers of rows give the same bits.
  float value = product;
  if (adapter.rank > 0) {
    if (adapter.lora_bias != nullptr) expansion = __fadd_rn(expansion, adapter.lora_bias[o]);
    value = fmaf(adapter.scale, expansion, value);
  }
  if (adapter.row_scale != nullptr) value = __fmul_rn(value, adapter.row_scale[o]);
  if (adapter.bias != nullptr) value = __fadd_rn(value, adapter.bias[o]);
  float* y = part.y + row * part.out + o;
  *y = add ? __fadd_rn(*y, value) : value;
}

}  // namespace duet::cuda
