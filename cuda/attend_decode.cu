// Attention of one new token a sequence over its pages (flash-decoding).
//   query     [rows, query_heads, head_size] float32; up to 16 query heads share a KV head
//   out       likewise: out = sum_p softmax_p(scale * q . k_p) v_p over the positions p the row sees
//   split     128 positions counted from 0; a row at position n works on its splits alone, so that its sums depend on
//             its own length (and window) only, whatever the grid
//   launch    blocks of 4 warps take items (row, KV head, split) in turn; what a row needs is read from StepRow, so
//   that
//             one graph serves every length. Blocks without an item exit at once
//   one item  1. thread i finds token i of the split in the pages; warps split q into two operands, high + low
//             2. keys and values are on their way to registers: 16-byte loads, in the order of the fragments
//             3. scores = q K': warp w takes tokens [32 w, 32 w + 32)
//             4. softmax over the split, one warp a head; weights split into high + low
//             5. out = P V: a warp takes 64 of the head's elements and 1, 1/2 or 1/4 of the tokens
//   operands  mma m16n8k16, A = 16 rows of heads, B = keys or values straight from the page: a product does not care
//   for
//             the order inside its sum, so lane 4 g + t feeds elements [8 t, 8 t + 8) of token g (keys), or elements
//             [8 g, 8 g + 8) of tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9 (values). Up to 8 heads: rows 0-7 of A hold the
//             high parts, rows 8-15 the low parts, so that full precision costs nothing; more heads take two products
//   merging   splits are merged in order by the block that ends last, in groups of about the root of their number
//   error     q and weights to 2^-22 (f16, int8) or 2^-16 (bf16) relative, products exact, sums in float32: scores are
//             off by d = (head_size + 8) * 2^-23 * scale * sum |q k| (bf16: + 2^-16 of it), out by about
//             (2 d + 2^-20) * sum_p p |v_p|
//   source    Flash-Decoding (Dao et al., 2023); engine/host/host_math.h

#include <algorithm>

#include "cuda/check.h"
#include "cuda/device/dependent.cuh"
#include "cuda/device/kv.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/launch.h"
#include "duet/error.h"

namespace duet::cuda {
namespace {

constexpr int kSplitTokens = 128;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kMostSharing = 16;   // Query heads of a KV head.
constexpr int kNarrowSharing = 8;  // Up to here one product does.
constexpr int kMostGroups = 128;   // Of splits; so a row has at most 128 * 128 splits.
constexpr int kOneGroupSplits = 16;
static_assert(kThreads == kSplitTokens);

// ---- what a block works on ----

struct Item {
  StepRow row;
  int row_number;
  int kv_head;
  int first_position;  // The first the row sees.
  int split;           // Counted from the row's first.
  int splits;
};

/// Item `number` of the launch, counted over the rows, their KV heads and their splits; false when there are fewer. An
/// inactive row has one split.
__device__ bool find_item(const Attention& a, int number, Item& item) {
  const int lane = lane_of_thread();
  for (int first_row = 0; first_row < a.row_count; first_row += 32) {
    StepRow row{};
    int first_position = 0;
    int splits = 0;
    if (first_row + lane < a.row_count) {
      row = a.rows[first_row + lane];
      if (row.active == 0) row.position = 0;
      if (a.window_tokens > 0) first_position = max(0, row.position - a.window_tokens + 1);
      splits = row.position / kSplitTokens - first_position / kSplitTokens + 1;
    }
    int end = splits * a.kv.kv_heads;  // Of the rows up to this lane's.
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(~0U, end, distance);
      if (lane >= distance) end += before;
    }
    const unsigned behind = __ballot_sync(~0U, number < end);
    if (behind != 0) {
      const int owner = __ffs(static_cast<int>(behind)) - 1;
      item.row_number = first_row + owner;
      item.row = a.rows[item.row_number];
      item.splits = __shfl_sync(~0U, splits, owner);
      item.first_position = __shfl_sync(~0U, first_position, owner);
      const int in_row = number - (__shfl_sync(~0U, end, owner) - item.splits * a.kv.kv_heads);
      item.kv_head = in_row / item.splits;
      item.split = in_row % item.splits;
      return true;
    }
    number -= __shfl_sync(~0U, end, 31);
  }
  return false;
}

/// Partial results of a row's KV head: a slot for every split, then one for every group of splits.
struct Slots {
  float* sums;     // [slots][heads][head_size], not yet divided
  float* softmax;  // [slots][heads][2]: maximum (base 2) and sum of the weights
};

__device__ Slots slots_of(const Attention& a, const Item& item, int slots, int heads) {
  const std::int64_t all = std::int64_t{a.row_count} * a.query_heads * slots;
  const std::int64_t before = (std::int64_t{item.row_number} * a.kv.kv_heads + item.kv_head) * slots * heads;
  return {a.partial + before * a.kv.head_size, a.partial + all * a.kv.head_size + before * 2};
}

// ---- shared memory ----

template <int kHeadSize>
struct Shared {
  static constexpr int kSpans = (kHeadSize + 63) / 64;  // Of 64 elements.
  static constexpr int kParts = kWarps / kSpans;        // Of the tokens, in P V.
  static constexpr int kScoreStride = kSplitTokens + 4;
  static constexpr int kWeightStride = kSplitTokens + 8;
  static constexpr int kSumStride = kHeadSize + 4;

