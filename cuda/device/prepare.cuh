#pragma once

// One row of activations by one block: read once, held in registers, written as f16 times a power of two
// (launch.h: PreparedRows). Thread t holds the vectors of 4 elements number t, t + threads, t + 2 threads, ...;
// elements at or beyond `columns` are zero, so that the filling of the stride is written like everything else.

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device/reduce.cuh"

namespace duet::cuda {

constexpr int kVectorElements = 4;
constexpr std::uint32_t kInfinityBits = 0x7F800000U;

__device__ inline bool is_aligned(const void* pointer, int bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// Elements [4 vector, 4 vector + 4) of source [columns].
__device__ inline float4 load_vector(const float* source, std::int64_t vector, std::int64_t columns) {
  const std::int64_t first = vector * kVectorElements;
  if (first + kVectorElements <= columns && is_aligned(source, sizeof(float4)))
    return *reinterpret_cast<const float4*>(source + first);
  const auto at = [&](std::int64_t i) { return i < columns ? source[i] : 0.0F; };
  return make_float4(at(first), at(first + 1), at(first + 2), at(first + 3));
}

// ---- what a row is made of: operator()(turn, vector) gives 4 elements ----

struct PlainSource {
  const float* x;
  std::int64_t columns;
  __device__ float4 operator()(int, std::int64_t vector) const { return load_vector(x, vector, columns); }
};

/// gate / (1 + exp(-gate)) * up. Far below zero the exponential is infinite and the quotient -0.
struct SwigluSource {
  const float* gate;
  const float* up;
  std::int64_t columns;
  __device__ static float of(float gate, float up) { return gate / (1.0F + expf(-gate)) * up; }
  __device__ float4 operator()(int, std::int64_t vector) const {
    const float4 g = load_vector(gate, vector, columns);
    const float4 u = load_vector(up, vector, columns);
    return make_float4(of(g.x, u.x), of(g.y, u.y), of(g.z, u.z), of(g.w, u.w));
  }
};

/// A source's row, held: kTurns vectors a thread. kTurns 0: longer than registers hold, made again at every visit.
template <int kTurns, class Source>
class HeldRow {
 public:
  __device__ HeldRow(const Source& source, std::int64_t vectors) : source_(source), vectors_(vectors) {
    if constexpr (kTurns > 0) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const std::int64_t vector = static_cast<std::int64_t>(turn) * blockDim.x + threadIdx.x;
        held_[turn] = vector < vectors_ ? source_(turn, vector) : make_float4(0, 0, 0, 0);
      }
    }
  }

  __device__ float4 at(int turn, std::int64_t vector) const {
    if constexpr (kTurns > 0) return held_[turn];
    return source_(turn, vector);
  }

  /// visit(vector, elements) for every vector of this thread.
  template <class Visit>
  __device__ void each(Visit visit) const {
    if constexpr (kTurns > 0) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const std::int64_t vector = static_cast<std::int64_t>(turn) * blockDim.x + threadIdx.x;
        if (vector < vectors_) visit(vector, held_[turn]);
      }
    } else {
      for (std::int64_t vector = threadIdx.x; vector < vectors_; vector += blockDim.x)
        visit(vector, source_(0, vector));
    }
  }

 private:
  Source source_;
  std::int64_t vectors_;
  float4 held_[kTurns > 0 ? kTurns : 1];
};

/// (gamma + offset) * ((x * scale) * inverse).
template <int kTurns>
struct NormedSource {
  const HeldRow<kTurns, PlainSource>& x;
  const HeldRow<(kTurns <= 4 ? kTurns : 0), PlainSource>& gamma;
  float offset;  // 1 where gamma is zero-centred.
  float scale;
  float inverse;
  __device__ float4 operator()(int turn, std::int64_t vector) const {
    const float4 value = x.at(turn, vector);
    const float4 g = gamma.at(turn, vector);
    return make_float4((g.x + offset) * ((value.x * scale) * inverse), (g.y + offset) * ((value.y * scale) * inverse),
                       (g.z + offset) * ((value.z * scale) * inverse), (g.w + offset) * ((value.w * scale) * inverse));
  }
};

// ---- statistics ----

__device__ inline std::uint32_t magnitude_bits(float value) { return __float_as_uint(value) & 0x7FFFFFFFU; }

/// Bits of the largest magnitude; infinity's or above where an element is not finite. As integers they order like the
/// magnitudes, and NaN is not lost.
template <int kTurns, class Source>
__device__ inline std::uint32_t largest_bits(const HeldRow<kTurns, Source>& row, std::uint32_t* shared) {
  std::uint32_t largest = 0;
  row.each([&](std::int64_t, const float4& v) {
    largest =
        max(largest, max(max(magnitude_bits(v.x), magnitude_bits(v.y)), max(magnitude_bits(v.z), magnitude_bits(v.w))));
  });
  return reduce_block(largest, 0U, Max{}, shared);
}

