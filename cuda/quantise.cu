// Numbers to blocks, for checkpoints that are quantised on arrival.
//   source   [n] f32, f16 or bf16, 16-byte aligned; the flattened row-major matrix
//   codes    [ceil(n / 2)] bytes, the earlier element in the high half (nf4, fp4); [n] signed bytes (int8)
//   scales   [ceil(n / block)] float32: absmax (4 bit) or absmax / 127 (int8)
//   launch   a group of min(32, block / 8) lanes a quantisation block, 8 elements a lane and turn; 256 threads a CUDA
//   block error    none: bit-equal to loaders/quantise.h, nested scales excepted (tests/cuda/quantise_test.cpp) source
//   bitsandbytes' quantize_4bit (its portable rules, see docs/formats.md)

#include <cstdint>

#include "cuda/check.h"
#include "cuda/device/blocks.cuh"
#include "cuda/launch.h"
#include "duet/error.h"
#include "engine/quant_blocks.h"

namespace duet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerLane = 8;

struct DeviceLadder {
  float midpoint[15];
  std::uint8_t code[16];
};

// ---- device pieces ----

__device__ inline float load(const float* source) { return *source; }
__device__ inline float load(const __half* source) { return __half2float(*source); }
__device__ inline float load(const __nv_bfloat16* source) { return __bfloat162float(*source); }

template <class Input>
struct alignas(16) Eight {
  Input value[kPerLane];
};