  std::int64_t key_offsets[kSplitTokens];
  float key_scales[kSplitTokens];
  float value_scales[kSplitTokens];
  float factors[kMostSharing];  // From products to scores in base 2.
  float maximum[kMostSharing];
  float sum[kMostSharing];
  float value_scale_of_warp[kWarps];
  int is_last;
  alignas(16) std::uint16_t weights[2 * kMostSharing][kWeightStride];
  union {
    struct {
      uint4 query[2][kHeadSize / 16][32];  // Fragments of A; [1] above 8 heads only.
      float scores[kMostSharing][kScoreStride];
    };
    float sums[kParts][kMostSharing][kSumStride];
    float merge_weights[kMostSharing][kMostGroups];
  };
};

// ---- 1. q as operands ----

/// A's row of a head's high or low part is head % 8 (+ 8 in the other half), its fragment 0 or 1.
template <int kHeadSize, KvType kType>
__device__ void prepare_query(const Attention& a, const Item& item, int heads, Shared<kHeadSize>& shared) {
  constexpr bool kBf16 = multiplies_bf16<kType>();
  const int lane = lane_of_thread();
  const bool wide = heads > kNarrowSharing;
  for (int head = warp_of_thread(); head < (wide ? kMostSharing : kNarrowSharing); head += kWarps) {
    const float* q =
        a.query + (std::int64_t{item.row_number} * a.query_heads + item.kv_head * heads + head) * a.kv.head_size;
    float2 pairs[kHeadSize / 64];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kHeadSize / 64; ++i) {
      const int element = 2 * lane + 64 * i;
      pairs[i] = head < heads && element < a.kv.head_size ? *reinterpret_cast<const float2*>(q + element)
                                                          : make_float2(0.0F, 0.0F);
      largest = fmaxf(largest, fmaxf(fabsf(pairs[i].x), fabsf(pairs[i].y)));
    }
    const int exponent = kBf16 ? 0 : exponent_to_fill_f16(reduce_warp(largest, Max{}));
    if (lane == 0) shared.factors[head] = a.scale * kLog2OfE * power_of_two(-exponent);
    const float fill = power_of_two(exponent);
#pragma unroll
    for (int i = 0; i < kHeadSize / 64; ++i) {
      const int element = 2 * lane + 64 * i;
      const SplitPair pair = split<kBf16>(pairs[i].x * fill, pairs[i].y * fill);
      const int step = element / 32 * 2 + element % 8 / 4;
      const int owner = 4 * (head % 8) + element % 32 / 8;
      const int half = element % 4 / 2;
      auto* first = reinterpret_cast<std::uint32_t*>(&shared.query[0][step][owner]) + 2 * half;
      auto* second = reinterpret_cast<std::uint32_t*>(&shared.query[1][step][owner]) + 2 * half;
      (wide ? first + head / 8 : first)[0] = pair.high;
      (wide ? second + head / 8 : first + 1)[0] = pair.low;
    }
  }
}

