// Vector and attention kernels of the host backend. Compiled once per instruction set (Highway's foreach_target).
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/host/host_kernels.h"

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/host/host_vector_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace duet::host::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using One = hn::CappedTag<float, 1>;  // For what is left behind the last full vector.
constexpr std::int64_t kLanes = HWY_LANES(float);

HWY_INLINE float lane_sum(V v) { return hn::GetLane(hn::SumOfLanes(D(), v)); }
HWY_INLINE float lane_max(V v) { return hn::GetLane(hn::MaxOfLanes(D(), v)); }

bool all_finite(const float* x, std::int64_t size) {
  // x * 0 is 0 or NaN, so one sum tells.
  float sum = 0.0F;
  for (std::int64_t i = 0; i < size; ++i) sum += x[i] * 0.0F;
  return sum == 0.0F;
}

float sum_of_squares(const float* x, std::int64_t size) {
  const D d;
  V even = hn::Zero(d);
  V odd = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const V a = hn::LoadU(d, x + i);
    const V b = hn::LoadU(d, x + i + kLanes);
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  float total = lane_sum(hn::Add(even, odd));
  for (; i < size; ++i) total += x[i] * x[i];
  return total;
}

bool rms_norm(const float* x, const float* gamma, std::int64_t size, float epsilon, float* y, float offset) {
  const auto count = static_cast<float>(size);
  const float squares = sum_of_squares(x, size);
  float factor = 1.0F / std::sqrt(squares / count + epsilon);
  if (!std::isfinite(squares)) {
    if (!all_finite(x, size)) {
      std::fill(y, y + size, std::numeric_limits<float>::quiet_NaN());
      return false;
    }
    // Finite numbers whose squares overflow binary32.
    double wide = 0.0;
    for (std::int64_t i = 0; i < size; ++i) wide += double{x[i]} * x[i];
    factor = static_cast<float>(1.0 / std::sqrt(wide / static_cast<double>(size) + epsilon));
  }
  const D d;
  const V factors = hn::Set(d, factor);
  const V offsets = hn::Set(d, offset);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const V weight = hn::Add(offsets, hn::LoadU(d, gamma + i));
    hn::StoreU(hn::Mul(weight, hn::Mul(hn::LoadU(d, x + i), factors)), d, y + i);
  }
  for (; i < size; ++i) y[i] = (offset + gamma[i]) * (x[i] * factor);
  return true;
}

void normalise_length(float* x, std::int64_t size, float epsilon, float scale) {
  const float factor = scale / std::sqrt(sum_of_squares(x, size) + epsilon);
  for (std::int64_t i = 0; i < size; ++i) x[i] *= factor;
}

/// x / (1 + exp(-gate))
template <class Tag>
HWY_INLINE hn::Vec<Tag> gated(Tag d, hn::Vec<Tag> x, hn::Vec<Tag> gate) {
  // Highway's Exp is wrong where the result overflows.
  const auto exponent = hn::Min(hn::Neg(gate), hn::Set(d, 88.0F));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0F), hn::Exp(d, exponent)));
}

template <class Tag>
HWY_INLINE void swiglu_vector(Tag d, float* HWY_RESTRICT gate, const float* HWY_RESTRICT up) {
  const auto g = hn::LoadU(d, gate);
  hn::StoreU(hn::Mul(gated(d, g, g), hn::LoadU(d, up)), d, gate);
}

template <class Tag>
HWY_INLINE void gate_vector(Tag d, float* x, const float* gate) {
  hn::StoreU(gated(d, hn::LoadU(d, x), hn::LoadU(d, gate)), d, x);
}

void gate_by_sigmoid(float* x, const float* gate, std::int64_t size) {
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) gate_vector(D(), x + i, gate + i);
  for (; i < size; ++i) gate_vector(One(), x + i, gate + i);
}

void swiglu(float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, std::int64_t size) {
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) swiglu_vector(D(), gate + i, up + i);
  for (; i < size; ++i) swiglu_vector(One(), gate + i, up + i);
}

template <class Tag>
HWY_INLINE void rotate_vector(Tag d, float* HWY_RESTRICT low, float* HWY_RESTRICT high,
                              const float* HWY_RESTRICT cosine, const float* HWY_RESTRICT sine) {
  const auto a = hn::LoadU(d, low);
  const auto b = hn::LoadU(d, high);
  const auto c = hn::LoadU(d, cosine);
  const auto s = hn::LoadU(d, sine);
  hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, low);
  hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), d, high);
}

void rotate(float* x, const float* cosine, const float* sine, std::int64_t size) {
  const std::int64_t half = size / 2;
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) rotate_vector(D(), x + i, x + half + i, cosine + i, sine + i);
  for (; i < half; ++i) rotate_vector(One(), x + i, x + half + i, cosine + i, sine + i);
}

// ---- attention ----

