#include "engine/host/host_math.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/quant_blocks.h"

namespace duet::plain {
namespace {

/// Row `r` of W, in float32.
std::vector<float> row_of(const Matrix& w, std::int64_t r) {
  std::vector<float> row(static_cast<std::size_t>(w.columns));
  dequantise(w, r * w.columns, row);
  return row;
}

float element_of(const Matrix& w, std::int64_t r, std::int64_t c) {
  float value = 0;
  dequantise(w, r * w.columns + c, {&value, 1});
  return value;
}

/// y += scale * (B u + c)
void add_b(const Matrix& b, std::span<const double> u, std::span<const float> c, double scale, std::span<float> y) {
  for (std::size_t o = 0; o < y.size(); ++o) {
    const std::vector<float> row = row_of(b, static_cast<std::int64_t>(o));
    double sum = c.empty() ? 0.0 : double{c[o]};
    for (std::size_t r = 0; r < u.size(); ++r) sum += row[r] * u[r];
    y[o] = static_cast<float>(y[o] + scale * sum);
  }
}

}  // namespace

void matvec(const Matrix& w, std::span<const float> x, std::span<float> y, std::span<double> magnitudes) {
  for (std::size_t r = 0; r < y.size(); ++r) {
    const std::vector<float> row = row_of(w, static_cast<std::int64_t>(r));
    double sum = 0;
    double magnitude = 0;
    for (std::size_t c = 0; c < x.size(); ++c) {
      const double product = double{row[c]} * x[c];
      sum += product;
      magnitude += std::abs(product);
    }
    y[r] = static_cast<float>(sum);
    if (!magnitudes.empty()) magnitudes[r] = magnitude;
  }
}

void embed(const Matrix& w, std::int64_t token, std::span<float> y) { dequantise(w, token * w.columns, y); }

void rms_norm(std::span<const float> x, std::span<const float> gamma, double epsilon, std::span<float> y) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(gamma[i] * (x[i] * factor));
}

void rotary(std::span<const float> inverse_frequencies, std::int64_t position, double factor, std::span<float> cosine,
            std::span<float> sine) {
  for (std::size_t i = 0; i < inverse_frequencies.size(); ++i) {
    const float angle = static_cast<float>(position) * inverse_frequencies[i];
    cosine[i] = static_cast<float>(std::cos(double{angle}) * factor);
    sine[i] = static_cast<float>(std::sin(double{angle}) * factor);
  }
}

void rotate(std::span<float> x, std::span<const float> cosine, std::span<const float> sine) {
  const std::size_t half = x.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double low = x[i];
    const double high = x[i + half];
    x[i] = static_cast<float>(low * cosine[i] - high * sine[i]);
    x[i + half] = static_cast<float>(high * cosine[i] + low * sine[i]);
  }
}

void swiglu(std::span<const float> gate, std::span<const float> up, std::span<float> y) {
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    y[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * up[i]);
  }
}

void gate_by_sigmoid(std::span<float> x, std::span<const float> gate) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(x[i] / (1.0 + std::exp(-double{gate[i]})));
}

void attend(std::span<const float> q, const KvView& kv, int layer, int kv_head, std::int64_t first_position,
            std::int64_t last_position, double scale, std::span<float> out) {
  std::vector<double> weights;  // [last - first]
  double maximum = -std::numeric_limits<double>::infinity();
  for (std::int64_t p = first_position; p < last_position; ++p) {
    const float* key = kv.key(layer, kv_head, p);
    double score = 0;
    for (std::size_t i = 0; i < q.size(); ++i) score += double{q[i]} * key[i];
    weights.push_back(score * scale);
    maximum = std::max(maximum, weights.back());
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - maximum);
  for (std::size_t i = 0; i < out.size(); ++i) {
    double value = 0;
    for (std::int64_t p = first_position; p < last_position; ++p) {
      value += weights[static_cast<std::size_t>(p - first_position)] * kv.value(layer, kv_head, p)[i];
    }
    out[i] = static_cast<float>(value / sum);
  }
}

void add_lora(const Matrix& a, const Matrix& b, std::span<const float> c, double scale, std::span<const float> x,
              std::span<float> y) {
  std::vector<double> u(static_cast<std::size_t>(a.rows), 0.0);
  for (std::size_t r = 0; r < u.size(); ++r) {
    const std::vector<float> row = row_of(a, static_cast<std::int64_t>(r));
    for (std::size_t i = 0; i < x.size(); ++i) u[r] += double{row[i]} * x[i];
  }
  add_b(b, u, c, scale, y);
}

void add_embedding_lora(const Matrix& a, const Matrix& b, double scale, std::int64_t token, std::span<float> y) {
  std::vector<double> u;
  for (std::int64_t r = 0; r < a.rows; ++r) u.push_back(element_of(a, r, token));
  add_b(b, u, {}, scale, y);
}

void dora_row_scales(const Matrix& w, const Matrix& a, const Matrix& b, double scale, std::span<const float> magnitude,
                     std::span<float> row_scales) {
  for (std::size_t o = 0; o < magnitude.size(); ++o) {
    const std::vector<float> base = row_of(w, static_cast<std::int64_t>(o));
    std::vector<double> row(base.begin(), base.end());
    for (std::int64_t r = 0; r < a.rows; ++r) {
      const double factor = scale * element_of(b, static_cast<std::int64_t>(o), r);
      const std::vector<float> direction = row_of(a, r);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] += factor * direction[i];
    }
    double squares = 0;
    for (const double value : row) squares += value * value;
    row_scales[o] = static_cast<float>(magnitude[o] / std::sqrt(squares));
  }
}

void convolve(std::span<const float> w, std::span<const float> x, std::span<float> y) {
  const std::size_t channels = y.size(), width = w.size() / channels;
  for (std::size_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (std::size_t j = 0; j < width; ++j) sum += double{w[c * width + j]} * x[j * channels + c];
    y[c] = static_cast<float>(sum / (1.0 + std::exp(-sum)));
  }
}

void normalise_length(std::span<float> x, double epsilon, double scale) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  for (float& value : x) value = static_cast<float>(value * scale / std::sqrt(squares + epsilon));
}

double decay_of(double x, double log, double bias) {
  const double sum = x + bias;
  const double softplus = std::max(sum, 0.0) + std::log1p(std::exp(-std::abs(sum)));
  return std::exp(-std::exp(log) * softplus);
}

void delta_rule(std::span<double> memory, std::span<const float> query, std::span<const float> key,
                std::span<const float> value, double decay, double rate, std::span<float> out) {
  const std::size_t size = value.size();
  for (double& element : memory) element *= decay;
  for (std::size_t j = 0; j < size; ++j) {
    double recalled = 0;
    for (std::size_t i = 0; i < key.size(); ++i) recalled += memory[i * size + j] * key[i];
    const double change = rate * (value[j] - recalled);
    double sum = 0;
    for (std::size_t i = 0; i < key.size(); ++i) {
      memory[i * size + j] += key[i] * change;
      sum += memory[i * size + j] * query[i];
    }
    out[j] = static_cast<float>(sum);
  }
}

void log_softmax(std::span<const float> x, std::span<float> y) {
  const double maximum = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float value : x) sum += std::exp(value - maximum);
  const double shift = maximum + std::log(sum);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(x[i] - shift);
}

}  // namespace duet::plain