// ---- 4. softmax over the split ----

template <int kHeadSize, KvType kType>
__device__ void weigh(int heads, float value_factor, Shared<kHeadSize>& shared) {
  const int lane = lane_of_thread();
  for (int head = warp_of_thread(); head < heads; head += kWarps) {
    const float4 score = *reinterpret_cast<const float4*>(&shared.scores[head][4 * lane]);
    const float maximum = reduce_warp(fmaxf(fmaxf(score.x, score.y), fmaxf(score.z, score.w)), Max{});
    // Scores may be so large that `kWeightShift - maximum` would round.
    const auto weight_of = [&](float x) { return exp2_fast((x - maximum) + kWeightShift); };
    float4 weight = make_float4(weight_of(score.x), weight_of(score.y), weight_of(score.z), weight_of(score.w));
    const float sum = reduce_warp((weight.x + weight.y) + (weight.z + weight.w), Sum{});
    if (lane == 0) {
      shared.maximum[head] = maximum;
      shared.sum[head] = sum;
    }
    if constexpr (kType == KvType::int8) {
      const float4 scale = *reinterpret_cast<const float4*>(&shared.value_scales[4 * lane]);
      weight.x *= scale.x * value_factor;
      weight.y *= scale.y * value_factor;
      weight.z *= scale.z * value_factor;
      weight.w *= scale.w * value_factor;
    }
    const SplitPair first = split<multiplies_bf16<kType>()>(weight.x, weight.y);
    const SplitPair second = split<multiplies_bf16<kType>()>(weight.z, weight.w);
    const int low_row = head + (heads > kNarrowSharing ? kMostSharing : kNarrowSharing);
    *reinterpret_cast<uint2*>(&shared.weights[head][4 * lane]) = make_uint2(first.high, second.high);
    *reinterpret_cast<uint2*>(&shared.weights[low_row][4 * lane]) = make_uint2(first.low, second.low);
  }
}

// ---- merging ----

/// Slots [first, first + count) into one, in order: to slot `target`, or divided to `out` where it is not null.
template <int kHeadSize>
__device__ void merge_slots(const Slots& slots, int first, int count, int target, float* out, int heads, int head_size,
                            Shared<kHeadSize>& shared) {
  const int lane = lane_of_thread();
  for (int head = warp_of_thread(); head < heads; head += kWarps) {
    const float2* softmax = reinterpret_cast<const float2*>(slots.softmax) + std::int64_t{first} * heads + head;
    float maximum = __int_as_float(0xFF800000);
    for (int i = lane; i < count; i += 32) maximum = fmaxf(maximum, __ldcg(softmax + std::int64_t{i} * heads).x);
    maximum = reduce_warp(maximum, Max{});
    float sum = 0;
    for (int i = lane; i < count; i += 32) {
      const float2 part = __ldcg(softmax + std::int64_t{i} * heads);
      const float weight = exp2_fast(part.x - maximum);
      shared.merge_weights[head][i] = weight;
      sum = fmaf(weight, part.y, sum);
    }
    sum = reduce_warp(sum, Sum{});
    if (lane == 0) {
      shared.maximum[head] = maximum;
      shared.sum[head] = sum;
    }
  }
  __syncthreads();
  const int quads = head_size / 4;
  const std::int64_t stride = std::int64_t{heads} * quads;
  const float4* sums = reinterpret_cast<const float4*>(slots.sums) + first * stride;
  for (int i = static_cast<int>(threadIdx.x); i < heads * quads; i += kThreads) {
    const int head = i / quads;
    float4 total = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll 8
    for (int part = 0; part < count; ++part) {
      const float weight = shared.merge_weights[head][part];
      const float4 x = __ldcg(sums + part * stride + i);
      total.x = fmaf(weight, x.x, total.x);
      total.y = fmaf(weight, x.y, total.y);
      total.z = fmaf(weight, x.z, total.z);
      total.w = fmaf(weight, x.w, total.w);
    }
    if (out != nullptr) {
      const float sum = shared.sum[head];
      reinterpret_cast<float4*>(out)[i] = make_float4(total.x / sum, total.y / sum, total.z / sum, total.w / sum);
    } else {
      reinterpret_cast<float4*>(slots.sums)[target * stride + i] = total;
    }
  }
  if (out == nullptr && static_cast<int>(threadIdx.x) < heads) {
    const int head = static_cast<int>(threadIdx.x);
    reinterpret_cast<float2*>(slots.softmax)[std::int64_t{target} * heads + head] =
        make_float2(shared.maximum[head], shared.sum[head]);
  }
}