constexpr std::int64_t kSpan = 64;  // Positions [n * kSpan, (n + 1) * kSpan) are taken together, wherever a chunk ends.

/// a . b, [size].
HWY_INLINE float dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t size) {
  const D d;
  V sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  float total = lane_sum(sum);
  for (; i < size; ++i) total += a[i] * b[i];
  return total;
}

/// Replaces scores [count, padded to vectors] by exp(score - new maximum); updates maximum and sum of the softmax so
/// far and returns what all earlier terms must be multiplied by. NaN stays NaN.
HWY_INLINE float softmax_span(float* HWY_RESTRICT scores, std::int64_t count, float& maximum, float& sum) {
  const D d;
  const std::int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  std::fill(scores + count, scores + padded, -std::numeric_limits<float>::infinity());
  V highest = hn::Set(d, maximum);
  for (std::int64_t i = 0; i < padded; i += kLanes) highest = hn::Max(highest, hn::Load(d, scores + i));
  const float new_maximum = lane_max(highest);
  const V shift = hn::Set(d, new_maximum);
  V total = hn::Zero(d);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const V shifted = hn::Sub(hn::Load(d, scores + i), shift);
    const V p = hn::IfThenElse(hn::IsNaN(shifted), shifted, hn::Exp(d, shifted));  // Exp takes NaN to 0.
    hn::Store(p, d, scores + i);
    total = hn::Add(total, p);
  }
  const float factor = maximum == new_maximum ? 1.0F : std::exp(maximum - new_maximum);
  maximum = new_maximum;
  sum = sum * factor + lane_sum(total);
  return factor;
}

/// out = out * factor + sum_p weights[p] * values[p], [size]; values [count, size].
template <class Tag, int kVectors>
HWY_INLINE void add_values(Tag d, const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values,
                           std::int64_t count, std::int64_t size, float factor, float* HWY_RESTRICT out) {
  using Vector = hn::Vec<Tag>;
  const auto lanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  Vector sums[std::size_t{kVectors}];
  for (int k = 0; k < kVectors; ++k) sums[k] = hn::Mul(hn::LoadU(d, out + k * lanes), hn::Set(d, factor));
  for (std::int64_t p = 0; p < count; ++p) {
    const Vector weight = hn::Set(d, weights[p]);
    for (int k = 0; k < kVectors; ++k) {
      sums[k] = hn::MulAdd(weight, hn::LoadU(d, values + p * size + k * lanes), sums[k]);
    }
  }
  for (int k = 0; k < kVectors; ++k) hn::StoreU(sums[k], d, out + k * lanes);
}

HWY_INLINE void add_all_values(const float* weights, const float* values, std::int64_t count, std::int64_t size,
                               float factor, float* out) {
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    add_values<D, 4>(D(), weights, values + i, count, size, factor, out + i);
  }
  for (; i + kLanes <= size; i += kLanes) add_values<D, 1>(D(), weights, values + i, count, size, factor, out + i);
  for (; i < size; ++i) add_values<One, 1>(One(), weights, values + i, count, size, factor, out + i);
}

void attend(const float* q, int heads, const KvView& kv, int layer, int kv_head, std::int64_t first_position,
            std::int64_t last_position, float scale, float* out) {
  const std::int64_t size = kv.head_size;
  alignas(64) float scores[kMostHeadsPerAttention][kSpan];
  float maxima[kMostHeadsPerAttention];
  float sums[kMostHeadsPerAttention] = {};
  std::fill(maxima, maxima + heads, -std::numeric_limits<float>::infinity());
  std::fill(out, out + heads * size, 0.0F);

  for (std::int64_t begin = first_position; begin < last_position;) {
    const std::int64_t end = std::min((begin / kSpan + 1) * kSpan, last_position);
    for (std::int64_t p = begin; p < end; ++p) {
      const float* key = kv.key(layer, kv_head, p);
      for (int h = 0; h < heads; ++h) scores[h][p - begin] = scale * dot(q + h * size, key, size);
    }
    float factors[kMostHeadsPerAttention];
    for (int h = 0; h < heads; ++h) factors[h] = softmax_span(scores[h], end - begin, maxima[h], sums[h]);
    // Values of one page lie side by side.
    for (std::int64_t p = begin; p < end;) {
      const std::int64_t page_end = std::min((p / kv.tokens_per_page + 1) * kv.tokens_per_page, end);
      const float* values = kv.value(layer, kv_head, p);
      for (int h = 0; h < heads; ++h) {
        add_all_values(scores[h] + (p - begin), values, page_end - p, size, p == begin ? factors[h] : 1.0F,
                       out + h * size);
      }
      p = page_end;
    }
    begin = end;
  }
  for (int h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < size; ++i) out[h * size + i] /= sums[h];
  }
}

// ---- Gated DeltaNet ----

