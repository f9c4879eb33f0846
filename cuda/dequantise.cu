// Blocks to numbers: destination[i] = code_table[code[i]] * scale[i / block], for the flattened matrix.
//   codes        [ceil(n / 2)] bytes, the earlier element in the high half (nf4, fp4); [n] signed bytes (int8)
//   scales       [ceil(n / block)] float32, or nested (device/blocks.cuh)
//   destination  [n] f32, f16 or bf16, 16-byte aligned
//   launch       one thread per 16 elements, 256 threads a block; a group of 16 never crosses a scale (blocks are >=
//   32) error        none: bit-equal to engine/quant_blocks.cpp (tests/cuda/dequantise_test.cpp) source bitsandbytes'
//   dequantize_4bit; engine/weights.h for the layout

#include "cuda/check.h"
#include "cuda/device/blocks.cuh"
#include "cuda/launch.h"
#include "duet/error.h"
#include "engine/quant_blocks.h"

namespace duet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kElementsPerThread = 16;

// ---- kernel ----

template <class Output>
struct alignas(16) Group {
  Output value[kElementsPerThread];
};

/// `kBits` is 4 or 8. `n` is the number of elements of the flattened matrix.
template <int kBits, class Output>
__global__ void __launch_bounds__(kThreads)
    dequantise_kernel(const std::uint8_t* __restrict__ codes, Scales scales, CodeTable table, std::int64_t n,
                      int block_shift, Output* __restrict__ destination) {
  // 16 floats lie in 16 banks: lanes that read the same bank read the same word, so a lookup never conflicts.
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = table.value[threadIdx.x];
  __syncthreads();

  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElementsPerThread;
  if (first >= n) return;
  const float scale = scale_of(scales, first >> block_shift);
  const std::uint8_t* source = codes + (kBits == 4 ? first / 2 : first);

  if (first + kElementsPerThread <= n) {
    Group<Output> group;
    if constexpr (kBits == 4) {
      const uint2 packed = *reinterpret_cast<const uint2*>(source);
      const std::uint32_t words[2] = {packed.x, packed.y};
#pragma unroll
      for (int i = 0; i < kElementsPerThread; ++i) {
        const std::uint32_t byte = words[i / 8] >> (8 * (i / 2 % 4));
        store(&group.value[i], __fmul_rn(values[(i % 2 == 0 ? byte >> 4 : byte) & 0xFU], scale));
      }
    } else {
      const uint4 packed = *reinterpret_cast<const uint4*>(source);
      const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int i = 0; i < kElementsPerThread; ++i)
        store(&group.value[i],
              __fmul_rn(static_cast<float>(static_cast<std::int8_t>(words[i / 4] >> (8 * (i % 4)))), scale));
    }
    constexpr int kVectors = static_cast<int>(sizeof(Group<Output>) / sizeof(uint4));
    uint4* out = reinterpret_cast<uint4*>(destination + first);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) out[i] = reinterpret_cast<const uint4*>(&group)[i];
    return;
  }
  for (std::int64_t i = 0; first + i < n; ++i) {  // the last, short group
    float code;
    if constexpr (kBits == 4) {
      const std::uint32_t byte = source[i / 2];
      code = values[(i % 2 == 0 ? byte >> 4 : byte) & 0xFU];
    } else {
      code = static_cast<float>(static_cast<std::int8_t>(source[i]));
    }
    store(destination + first + i, __fmul_rn(code, scale));
  }
}

// ---- launcher ----

template <int kBits, class Output>
void launch(const Matrix& matrix, void* destination, Stream stream) {
  CodeTable table{};
  if (kBits == 4) {
    const auto& codes = matrix.spec.storage == Storage::nf4 ? kNf4Codes : kFp4Codes;
    for (int i = 0; i < 16; ++i) table.value[i] = codes[static_cast<std::size_t>(i)];
  }
  const Scales scales{matrix.scales, matrix.scale_codes, matrix.nested_scales, matrix.nested_map, matrix.nested_offset};
  const std::int64_t n = matrix.rows * matrix.columns;
  const std::int64_t groups = (n + kElementsPerThread - 1) / kElementsPerThread;
  const auto grid = static_cast<unsigned>((groups + kThreads - 1) / kThreads);
  int block_shift = 0;
  while ((1 << block_shift) < matrix.spec.block_size) ++block_shift;
  dequantise_kernel<kBits, Output><<<grid, kThreads, 0, stream>>>(reinterpret_cast<const std::uint8_t*>(matrix.data),
                                                                  scales, table, n, block_shift,
                                                                  static_cast<Output*>(destination));
  DUET_CUDA(cudaGetLastError());
}

struct Variant {
  bool four_bit;
  Storage output;
  void (*launch)(const Matrix&, void*, Stream);
};
constexpr Variant kVariants[] = {
    {true, Storage::f32, launch<4, float>},          {true, Storage::f16, launch<4, __half>},
    {true, Storage::bf16, launch<4, __nv_bfloat16>}, {false, Storage::f32, launch<8, float>},
    {false, Storage::f16, launch<8, __half>},        {false, Storage::bf16, launch<8, __nv_bfloat16>},
};

const Variant* find(const StorageSpec& spec, Storage output) {
  if (!is_quantised(spec.storage) || !is_legal_block_size(spec.storage, spec.block_size)) return nullptr;
  for (const Variant& variant : kVariants)
    if (variant.four_bit == (spec.storage != Storage::int8) && variant.output == output) return &variant;
  return nullptr;
}

}  // namespace

bool dequantise_supports(const StorageSpec& spec, Storage output) { return find(spec, output) != nullptr; }

void dequantise(const Matrix& matrix, Storage output, void* destination, Stream stream) {
  const Variant* variant = find(matrix.spec, output);
  if (variant == nullptr || (matrix.spec.nested && matrix.spec.storage == Storage::int8))
    throw Error(Code::unsupported, "The card's dequantise got a storage it has no kernel for",
                "Ask dequantise_supports first");
  variant->launch(matrix, destination, stream);
}

Work work_of_dequantise(const Matrix& matrix, Storage output) {
  const MatrixLayout layout = layout_of(matrix.rows, matrix.columns, matrix.spec);
  const double n = static_cast<double>(matrix.rows) * static_cast<double>(matrix.columns);
  return {static_cast<double>(layout.data_bytes + layout.scales_bytes + layout.nested_scales_bytes),
          n * (output == Storage::f32 ? 4 : 2), n};
}

}  // namespace duet::cuda