/// Every thread's writes are seen by whichever block arrives last; true in that block, which finds the counter at zero
/// again.
__device__ bool arrive_last(std::uint32_t* counter, int arrivals, int& is_last) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(counter, 1U) + 1 == static_cast<std::uint32_t>(arrivals) ? 1 : 0;
    if (is_last != 0) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return is_last != 0;
}

// ---- kernel ----

template <int kHeadSize, KvType kType>
__device__ void attend_item(const Attention& a, const Item& item, int slots, Shared<kHeadSize>& shared) {
  constexpr bool kBf16 = multiplies_bf16<kType>();
  constexpr int kSpans = Shared<kHeadSize>::kSpans;
  constexpr int kParts = Shared<kHeadSize>::kParts;
  constexpr int kKeySpans = kHeadSize / 32;
  constexpr int kKeyTiles = kHeadSize == 256 ? 2 : 4;      // Of 8 tokens, loaded at once; a warp has 4.
  constexpr int kValueSteps = kSplitTokens / kParts / 16;  // Of 16 tokens.
  constexpr int kLoadedSteps = kValueSteps > 4 ? 4 : kValueSteps;
  using Raw = RawEight<kType>;

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = lane_of_thread();
  const int warp = warp_of_thread();
  const int g = lane / 4;
  const int t = lane % 4;
  const int head_size = a.kv.head_size;
  const int heads = a.query_heads / a.kv.kv_heads;
  const bool wide = heads > kNarrowSharing;
  float* const out = a.out + (std::int64_t{item.row_number} * a.query_heads + item.kv_head * heads) * head_size;
  if (item.row.active == 0) {  // Its numbers go nowhere, but should be numbers.
    for (int i = thread; i < heads * head_size; i += kThreads) out[i] = 0.0F;
    return;
  }

  const int position = (item.first_position / kSplitTokens + item.split) * kSplitTokens + thread;
  TokenPlace place{kNotSeen, 0.0F, 0.0F};
  if (position >= item.first_position && position <= item.row.position)
    place = place_of_token<kType>(a.kv, a.pages, item.row, a.layer, item.kv_head, position);
  shared.key_offsets[thread] = place.key;
  if constexpr (kType == KvType::int8) {
    shared.key_scales[thread] = place.key_scale;
    shared.value_scales[thread] = place.value_scale;
    const float largest = reduce_warp(fabsf(place.value_scale), Max{});
    if (lane == 0) shared.value_scale_of_warp[warp] = largest;
  }
  prepare_query<kHeadSize, kType>(a, item, heads, shared);
  __syncthreads();

  // 2. Loads. A lane's key piece is 8 t of token g, its value piece 8 g of tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
  const std::byte* const pool = a.kv.pool;
  const auto load_keys = [&](int first_tile, Raw(&keys)[kKeyTiles][kKeySpans]) {
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      const std::int64_t offset = shared.key_offsets[32 * warp + 8 * (first_tile + tile) + g];
#pragma unroll
      for (int span = 0; span < kKeySpans; ++span) {
        const int element = 32 * span + 8 * t;
        load_eight(pool + offset + element * bytes_of(kType), offset >= 0 && element < head_size, keys[tile][span]);
      }
    }
  };
  const int value_element = 64 * (warp % kSpans) + 8 * g;
  const int first_value_token = warp / kSpans * (kSplitTokens / kParts);
  const std::int64_t to_value = key_to_value(a.kv, kType) + value_element * bytes_of(kType);
  const auto load_values = [&](int first_step, Raw(&values)[kLoadedSteps][4]) {
#pragma unroll
    for (int step = 0; step < kLoadedSteps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = first_value_token + 16 * (first_step + step) + 2 * t + i % 2 + i / 2 * 8;
        const std::int64_t offset = shared.key_offsets[token];
        load_eight(pool + offset + to_value, offset >= 0 && value_element < head_size, values[step][i]);
      }
  };
  Raw keys[kKeyTiles][kKeySpans];
  Raw values[kLoadedSteps][4];
  load_keys(0, keys);
  load_values(0, values);

  // 3. Scores.