/// The columns of kVectors vectors, which no other column has a part in: memory is read and written twice, sums stay in
/// registers.
template <class Tag, int kVectors>
HWY_INLINE void delta_columns(Tag d, float* HWY_RESTRICT memory, const float* HWY_RESTRICT query,
                              const float* HWY_RESTRICT key, const float* HWY_RESTRICT value, float decay, float rate,
                              std::int64_t key_size, std::int64_t value_size, float* HWY_RESTRICT out) {
  using Vector = hn::Vec<Tag>;
  const auto lanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  Vector recalled[std::size_t{kVectors}], change[std::size_t{kVectors}], sums[std::size_t{kVectors}];
  for (int k = 0; k < kVectors; ++k) recalled[k] = sums[k] = hn::Zero(d);
  for (std::int64_t i = 0; i < key_size; ++i) {
    for (int k = 0; k < kVectors; ++k) {
      float* const at = memory + i * value_size + k * lanes;
      const Vector faded = hn::Mul(hn::LoadU(d, at), hn::Set(d, decay));
      hn::StoreU(faded, d, at);
      recalled[k] = hn::MulAdd(hn::Set(d, key[i]), faded, recalled[k]);
    }
  }
  for (int k = 0; k < kVectors; ++k)
    change[k] = hn::Mul(hn::Set(d, rate), hn::Sub(hn::LoadU(d, value + k * lanes), recalled[k]));
  for (std::int64_t i = 0; i < key_size; ++i) {
    for (int k = 0; k < kVectors; ++k) {
      float* const at = memory + i * value_size + k * lanes;
      const Vector corrected = hn::MulAdd(hn::Set(d, key[i]), change[k], hn::LoadU(d, at));
      hn::StoreU(corrected, d, at);
      sums[k] = hn::MulAdd(hn::Set(d, query[i]), corrected, sums[k]);
    }
  }
  for (int k = 0; k < kVectors; ++k) hn::StoreU(sums[k], d, out + k * lanes);
}

void delta_rule(float* memory, const float* query, const float* key, const float* value, float decay, float rate,
                std::int64_t key_size, std::int64_t value_size, float* out) {
  std::int64_t j = 0;
  for (; j + 4 * kLanes <= value_size; j += 4 * kLanes) {
    delta_columns<D, 4>(D(), memory + j, query, key, value + j, decay, rate, key_size, value_size, out + j);
  }
  for (; j + kLanes <= value_size; j += kLanes) {
    delta_columns<D, 1>(D(), memory + j, query, key, value + j, decay, rate, key_size, value_size, out + j);
  }
  for (; j < value_size; ++j) {
    delta_columns<One, 1>(One(), memory + j, query, key, value + j, decay, rate, key_size, value_size, out + j);
  }
}

}  // namespace
}  // namespace duet::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace duet::host {

HWY_EXPORT(rms_norm);
HWY_EXPORT(normalise_length);
HWY_EXPORT(gate_by_sigmoid);
HWY_EXPORT(delta_rule);
HWY_EXPORT(swiglu);
HWY_EXPORT(rotate);
HWY_EXPORT(all_finite);
HWY_EXPORT(attend);

bool rms_norm(const float* x, const float* gamma, std::int64_t size, float epsilon, float* y, float offset) {
  return HWY_DYNAMIC_DISPATCH(rms_norm)(x, gamma, size, epsilon, y, offset);
}

void normalise_length(float* x, std::int64_t size, float epsilon, float scale) {
  HWY_DYNAMIC_DISPATCH(normalise_length)(x, size, epsilon, scale);
}

void silu(float* x, std::int64_t size) { HWY_DYNAMIC_DISPATCH(gate_by_sigmoid)(x, x, size); }

void gate_by_sigmoid(float* x, const float* gate, std::int64_t size) {
  HWY_DYNAMIC_DISPATCH(gate_by_sigmoid)(x, gate, size);
}

void delta_rule(float* memory, const float* query, const float* key, const float* value, float decay, float rate,
                std::int64_t key_size, std::int64_t value_size, float* out) {
  HWY_DYNAMIC_DISPATCH(delta_rule)(memory, query, key, value, decay, rate, key_size, value_size, out);
}

void swiglu(float* gate, const float* up, std::int64_t size) { HWY_DYNAMIC_DISPATCH(swiglu)(gate, up, size); }

void rotate(float* x, const float* cosine, const float* sine, std::int64_t size) {
  HWY_DYNAMIC_DISPATCH(rotate)(x, cosine, sine, size);
}

bool all_finite(const float* x, std::int64_t size) { return HWY_DYNAMIC_DISPATCH(all_finite)(x, size); }

void attend(const float* q, int heads, const KvView& kv, int layer, int kv_head, std::int64_t first_position,
            std::int64_t last_position, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(attend)(q, heads, kv, layer, kv_head, first_position, last_position, scale, out);
}

}  // namespace duet::host
#endif  // HWY_ONCE
