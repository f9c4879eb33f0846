#pragma once

#include <cstdint>
#include <span>

#include "engine/host/kv_view.h"
#include "engine/weights.h"

/// The maths of a decoder, plainly: one function an operation, sums in float64, results rounded to float32 once. This
/// is what SIMD and CUDA kernels are tested against; nothing here is fast.
///
/// A kernel that sums n products in float32, in any order, is off by at most about n * eps32 * sum |products| (Higham,
/// Accuracy and Stability of Numerical Algorithms, 3.1): functions with a `magnitudes` argument give that sum.
namespace duet::plain {

/// y = W x.  W [rows, columns] in any storage, x [columns], y [rows]; magnitudes [rows] or empty: sum_c |W[r, c] x[c]|.
void matvec(const Matrix& w, std::span<const float> x, std::span<float> y, std::span<double> magnitudes = {});

/// Row `token` of the embedding.  w [vocabulary, hidden], y [hidden].
void embed(const Matrix& w, std::int64_t token, std::span<float> y);

/// y = gamma * x / sqrt(mean(x^2) + epsilon), all [n].
void rms_norm(std::span<const float> x, std::span<const float> gamma, double epsilon, std::span<float> y);

/// cos and sin of position * inverse_frequency, times factor; the angle is a float32 product as in transformers. [n /
/// 2]
void rotary(std::span<const float> inverse_frequencies, std::int64_t position, double factor, std::span<float> cosine,
            std::span<float> sine);

/// Rotates the halves of x [n]: (x[i], x[i + n/2]) by the angle of (cosine[i], sine[i]).
void rotate(std::span<float> x, std::span<const float> cosine, std::span<const float> sine);

/// y = gate / (1 + exp(-gate)) * up, all [n].
void swiglu(std::span<const float> gate, std::span<const float> up, std::span<float> y);

/// x = x / (1 + exp(-gate)), both [n].
void gate_by_sigmoid(std::span<float> x, std::span<const float> gate);

/// out = sum_p softmax_p(scale * q . k_p) v_p over first_position <= p < last_position.  q, out [head_size].
void attend(std::span<const float> q, const KvView& kv, int layer, int kv_head, std::int64_t first_position,
            std::int64_t last_position, double scale, std::span<float> out);

/// y += scale * (B (A x) + c).  a [rank, in], b [out, rank], c [out] or empty, x [in], y [out].
void add_lora(const Matrix& a, const Matrix& b, std::span<const float> c, double scale, std::span<const float> x,
              std::span<float> y);

/// The same on the embedding: x is one-hot, so A x is a column of a [rank, vocabulary].
void add_embedding_lora(const Matrix& a, const Matrix& b, double scale, std::int64_t token, std::span<float> y);

/// DoRA (arXiv:2402.09353): magnitude[o] / |W[o] + scale * (B A)[o]|.  w [out, in], all vectors [out].
void dora_row_scales(const Matrix& w, const Matrix& a, const Matrix& b, double scale, std::span<const float> magnitude,
                     std::span<float> row_scales);

/// A causal convolution of each channel, then silu: y[c] = silu(sum_j w[c, j] x[j, c]).
///   w  [channels, width]    x  [width, channels], the newest token last    y  [channels]
void convolve(std::span<const float> w, std::span<const float> x, std::span<float> y);

/// x = scale * x / sqrt(sum(x^2) + epsilon), [n].
void normalise_length(std::span<float> x, double epsilon, double scale);

/// exp(-exp(log) * ln(1 + exp(x + bias))): by how much a memory fades.
double decay_of(double x, double log, double bias);

/// One token of the gated delta rule (arXiv:2412.06464), S in float64:
///   S <- decay S;  S <- S + k (rate (v - S^T k))^T;  out = S^T q
///   memory  S [key_size, value_size]    query, key  [key_size]    value, out  [value_size]
void delta_rule(std::span<double> memory, std::span<const float> query, std::span<const float> key,
                std::span<const float> value, double decay, double rate, std::span<float> out);

/// y = x - log(sum exp x), all [n].
void log_softmax(std::span<const float> x, std::span<float> y);

}  // namespace duet::plain