#pragma unroll
  for (int first_tile = 0; first_tile < 4; first_tile += kKeyTiles) {
    if (first_tile > 0) load_keys(first_tile, keys);
    float products[kKeyTiles][4] = {};
#pragma unroll
    for (int span = 0; span < kKeySpans; ++span) {
      const uint4 even = shared.query[0][2 * span][lane];
      const uint4 odd = shared.query[0][2 * span + 1][lane];
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const uint4 key = operands_of<kType>(keys[tile][span]);
        multiply_add<kBf16>(products[tile], even, key.x, key.y);
        multiply_add<kBf16>(products[tile], odd, key.z, key.w);
        if (wide) {
          multiply_add<kBf16>(products[tile], shared.query[1][2 * span][lane], key.x, key.y);
          multiply_add<kBf16>(products[tile], shared.query[1][2 * span + 1][lane], key.z, key.w);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      const int token = 32 * warp + 8 * (first_tile + tile) + 2 * t;
      const auto score_of = [&](float product, int head, int which) {
        float score = product * shared.factors[head];
        if constexpr (kType == KvType::int8) score *= shared.key_scales[token + which];
        return shared.key_offsets[token + which] < 0 ? __int_as_float(0xFF800000) : score;
      };
      const auto& c = products[tile];
      *reinterpret_cast<float2*>(&shared.scores[g][token]) =
          wide ? make_float2(score_of(c[0], g, 0), score_of(c[1], g, 1))
               : make_float2(score_of(c[0] + c[2], g, 0), score_of(c[1] + c[3], g, 1));
      if (wide)
        *reinterpret_cast<float2*>(&shared.scores[g + 8][token]) =
            make_float2(score_of(c[2], g + 8, 0), score_of(c[3], g + 8, 1));
    }
  }
  __syncthreads();

  // 4. Weights; those of int8 values carry the value's scale, divided by a power of two common to the split.
  int value_exponent = 0;
  if constexpr (kType == KvType::int8) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, shared.value_scale_of_warp[i]);
    value_exponent = max(exponent_to_fill_f16(largest) - 15, -126);  // Scales to below 1.
  }
  weigh<kHeadSize, kType>(heads, power_of_two(value_exponent), shared);
  __syncthreads();

  // 5. P V.
  float sums[8][4] = {};
#pragma unroll
  for (int first_step = 0; first_step < kValueSteps; first_step += kLoadedSteps) {
    if (first_step > 0) load_values(first_step, values);
#pragma unroll
    for (int step = 0; step < kLoadedSteps; ++step) {
      const int token = first_value_token + 16 * (first_step + step) + 2 * t;
      const auto weights_of = [&](int first_row) {
        const auto word = [&](int row, int column) {
          return *reinterpret_cast<const std::uint32_t*>(&shared.weights[row][column]);
        };
        return make_uint4(word(first_row + g, token), word(first_row + g + 8, token), word(first_row + g, token + 8),
                          word(first_row + g + 8, token + 8));
      };
      const uint4 first = weights_of(0);
      const uint4 second = wide ? weights_of(kMostSharing) : uint4{};
      const uint4 v[4] = {operands_of<kType>(values[step][0]), operands_of<kType>(values[step][1]),
                          operands_of<kType>(values[step][2]), operands_of<kType>(values[step][3])};
#pragma unroll
      for (int element = 0; element < 8; ++element) {
        const auto word = [&](const uint4& x) {
          return element / 2 == 0 ? x.x : element / 2 == 1 ? x.y : element / 2 == 2 ? x.z : x.w;
        };
        const unsigned selector = element % 2 == 0 ? 0x5410U : 0x7632U;
        const std::uint32_t b0 = __byte_perm(word(v[0]), word(v[1]), selector);
        const std::uint32_t b1 = __byte_perm(word(v[2]), word(v[3]), selector);
        multiply_add<kBf16>(sums[element], first, b0, b1);
        if (wide) multiply_add<kBf16>(sums[element], second, b0, b1);
      }
    }
  }
  const int first_element = 64 * (warp % kSpans) + 16 * t;
  const auto keep = [&](int head, int column, const auto& value_of) {
    float* place_of_sums = &shared.sums[warp / kSpans][head][first_element + 8 * column];
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      *reinterpret_cast<float4*>(place_of_sums + i) =
          make_float4(value_of(i), value_of(i + 1), value_of(i + 2), value_of(i + 3));
  };
