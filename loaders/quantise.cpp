#include "loaders/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "duet/error.h"
#include "engine/half.h"
#include "engine/quant_blocks.h"

namespace duet::loaders {
namespace {

constexpr std::int64_t kChunkElements = 65536;  // A multiple of every legal block size; 256 KiB of float32.
[[noreturn]] void refuse_value(std::string_view tensor, std::int64_t element, std::int64_t columns, float value,
                               std::string_view why, std::string_view fix) {
  throw Error(
      Code::non_finite,
      fmt::format("{} holds {} at row {}, column {}, {}", tensor, value, element / columns, element % columns, why),
      std::string(fix));
}

void check_finite(std::span<const float> values, std::int64_t first, std::int64_t columns, std::string_view tensor) {
  // x - x is zero for every finite x and NaN otherwise: one branch for the whole span.
  float sum = 0;
  for (const float value : values) sum += value - value;
  if (sum == 0) return;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      refuse_value(tensor, first + static_cast<std::int64_t>(i), columns, values[i], "which is not a finite number",
                   "The checkpoint is damaged or was saved after training diverged; take another copy");
}

// ---- 4-bit codes ----

float absmax_of(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

/// One block of 4-bit codes; returns its absmax. `whole` is false for a short last block, which bitsandbytes divides by
/// its absmax instead of multiplying by the reciprocal (and whose absmax it never lets fall under kSmallestBlockScale).
float quantise_block4(std::span<float> values, bool whole, const CodeLadder& ladder, std::byte* codes) {
  float absmax = absmax_of(values);
  if (whole) {
    const float reciprocal = 1.0F / std::max(absmax, kSmallestBlockScale);
    for (float& value : values) value = std::clamp(value * reciprocal, -1.0F, 1.0F);
  } else {
    absmax = std::max(absmax, kSmallestBlockScale);
    for (float& value : values) value = std::clamp(value / absmax, -1.0F, 1.0F);
  }
  std::array<std::int32_t, 4096> steps;  // The largest legal block.
  const std::size_t count = values.size();
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t step = 0;
    for (const float midpoint : ladder.midpoints) step += values[i] > midpoint ? 1 : 0;
    steps[i] = step;
  }
  std::int32_t zero_step = 0;
  for (const float midpoint : ladder.midpoints) zero_step += 0.0F > midpoint ? 1 : 0;
  for (std::size_t i = 0; i < count; i += 2) {
    const std::uint8_t high = ladder.codes[static_cast<std::size_t>(steps[i])];
    const std::uint8_t low = ladder.codes[static_cast<std::size_t>(i + 1 < count ? steps[i + 1] : zero_step)];
    codes[i / 2] = static_cast<std::byte>(high << 4 | low);
  }
  return absmax;
}

/// One block of int8 codes; returns its scale, absmax / 127. A code is value / scale, rounded to the nearest, ties to
/// even.
float quantise_block8(std::span<const float> values, std::byte* codes) {
  const float scale = absmax_of(values) / 127.0F;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float code = scale > 0 ? std::nearbyint(std::clamp(values[i] / scale, -127.0F, 127.0F)) : 0.0F;
    codes[i] = static_cast<std::byte>(static_cast<std::int8_t>(code));
  }
  return scale;
}

// ---- 16 bit ----

void store_half(std::span<const float> values, std::int64_t first, std::int64_t columns, std::string_view tensor,
                Half* destination) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    destination[i] = to_half(values[i]);
    if (std::isinf(to_float(destination[i])))
      refuse_value(tensor, first + static_cast<std::int64_t>(i), columns, values[i],
                   "which is beyond the 65504 that float16 can hold", "Store it as bf16 or f32 instead");
  }
}

void store_bfloat16(std::span<const float> values, std::int64_t first, std::int64_t columns, std::string_view tensor,
                    Bfloat16* destination) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    destination[i] = to_bfloat16(values[i]);
    if (std::isinf(to_float(destination[i])))
      refuse_value(tensor, first + static_cast<std::int64_t>(i), columns, values[i],
                   "which is beyond what bfloat16 can hold", "Store it as f32 instead");
  }
}