template <int kTurns, class Source>
__device__ inline float sum_of_squares(const HeldRow<kTurns, Source>& row, float scale, float* shared) {
  float sum = 0;
  row.each([&](std::int64_t, const float4& v) {
    const float x = v.x * scale, y = v.y * scale, z = v.z * scale, w = v.w * scale;
    sum += (x * x + y * y) + (z * z + w * w);
  });
  return reduce_block(sum, 0.0F, Sum{}, shared);
}

/// 2^-floor(log2(magnitude)), held to normal numbers; `bits` of a finite magnitude above 0.
__device__ inline float power_below_one(std::uint32_t bits) {
  const int exponent = max(static_cast<int>(bits >> 23), 1);
  return __uint_as_float(static_cast<std::uint32_t>(min(max(254 - exponent, 1), 254)) << 23);
}

struct RowShared {
  float sums[2][kMostWarps];
  std::uint32_t largest[2][kMostWarps];
};

// ---- the row's end ----

/// A row's power of two and its inverse; 1 for zeros and for what is not finite.
struct RowPower {
  float power;
  float inverse;
  bool finite;
};

template <int kTurns, class Source>
__device__ inline RowPower power_of(const HeldRow<kTurns, Source>& row, RowShared& shared) {
  constexpr int kTargetExponent = 14;  // The largest magnitude goes to [2^14, 2^15): f16 ends at 2^16.
  const std::uint32_t largest = largest_bits(row, shared.largest[0]);
  const bool finite = largest < kInfinityBits;
  if (largest == 0 || !finite) return {1.0F, 1.0F, finite};
  // Biased exponents; the factor stays a normal number, so rows below 2^-112 end lower than 2^14.
  const int exponent = max(static_cast<int>(largest >> 23) - kTargetExponent, 1);
  return {__uint_as_float(static_cast<std::uint32_t>(exponent) << 23),
          __uint_as_float(static_cast<std::uint32_t>(254 - exponent) << 23), true};
}

struct FourHalves {
  __half2 low;
  __half2 high;
};

__device__ inline FourHalves prepared_elements(const float4& v, const RowPower& power) {
  if (!power.finite) return {};
  return {__floats2half2_rn(v.x * power.inverse, v.y * power.inverse),
          __floats2half2_rn(v.z * power.inverse, v.w * power.inverse)};
}

/// Writes out [4 vectors] and *factor. False where an element is not finite: then zeros and factor 1.
template <int kTurns, class Source>
__device__ inline bool write_prepared(const HeldRow<kTurns, Source>& row, std::uint16_t* out, float* factor,
                                      RowShared& shared) {
  const RowPower power = power_of(row, shared);
  row.each([&](std::int64_t vector, const float4& v) {
    const FourHalves halves = prepared_elements(v, power);
    *reinterpret_cast<uint2*>(out + vector * kVectorElements) = reinterpret_cast<const uint2&>(halves);
  });
  if (threadIdx.x == 0) *factor = power.power;
  return power.finite;
}

struct NormFinite {
  bool input;
  bool result;
};

/// gamma, held where the registers suffice.
template <int kTurns>
using HeldGamma = HeldRow<(kTurns <= 4 ? kTurns : 0), PlainSource>;

/// RMSNorm of x [columns]; end(normed row) is true where it is finite. Sums in float32: relative error below
/// (turns + 13) * 2^-24.
template <int kTurns, class End>
__device__ inline NormFinite end_normalised(const float* x, const HeldGamma<kTurns>& gamma, std::int64_t columns,
                                            float epsilon, float offset, std::int64_t vectors, RowShared& shared,
                                            End end) {
  const HeldRow<kTurns, PlainSource> row({x, columns}, vectors);
  const auto count = static_cast<float>(columns);
  float scale = 1;
  float sum = sum_of_squares(row, scale, shared.sums[0]);
  bool finite = true;
  if (!(sum < __uint_as_float(kInfinityBits))) {  // NaN, infinity, or squares beyond float32; the same in every thread.
    const std::uint32_t largest = largest_bits(row, shared.largest[1]);
    finite = largest < kInfinityBits;
    if (finite) {
      scale = power_below_one(largest);
      sum = sum_of_squares(row, scale, shared.sums[1]);
    }
  }
  const float inverse = 1.0F / sqrtf(sum / count + epsilon * scale * scale);
  const NormedSource<kTurns> normed{row, gamma, offset, scale, inverse};
  const bool result = end(HeldRow<kTurns, NormedSource<kTurns>>(normed, vectors));
  return {finite, result};
}

}  // namespace duet::cuda