#pragma unroll
  for (int column = 0; column < 2; ++column) {
    keep(g, column, [&](int i) { return wide ? sums[i][column] : sums[i][column] + sums[i][column + 2]; });
    if (wide) keep(g + 8, column, [&](int i) { return sums[i][column + 2]; });
  }
  __syncthreads();

  const Slots partial = slots_of(a, item, slots, heads);
  const float back = power_of_two(-value_exponent);
  float* const target = item.splits == 1 ? out : partial.sums + std::int64_t{item.split} * heads * head_size;
  const int quads = head_size / 4;
  for (int i = thread; i < heads * quads; i += kThreads) {
    const int head = i / quads;
    const int element = i % quads * 4;
    float4 total = *reinterpret_cast<const float4*>(&shared.sums[0][head][element]);
#pragma unroll
    for (int part = 1; part < kParts; ++part) {
      const float4 x = *reinterpret_cast<const float4*>(&shared.sums[part][head][element]);
      total = make_float4(total.x + x.x, total.y + x.y, total.z + x.z, total.w + x.w);
    }
    const float factor = item.splits == 1 ? back / shared.sum[head] : back;
    reinterpret_cast<float4*>(target)[i] =
        make_float4(total.x * factor, total.y * factor, total.z * factor, total.w * factor);
  }
  if (item.splits == 1) return;
  if (thread < heads)
    reinterpret_cast<float2*>(partial.softmax)[std::int64_t{item.split} * heads + thread] =
        make_float2(shared.maximum[thread], shared.sum[thread]);

  // The last to arrive merges its group; the last group's merges the groups.
  const int group_size =
      item.splits <= kOneGroupSplits ? item.splits : static_cast<int>(ceilf(sqrtf(static_cast<float>(item.splits))));
  const int groups = (item.splits + group_size - 1) / group_size;
  const int group = item.split / group_size;
  const int first = group * group_size;
  const int count = min(group_size, item.splits - first);
  const int first_group_slot = slots - kMostGroups;
  std::uint32_t* const counters =
      a.counters + (std::int64_t{item.row_number} * a.kv.kv_heads + item.kv_head) * (kMostGroups + 1);
  if (!arrive_last(counters + group, count, shared.is_last)) return;
  merge_slots(partial, first, count, first_group_slot + group, groups == 1 ? out : nullptr, heads, head_size, shared);
  if (groups == 1 || !arrive_last(counters + kMostGroups, groups, shared.is_last)) return;
  merge_slots(partial, first_group_slot, groups, 0, out, heads, head_size, shared);
}

/// Keys and values of earlier steps, towards the cache, while this step's are still being made.
template <KvType kType>
__device__ void prefetch_item(const Attention& a, const Item& item) {
  constexpr int kLine = 128;
  const int position = (item.first_position / kSplitTokens + item.split) * kSplitTokens + static_cast<int>(threadIdx.x);
  if (item.row.active == 0 || position < item.first_position || position >= item.row.position) return;
  const std::byte* key =
      a.kv.pool + place_of_token<kType>(a.kv, a.pages, item.row, a.layer, item.kv_head, position).key;
  for (int byte = 0; byte < a.kv.head_size * bytes_of(kType); byte += kLine) {
    prefetch(key + byte);
    prefetch(key + key_to_value(a.kv, kType) + byte);
  }
}