/// Elements [first, first + 8) as float32; those at or beyond `end` are zero.
template <class Input>
__device__ inline void load_eight(const Input* source, std::int64_t first, std::int64_t end,
                                  float (&values)[kPerLane]) {
  if (first + kPerLane <= end) {
    const Eight<Input> eight = *reinterpret_cast<const Eight<Input>*>(source + first);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) values[i] = load(&eight.value[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) values[i] = first + i < end ? load(source + first + i) : 0.0F;
}

__device__ inline float clamp_to_one(float value) { return fminf(fmaxf(value, -1.0F), 1.0F); }

__device__ inline std::uint32_t code_of(float value, const DeviceLadder& ladder) {
  int step = 0;
#pragma unroll
  for (int i = 0; i < 15; ++i) step += value > ladder.midpoint[i] ? 1 : 0;
  return ladder.code[step];
}

// ---- kernel ----

/// `kBits` is 4 or 8; `lanes` divides 32 and `block` is a multiple of 8 * lanes.
template <int kBits, class Input>
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(const Input* __restrict__ source, std::int64_t n, int block, int lanes, DeviceLadder given,
                    float smallest_scale, std::uint8_t* __restrict__ codes, float* __restrict__ scales,
                    unsigned long long* __restrict__ first_bad) {
  __shared__ DeviceLadder ladder;
  if (threadIdx.x == 0) ladder = given;
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * (kThreads / lanes) + threadIdx.x / lanes;
  const std::int64_t start = group * block;
  const std::int64_t end = start + block < n ? start + block : n;
  const bool whole = end - start == block;

  float absmax = 0;
  for (std::int64_t first = start + lane * kPerLane; first < end; first += lanes * kPerLane) {
    float values[kPerLane];
    load_eight(source, first, end, values);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (!isfinite(values[i])) atomicMin(first_bad, static_cast<unsigned long long>(first + i));
      absmax = fmaxf(absmax, fabsf(values[i]));
    }
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    absmax = fmaxf(absmax, __shfl_xor_sync(~0U, absmax, distance));
  if (start >= n) return;  // after the shuffles: every lane of a warp takes part in them

  // A short last block is divided by its absmax, a whole one multiplied by the reciprocal: bitsandbytes' two roundings.
  if (kBits == 4 && !whole) absmax = fmaxf(absmax, smallest_scale);
  const float reciprocal = __fdiv_rn(1.0F, fmaxf(absmax, smallest_scale));
  const float scale8 = __fdiv_rn(absmax, 127.0F);
  if (lane == 0) scales[group] = kBits == 4 ? absmax : scale8;

  for (std::int64_t first = start + lane * kPerLane; first < end; first += lanes * kPerLane) {
    float values[kPerLane];
    load_eight(source, first, end, values);
    std::uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if constexpr (kBits == 4) {
        const float scaled = whole ? __fmul_rn(values[i], reciprocal) : __fdiv_rn(values[i], absmax);
        words[0] |= code_of(clamp_to_one(scaled), ladder) << (8 * (i / 2) + (i % 2 == 0 ? 4 : 0));
      } else {
        const float scaled = scale8 > 0 ? fminf(fmaxf(__fdiv_rn(values[i], scale8), -127.0F), 127.0F) : 0.0F;
        words[i / 4] |= (static_cast<std::uint32_t>(static_cast<int>(rintf(scaled))) & 0xFFU) << (8 * (i % 4));
      }
    }
    const std::int64_t bytes =
        kBits == 4 ? (min(end - first, std::int64_t{kPerLane}) + 1) / 2 : min(end - first, std::int64_t{kPerLane});
    std::uint8_t* out = codes + (kBits == 4 ? first / 2 : first);
    if (bytes == (kBits == 4 ? 4 : 8)) {
      reinterpret_cast<std::uint32_t*>(out)[0] = words[0];
      if constexpr (kBits == 8) reinterpret_cast<std::uint32_t*>(out)[1] = words[1];
    } else {
      for (int i = 0; i < bytes; ++i) out[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
    }
  }
}

// ---- launcher ----

template <int kBits, class Input>
void launch(const void* source, std::int64_t n, const StorageSpec& spec, std::byte* codes, float* scales,
            std::int64_t* first_bad, Stream stream) {
  DeviceLadder ladder{};
  if (kBits == 4) {
    const CodeLadder& host = ladder_of(spec.storage);
    for (std::size_t i = 0; i < 15; ++i) ladder.midpoint[i] = host.midpoints[i];
    for (std::size_t i = 0; i < 16; ++i) ladder.code[i] = host.codes[i];
  }
  const int lanes = spec.block_size / kPerLane < 32 ? spec.block_size / kPerLane : 32;
  const std::int64_t groups = (n + spec.block_size - 1) / spec.block_size;
  const std::int64_t groups_per_block = kThreads / lanes;
  const auto grid = static_cast<unsigned>((groups + groups_per_block - 1) / groups_per_block);
  quantise_kernel<kBits, Input><<<grid, kThreads, 0, stream>>>(
      static_cast<const Input*>(source), n, spec.block_size, lanes, ladder, kSmallestBlockScale,
      reinterpret_cast<std::uint8_t*>(codes), scales, reinterpret_cast<unsigned long long*>(first_bad));
  DUET_CUDA(cudaGetLastError());
}

struct Variant {
  Storage source;
  bool four_bit;
  void (*launch)(const void*, std::int64_t, const StorageSpec&, std::byte*, float*, std::int64_t*, Stream);
};
constexpr Variant kVariants[] = {
    {Storage::f32, true, launch<4, float>},          {Storage::f16, true, launch<4, __half>},
    {Storage::bf16, true, launch<4, __nv_bfloat16>}, {Storage::f32, false, launch<8, float>},
    {Storage::f16, false, launch<8, __half>},        {Storage::bf16, false, launch<8, __nv_bfloat16>},
};

const Variant* find(Storage source, const StorageSpec& spec) {
  if (!is_quantised(spec.storage) || spec.nested || !is_legal_block_size(spec.storage, spec.block_size)) return nullptr;
  for (const Variant& variant : kVariants)
    if (variant.source == source && variant.four_bit == (spec.storage != Storage::int8)) return &variant;
  return nullptr;
}

}  // namespace

bool quantise_supports(Storage source_type, const StorageSpec& spec) { return find(source_type, spec) != nullptr; }

void quantise(const void* source, Storage source_type, std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
              std::byte* region, std::int64_t* first_bad, Stream stream) {
  const Variant* variant = find(source_type, spec);
  if (variant == nullptr)
    throw Error(Code::unsupported, "The card's quantise got a storage it has no kernel for",
                "Ask quantise_supports first");
  const MatrixLayout layout = layout_of(rows, columns, spec);
  variant->launch(source, rows * columns, spec, region, reinterpret_cast<float*>(region + layout.scales_offset),
                  first_bad, stream);
}

Work work_of_quantise(std::int64_t rows, std::int64_t columns, Storage source_type, const StorageSpec& spec) {
  const MatrixLayout layout = layout_of(rows, columns, spec);
  const double n = static_cast<double>(rows) * static_cast<double>(columns);
  return {n * (source_type == Storage::f32 ? 4 : 2), static_cast<double>(layout.data_bytes + layout.scales_bytes), n};
}

}  // namespace duet::cuda