// ---- one chunk, and all of them on several threads ----

struct Job {
  const ElementReader& read;
  std::int64_t elements;
  std::int64_t columns;
  StorageSpec spec;
  std::byte* data;
  float* scales;  // Quantised only; a buffer of the caller when nested.
  std::string_view tensor;
};

void store_chunk(const Job& job, std::int64_t first, std::span<float> values) {
  job.read(first, values);
  check_finite(values, first, job.columns, job.tensor);
  switch (job.spec.storage) {
    case Storage::f32:
      std::copy(values.begin(), values.end(), reinterpret_cast<float*>(job.data) + first);
      return;
    case Storage::f16:
      store_half(values, first, job.columns, job.tensor, reinterpret_cast<Half*>(job.data) + first);
      return;
    case Storage::bf16:
      store_bfloat16(values, first, job.columns, job.tensor, reinterpret_cast<Bfloat16*>(job.data) + first);
      return;
    case Storage::nf4:
    case Storage::fp4:
    case Storage::int8:
      break;
  }
  const auto block_size = static_cast<std::size_t>(job.spec.block_size);
  for (std::size_t start = 0; start < values.size(); start += block_size) {
    const std::span<float> block = values.subspan(start, std::min(block_size, values.size() - start));
    const std::int64_t element = first + static_cast<std::int64_t>(start);
    float& scale = job.scales[element / job.spec.block_size];
    scale = job.spec.storage == Storage::int8 ? quantise_block8(block, job.data + element)
                                              : quantise_block4(block, block.size() == block_size,
                                                                ladder_of(job.spec.storage), job.data + element / 2);
  }
}