template <int kHeadSize, KvType kType>
__global__ void __launch_bounds__(kThreads, kHeadSize == 256 ? 2 : 3)
    attend_decode_kernel(const Attention a, int slots) {
  __shared__ Shared<kHeadSize> shared;
  Item item;
  let_next_begin();
  int number = static_cast<int>(blockIdx.x);
  bool found = find_item(a, number, item);
  if (found) prefetch_item<kType>(a, item);
  wait_for_previous();
  for (; found; found = find_item(a, number += static_cast<int>(gridDim.x), item)) {
    attend_item<kHeadSize, kType>(a, item, slots, shared);
    __syncthreads();
  }
}

// ---- launcher ----

std::int64_t splits_of(std::int64_t context_tokens) { return (context_tokens + kSplitTokens - 1) / kSplitTokens; }

template <int kHeadSize, KvType kType>
void launch(const Attention& attention, Stream stream) {
  constexpr std::int64_t kBlocksOfMultiprocessor = kHeadSize == 256 ? 2 : 3;
  int device = 0;
  int multiprocessors = 0;
  DUET_CUDA(cudaGetDevice(&device));
  DUET_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const std::int64_t splits = splits_of(attention.max_context_tokens);
  const std::int64_t items = splits * attention.kv.kv_heads * attention.row_count;
  const auto grid = static_cast<unsigned>(std::min(items, kBlocksOfMultiprocessor * multiprocessors));
  launch_dependent(attend_decode_kernel<kHeadSize, kType>, dim3(grid), kThreads, stream, attention,
                   static_cast<int>(splits) + kMostGroups);
}

struct Variant {
  int most_head_size;
  KvType type;
  void (*launch)(const Attention&, Stream);
};
constexpr Variant kVariants[] = {
    {64, KvType::f16, launch<64, KvType::f16>},     {64, KvType::bf16, launch<64, KvType::bf16>},
    {64, KvType::int8, launch<64, KvType::int8>},   {128, KvType::f16, launch<128, KvType::f16>},
    {128, KvType::bf16, launch<128, KvType::bf16>}, {128, KvType::int8, launch<128, KvType::int8>},
    {256, KvType::f16, launch<256, KvType::f16>},   {256, KvType::bf16, launch<256, KvType::bf16>},
    {256, KvType::int8, launch<256, KvType::int8>},
};

}  // namespace

bool attend_supports(const KvPool& kv, int query_heads) {
  if (kv.head_size < 8 || kv.head_size > 256 || kv.head_size % 8 != 0) return false;
  if (kv.kv_heads < 1 || query_heads % kv.kv_heads != 0) return false;
  const int sharing = query_heads / kv.kv_heads;
  return sharing >= 1 && sharing <= kMostSharing && kv.tokens_per_page >= 1 && kv.page_bytes % 16 == 0;
}

std::size_t attend_scratch_floats(int rows, int query_heads, int head_size, std::int64_t max_context_tokens) {
  const std::int64_t slots = splits_of(max_context_tokens) + kMostGroups;
  return static_cast<std::size_t>(std::int64_t{rows} * query_heads * slots * (head_size + 2));
}

std::size_t attend_scratch_counters(int rows, int kv_heads) {
  return static_cast<std::size_t>(std::int64_t{rows} * kv_heads * (kMostGroups + 1));
}

void attend_decode(const Attention& attention, Stream stream) {
  if (!attend_supports(attention.kv, attention.query_heads) || attention.max_context_tokens < 1 ||
      splits_of(attention.max_context_tokens) > std::int64_t{kMostGroups} * kMostGroups)
    throw Error(Code::unsupported, "The card's attend_decode got heads, pages or a context it has no kernel for",
                "Ask attend_supports first; contexts end at 2 Mi tokens");
  if (attention.row_count == 0) return;
  for (const Variant& variant : kVariants)
    if (attention.kv.head_size <= variant.most_head_size && attention.kv.type == variant.type)
      return variant.launch(attention, stream);
}

}  // namespace duet::cuda
