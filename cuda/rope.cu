// Head norms, rotation, keys and values to their pages.
//   query   [rows, query_heads, head_size] float32, in place: rotate(norm(q))
//   key     [rows, kv_heads, head_size] float32: rotate(norm(k)), rounded to the KV type, to the row's page
//   value   likewise, rounded only
//   norm    gamma * x / sqrt(mean(x^2) + epsilon), optional; gamma the base's or the row's adapter's
//   rotate  (x[i], x[i + n/2]) by position * inverse_frequencies[i], one float32 product as in transformers; cos and
//           sin times attention_factor
//   int8    scale = absmax / 127, code = x / scale rounded to nearest even
//   launch  one warp a head of query, key or value: grid (ceil(heads / 4), rows), 4 warps a block; lane l holds the
//           pairs l, l + 32, l + 64, l + 96
//   error   norm: 2 roundings of x plus the factor's (a float32 sum of squares, relative error <= 12 * 2^-24);
//   rotation:
//           cos and sin to 2 ulp, 3 roundings
//   source  transformers' apply_rotary_pos_emb; engine/host/host_math.h

#include "cuda/check.h"
#include "cuda/device/dependent.cuh"
#include "cuda/device/kv.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/launch.h"
#include "duet/error.h"

namespace duet::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMostPairs = 4;  // A lane's, of a head of 256.

// ---- kernel ----

struct Head {
  float low[kMostPairs];   // x[i], i = lane + 32 * pair
  float high[kMostPairs];  // x[i + n/2]
};

__device__ Head load_head(const float* x, int half, int lane) {
  Head head{};
#pragma unroll
  for (int pair = 0; pair < kMostPairs; ++pair) {
    const int i = lane + 32 * pair;
    if (i >= half) break;
    head.low[pair] = x[i];
    head.high[pair] = x[i + half];
  }
  return head;
}

/// Elements beyond the head's are zero and stay so.
__device__ void normalise_head(Head& head, const float* gamma, float epsilon, int half, int lane) {
  float squares = 0;
#pragma unroll
  for (int pair = 0; pair < kMostPairs; ++pair) {
    squares = fmaf(head.low[pair], head.low[pair], squares);
    squares = fmaf(head.high[pair], head.high[pair], squares);
  }
  squares = reduce_warp(squares, Sum{});
  const float factor = 1.0F / sqrtf(squares / static_cast<float>(2 * half) + epsilon);
#pragma unroll
  for (int pair = 0; pair < kMostPairs; ++pair) {
    const int i = lane + 32 * pair;
    if (i >= half) break;
    head.low[pair] = gamma[i] * (head.low[pair] * factor);
    head.high[pair] = gamma[i + half] * (head.high[pair] * factor);
  }
}

struct Rotation {
  float sine[kMostPairs];
  float cosine[kMostPairs];
};

__device__ Rotation rotation_of(const float* inverse_frequencies, float attention_factor, int position, int half,
                                int lane) {
  Rotation rotation{};
#pragma unroll
  for (int pair = 0; pair < kMostPairs; ++pair) {
    const int i = lane + 32 * pair;
    if (i >= half) break;
    sincosf(__fmul_rn(static_cast<float>(position), inverse_frequencies[i]), &rotation.sine[pair],
            &rotation.cosine[pair]);
    rotation.sine[pair] *= attention_factor;
    rotation.cosine[pair] *= attention_factor;
  }
  return rotation;
}

/// Elements beyond the head's are zero and stay so.
__device__ void rotate_head(Head& head, const Rotation& rotation) {
#pragma unroll
  for (int pair = 0; pair < kMostPairs; ++pair) {
    const float low = head.low[pair];
    const float high = head.high[pair];
    head.low[pair] = fmaf(low, rotation.cosine[pair], -high * rotation.sine[pair]);
    head.high[pair] = fmaf(high, rotation.cosine[pair], low * rotation.sine[pair]);
  }
}

__device__ float largest_magnitude_of(const Head& head) {
  float largest = 0;
#pragma unroll
  for (int pair = 0; pair < kMostPairs; ++pair)
    largest = fmaxf(largest, fmaxf(fabsf(head.low[pair]), fabsf(head.high[pair])));
  return reduce_warp(largest, Max{});
}

/// Of the lane's elements; fmax would lose a NaN.
__device__ bool is_finite(const Head& head) {
  bool finite = true;
#pragma unroll
  for (int pair = 0; pair < kMostPairs; ++pair) finite &= isfinite(head.low[pair]) && isfinite(head.high[pair]);
  return finite;
}