/// Threads take chunks in turn; each chunk writes its own bytes, so their order does not matter. When several fail, the
/// first in the matrix is reported.
void store_chunks(const Job& job, int threads) {
  const std::int64_t chunks = (job.elements + kChunkElements - 1) / kChunkElements;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  std::int64_t failed_chunk = chunks;
  const auto work = [&] {
    std::vector<float> buffer(static_cast<std::size_t>(std::min(kChunkElements, job.elements)));
    for (std::int64_t chunk = next++; chunk < chunks; chunk = next++) {
      const std::int64_t first = chunk * kChunkElements;
      const auto count = static_cast<std::size_t>(std::min(kChunkElements, job.elements - first));
      try {
        store_chunk(job, first, std::span(buffer).first(count));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (chunk < failed_chunk) failure = std::current_exception();
        failed_chunk = std::min(failed_chunk, chunk);
        next = chunks;
      }
    }
  };
  const std::int64_t wanted = threads > 0 ? threads : std::int64_t{std::max(1U, std::thread::hardware_concurrency())};
  std::vector<std::jthread> helpers;
  for (std::int64_t i = 1; i < std::min(wanted, chunks); ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void store_matrix(const ElementReader& read, std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
                  std::span<std::byte> region, std::string_view tensor, int threads) {
  const MatrixLayout layout = layout_of(rows, columns, spec);
  if (region.size() != layout.bytes)
    throw Error(Code::internal, fmt::format("{} was given a region of {} bytes and its layout has {}", tensor,
                                            region.size(), layout.bytes));
  const auto blocks = static_cast<std::size_t>(layout.blocks);
  std::vector<float> own_scales(spec.nested ? blocks : 0);
  float* scales = spec.nested ? own_scales.data() : reinterpret_cast<float*>(region.data() + layout.scales_offset);
  std::fill(region.begin() + static_cast<std::ptrdiff_t>(layout.data_bytes), region.end(), std::byte{0});
  store_chunks({read, rows * columns, columns, spec, region.data(), scales, tensor}, threads);
  if (!spec.nested) return;
  auto* codes = reinterpret_cast<std::uint8_t*>(region.data() + layout.scales_offset);
  auto* nested_scales = reinterpret_cast<float*>(region.data() + layout.nested_scales_offset);
  auto* map = reinterpret_cast<float*>(region.data() + layout.nested_map_offset);
  const float offset = nested_offset_of(own_scales);
  quantise_scales(own_scales, offset, {codes, blocks},
                  {nested_scales, (blocks + kNestedBlockSize - 1) / kNestedBlockSize});
  std::copy(dynamic_map().begin(), dynamic_map().end(), map);
  map[256] = offset;
}

// ---- double quantisation ----

const std::array<float, 256>& dynamic_map() {
  static const std::array<float, 256> kMap = [] {
    // For each exponent, 2^exponent + 1 points from 0.1 to 1, neighbours averaged, times a power of ten, both signs;
    // float32 throughout; points are counted from the nearer end in one rounding, as
    // torch.linspace does.
    std::array<float, 256> map{};
    std::size_t size = 0;
    constexpr std::array<float, 7> kPowers = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
    for (std::size_t exponent = 0; exponent < kPowers.size(); ++exponent) {
      const int points = (1 << exponent) + 1;
      const float step = (1.0F - 0.1F) / static_cast<float>(points - 1);
      const auto point = [&](int i) {
        return i < points / 2 ? std::fma(step, static_cast<float>(i), 0.1F)
                              : std::fma(-step, static_cast<float>(points - i - 1), 1.0F);
      };
      for (int i = 0; i + 1 < points; ++i) {
        const float value = kPowers[exponent] * ((point(i) + point(i + 1)) / 2.0F);
        map[size++] = value;
        map[size++] = -value;
      }
    }
    map[size++] = 0.0F;
    map[size++] = 1.0F;
    std::sort(map.begin(), map.end());
    return map;
  }();
  return kMap;
}

float nested_offset_of(std::span<const float> scales) {
  double sum = 0;
  for (const float scale : scales) sum += double{scale};
  return scales.empty() ? 0.0F : static_cast<float>(sum / static_cast<double>(scales.size()));
}

namespace {

/// bitsandbytes' CPU backend rounds a normalised value to one of 65,536 even steps and looks the nearest code up there.
const std::array<std::uint8_t, 65536>& nearest_codes() {
  static const std::array<std::uint8_t, 65536> kCodes = [] {
    std::array<std::uint8_t, 65536> codes{};
    std::size_t code = 0;
    for (std::size_t step = 0; step < codes.size(); ++step) {
      const float value = static_cast<float>(step) / 65535.0F * 2.0F - 1.0F;
      while (code < 255 && value > (dynamic_map()[code] + dynamic_map()[code + 1]) / 2.0F) ++code;
      codes[step] = static_cast<std::uint8_t>(code);
    }
    return codes;
  }();
  return kCodes;
}

}  // namespace

void quantise_scales(std::span<const float> scales, float offset, std::span<std::uint8_t> codes,
                     std::span<float> nested_scales) {
  constexpr float kHalfStep = 0.5F;  // Added before the cut to whole steps, in float32 as bitsandbytes does it.
  for (std::size_t start = 0; start < scales.size(); start += kNestedBlockSize) {
    const std::size_t end = std::min(scales.size(), start + kNestedBlockSize);
    float absmax = 0;
    for (std::size_t i = start; i < end; ++i) absmax = std::max(absmax, std::abs(scales[i] - offset));
    nested_scales[start / kNestedBlockSize] = absmax;
    const float reciprocal = absmax > 0 ? 1.0F / absmax : 0.0F;
    for (std::size_t i = start; i < end; ++i) {
      const float difference = scales[i] - offset;
      const float value = difference == 0 ? 0.0F : std::clamp(difference * reciprocal, -1.0F, 1.0F);
      const auto step = static_cast<std::size_t>((value + 1.0F) * 0.5F * 65535.0F + kHalfStep);
      codes[i] = absmax > 0 ? nearest_codes()[step] : 0;
    }
  }
}

}  // namespace duet::loaders
