#include "engine/host/delta_step.h"

#include <algorithm>
#include <cmath>

#include "engine/host/host_kernels.h"

namespace duet::host {
namespace {

constexpr std::int64_t kChannelsPerItem = 256;
constexpr float kLengthEpsilon = 1e-6F;  // Of queries and keys, whatever the model's norms have.

const float* floats(const Matrix& vector) { return reinterpret_cast<const float*>(vector.data); }

float softplus(float x) { return std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x))); }

class DeltaLayer {
 public:
  DeltaLayer(const ModelSpec& spec, const BaseWeights& base, int layer, int delta_layer, const DeltaScratch& scratch)
      : spec_(spec), d_(spec.delta), base_(base), layer_(layer), delta_layer_(delta_layer), scratch_(scratch) {}

  /// The causal convolution of channels [first, last) over the rows of a group, and the tail it leaves.
  void convolve(const RowGroup& group, std::int64_t first, std::int64_t last) const {
    const std::int64_t channels = d_.channels(), width = d_.convolution, before = width - 1;
    const float* weights = floats(base_.at(Part::delta_convolution, layer_));
    float* const tail = group.state.tail(d_, delta_layer_);
    if (group.state.begins)
      for (std::int64_t t = 0; t < before; ++t)
        std::fill(tail + t * channels + first, tail + t * channels + last, 0.0F);
    // Row t of tail and input together, the tail's `before` rows first.
    const auto input = [&](std::int64_t t) {
      return t < before ? tail + t * channels : scratch_.input.data() + (group.first + t - before) * channels;
    };
    for (std::int64_t t = 0; t < group.rows; ++t) {
      float* const y = scratch_.mixed.data() + (group.first + t) * channels;
      for (std::int64_t j = 0; j < width; ++j) {
        const float* const x = input(t + j);
        for (std::int64_t c = first; c < last; ++c) {
          const float product = weights[c * width + j] * x[c];
          y[c] = j == 0 ? product : y[c] + product;
        }
      }
    }
    for (std::int64_t t = 0; t < before; ++t) {  // Ascending: a row of the tail is read before it is written.
      const float* const x = input(t + group.rows);
      std::copy(x + first, x + last, tail + t * channels + first);
    }
  }

  /// Activation, lengths of queries and keys, decay and rate of one row.
  void prepare(std::int64_t row) const {
    float* const mixed = scratch_.mixed.data() + row * d_.channels();
    silu(mixed, d_.channels());
    const float scale = 1.0F / std::sqrt(static_cast<float>(d_.key_size));
    for (int head = 0; head < d_.key_heads; ++head) {
      normalise_length(mixed + head * d_.key_size, d_.key_size, kLengthEpsilon, scale);
      normalise_length(mixed + d_.key_width() + head * d_.key_size, d_.key_size, kLengthEpsilon, 1.0F);
    }
    const float* const log = floats(base_.at(Part::delta_decay_log, layer_));
    const float* const bias = floats(base_.at(Part::delta_decay_bias, layer_));
    float* const decay = scratch_.decay.data() + row * d_.value_heads;
    float* const rate = scratch_.rate.data() + row * d_.value_heads;
    for (int head = 0; head < d_.value_heads; ++head) {
      decay[head] = std::exp(-std::exp(log[head]) * softplus(decay[head] + bias[head]));
      rate[head] = 1.0F / (1.0F + std::exp(-rate[head]));
    }
  }

  /// One value head through the rows of a group.
  void recur(const RowGroup& group, int head) const {
    float* const memory = group.state.memory(d_, delta_layer_, head);
    if (group.state.begins) std::fill_n(memory, std::int64_t{d_.key_size} * d_.value_size, 0.0F);
    const int key_head = head / (d_.value_heads / d_.key_heads);
    for (std::int64_t row = group.first; row < group.first + group.rows; ++row) {
      const float* const query = scratch_.mixed.data() + row * d_.channels() + key_head * d_.key_size;
      const float* const key = query + d_.key_width();
      const float* const value =
          scratch_.mixed.data() + row * d_.channels() + 2 * d_.key_width() + head * d_.value_size;
      const auto place = static_cast<std::size_t>(row * d_.value_heads + head);
      delta_rule(memory, query, key, value, scratch_.decay[place], scratch_.rate[place], d_.key_size, d_.value_size,
                 scratch_.output.data() + row * d_.value_width() + head * d_.value_size);
    }
  }

  /// Norm of each head of one row, times the gate; to `gate`.
  void finish(const RowGroup& group, std::int64_t row) const {
    const float* const gamma = floats(weight_of(base_, group.adapter, Part::delta_norm, layer_));
    float* const output = scratch_.output.data() + row * d_.value_width();
    for (int head = 0; head < d_.value_heads; ++head) {
      float* const y = output + head * d_.value_size;
      (void)rms_norm(y, gamma, d_.value_size, static_cast<float>(spec_.norm_epsilon), y);
    }
    swiglu(scratch_.gate.data() + row * d_.value_width(), output, d_.value_width());
  }

 private:
  const ModelSpec& spec_;
  const DeltaSpec& d_;
  const BaseWeights& base_;
  int layer_;
  int delta_layer_;
  const DeltaScratch& scratch_;
};

}  // namespace

DeltaScratch carve_delta_scratch(const DeltaSpec& spec, std::size_t rows, Carver& carver) {
  if (spec.layers.empty()) return {};
  const auto take = [&](std::string_view name, int each) {
    return carver.take_array<float>(name, rows * static_cast<std::size_t>(each));
  };
  DeltaScratch scratch;
  scratch.input = take("delta input", spec.channels());
  scratch.mixed = take("delta mixed", spec.channels());
  scratch.gate = take("delta gate", spec.value_width());
  scratch.decay = take("delta decay", spec.value_heads);
  scratch.rate = take("delta rate", spec.value_heads);
  scratch.output = take("delta output", spec.value_width());
  return scratch;
}

void run_delta(const ModelSpec& spec, const BaseWeights& base, int layer, int delta_layer, ThreadPool& threads,
               const DeltaScratch& scratch, std::span<const RowGroup> groups) {
  const DeltaLayer delta(spec, base, layer, delta_layer, scratch);
  const auto count = static_cast<std::int64_t>(groups.size());
  const std::int64_t channels = spec.delta.channels();
  const std::int64_t pieces = (channels + kChannelsPerItem - 1) / kChannelsPerItem;
  threads.run(count * pieces, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t item = first; item < last; ++item) {
      const std::int64_t begin = item % pieces * kChannelsPerItem;
      delta.convolve(groups[static_cast<std::size_t>(item / pieces)], begin,
                     std::min(begin + kChannelsPerItem, channels));
    }
  });
  const std::int64_t rows = groups.back().first + groups.back().rows;
  threads.run(rows, 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) delta.prepare(row);
  });
  const std::int64_t heads = spec.delta.value_heads;
  threads.run(count * heads, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t item = first; item < last; ++item)
      delta.recur(groups[static_cast<std::size_t>(item / heads)], static_cast<int>(item % heads));
  });
  threads.run(rows, 4, [&](std::int64_t first, std::int64_t last) {
    for (const RowGroup& group : groups) {
      const std::int64_t end = std::min(last, group.first + group.rows);
      for (std::int64_t row = std::max(first, group.first); row < end; ++row) delta.finish(group, row);
    }
  });
}

}  // namespace duet::host