/// The lane's elements to destination [2 half]; false where one does not fit.
template <KvType kType>
__device__ bool store_head(const Head& head, std::byte* destination, float* scale_place, int half, int lane) {
  if constexpr (kType == KvType::int8) {
    const float scale = largest_magnitude_of(head) / 127.0F;
    auto* codes = reinterpret_cast<std::int8_t*>(destination);
    const auto code_of = [&](float x) {
      const float code = scale > 0.0F ? fminf(fmaxf(rintf(x / scale), -127.0F), 127.0F) : 0.0F;
      return static_cast<std::int8_t>(code);
    };
    for (int pair = 0; pair < kMostPairs && lane + 32 * pair < half; ++pair) {
      codes[lane + 32 * pair] = code_of(head.low[pair]);
      codes[lane + 32 * pair + half] = code_of(head.high[pair]);
    }
    if (lane == 0) *scale_place = scale;
    return is_finite(head);
  } else {
    constexpr bool kBf16 = kType == KvType::bf16;
    constexpr std::uint32_t kInfinity = kBf16 ? 0x7F80U : 0x7C00U;
    auto* numbers = reinterpret_cast<std::uint16_t*>(destination);
    bool fits = true;
    for (int pair = 0; pair < kMostPairs && lane + 32 * pair < half; ++pair) {
      const std::uint32_t both = pack<kBf16>(head.low[pair], head.high[pair]);
      fits &= (both & 0x7FFFU) < kInfinity && (both >> 16 & 0x7FFFU) < kInfinity;
      numbers[lane + 32 * pair] = static_cast<std::uint16_t>(both);
      numbers[lane + 32 * pair + half] = static_cast<std::uint16_t>(both >> 16);
    }
    return fits;
  }
}

/// gamma of a row: its adapter's replacement at `place`, else the base's; null: no norm.
__device__ const float* norm_of(const float* base, int place, const AdapterTable& adapters, const StepRow& row) {
  if (base == nullptr || place < 0 || adapters.parts == nullptr || row.adapter_slot < 0) return base;
  const AdapterPart& part = adapters.parts[std::int64_t{row.adapter_slot} * adapters.places + place];
  return part.replacement != nullptr ? static_cast<const float*>(part.replacement) : base;
}

template <KvType kType>
__global__ void __launch_bounds__(32 * kWarps) rope_append_kernel(const RopeAppend a) {
  const int lane = lane_of_thread();
  const int head_number = static_cast<int>(blockIdx.x) * kWarps + warp_of_thread();
  const int row_number = static_cast<int>(blockIdx.y);
  let_next_begin();
  const StepRow row = a.rows[row_number];
  const int half = a.kv.head_size / 2;
  const bool is_query = head_number < a.query_heads;
  const bool is_key = !is_query && head_number < a.query_heads + a.kv.kv_heads;
  Rotation rotation{};
  if (row.active != 0 && (is_query || is_key))
    rotation = rotation_of(a.inverse_frequencies, a.attention_factor, row.position, half, lane);
  wait_for_previous();
  if (row.active == 0 || head_number >= a.query_heads + 2 * a.kv.kv_heads) return;

  const int kv_head = (head_number - a.query_heads) % a.kv.kv_heads;
  bool fits;
  if (is_query) {
    float* const q = a.query + (std::int64_t{row_number} * a.query_heads + head_number) * a.kv.head_size;
    Head head = load_head(q, half, lane);
    if (const float* gamma = norm_of(a.query_norm, a.query_norm_place, a.adapters, row); gamma != nullptr)
      normalise_head(head, gamma, static_cast<float>(a.norm_epsilon), half, lane);
    rotate_head(head, rotation);
    for (int pair = 0; pair < kMostPairs && lane + 32 * pair < half; ++pair) {
      q[lane + 32 * pair] = head.low[pair];
      q[lane + 32 * pair + half] = head.high[pair];
    }
    fits = is_finite(head);
  } else {
    const float* const x =
        (is_key ? a.key : a.value) + (std::int64_t{row_number} * a.kv.kv_heads + kv_head) * a.kv.head_size;
    Head head = load_head(x, half, lane);
    if (is_key) {
      if (const float* gamma = norm_of(a.key_norm, a.key_norm_place, a.adapters, row); gamma != nullptr)
        normalise_head(head, gamma, static_cast<float>(a.norm_epsilon), half, lane);
      rotate_head(head, rotation);
    }
    std::byte* const page = page_of(a.kv, a.pages, row, row.position);
    const std::int64_t vector =
        vector_in_page(a.kv, a.layer, is_key ? Plane::key : Plane::value, kv_head, row.position % a.kv.tokens_per_page);
    fits = store_head<kType>(head, page + vector * a.kv.head_size * bytes_of(kType),
                             reinterpret_cast<float*>(page + offset_of_scales(a.kv)) + vector, half, lane);
  }
  if (!fits && a.marks.bad_layer != nullptr) atomicMin(a.marks.bad_layer + row_number, a.marks.layer);
}

// ---- launcher ----

template <KvType kType>
void launch(const RopeAppend& arguments, Stream stream) {
  const int heads = arguments.query_heads + 2 * arguments.kv.kv_heads;
  const dim3 grid(static_cast<unsigned>((heads + kWarps - 1) / kWarps), static_cast<unsigned>(arguments.row_count));
  launch_dependent(rope_append_kernel<kType>, grid, 32 * kWarps, stream, arguments);
}

}  // namespace

void rope_append(const RopeAppend& arguments, Stream stream) {
  if (!attend_supports(arguments.kv, arguments.query_heads) || arguments.row_count > 65535)
    throw Error(Code::unsupported, "The card's rope_append got heads, pages or rows it has no kernel for",
                "Ask attend_supports first");
  if (arguments.row_count == 0) return;
  switch (arguments.kv.type) {
    case KvType::f16:
      return launch<KvType::f16>(arguments, stream);
    case KvType::bf16:
      return launch<KvType::bf16>(arguments, stream);
    case KvType::int8:
      return launch<KvType::int8>(arguments, stream);
  }
}

}  // namespace duet::cuda
