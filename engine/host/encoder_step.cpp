#include "engine/host/encoder_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "engine/decision_answer.h"
#include "engine/host/host_kernels.h"
#include "engine/quant_blocks.h"

namespace duet::host {
namespace {

constexpr float kDecisionEpsilon = 1e-5F;
constexpr std::int64_t kRowsPerItem = 64;  // Of a matrix.
constexpr int kAllFinite = -2;

float gelu(float x) { return 0.5F * x * (1.0F + std::erf(x * static_cast<float>(1 / std::numbers::sqrt2))); }

/// y = gamma * (x - mean) / sqrt(variance + epsilon) + beta. False, and y all NaN, when some x is not finite.
bool layer_norm(const float* x, const float* gamma, const float* beta, std::int64_t size, float epsilon, float* y) {
  double sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += x[i];
  const double mean = sum / static_cast<double>(size);
  double squares = 0;
  for (std::int64_t i = 0; i < size; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double scale = 1 / std::sqrt(squares / static_cast<double>(size) + epsilon);
  for (std::int64_t i = 0; i < size; ++i) {
    y[i] = static_cast<float>((x[i] - mean) * scale) * gamma[i];
    if (beta != nullptr) y[i] += beta[i];
  }
  return std::isfinite(squares);
}

class Row {
 public:
  Row(const EncoderView& encoder, ThreadPool& threads, const EncoderScratch& scratch, const EncoderRow& row)
      : spec_(encoder.spec),
        base_(encoder.base),
        rotary_(encoder.rotary),
        threads_(threads),
        scratch_(scratch),
        row_(row),
        tokens_(static_cast<std::int64_t>(row.tokens.size())),
        hidden_(encoder.spec.hidden) {}

  /// The first layer whose numbers were not finite, or kAllFinite.
  int run() {
    embed();
    for (int layer = 0; layer < spec_.layers; ++layer) encoder_layer(layer);
    normalise(Part::final_norm, kNoPart, -1, spec_.layers - 1, epsilon(), scratch_.residual.data());
    if (row_.encoded != nullptr) std::copy_n(scratch_.residual.data(), tokens_ * hidden_, row_.encoded);
    add_type();
    for (int layer = spec_.layers; layer < spec_.all_layers(); ++layer) decision_layer(layer);
    score_options();
    if (row_.act_logits != nullptr) act();
    return bad_layer_;
  }

 private:
  static constexpr Part kNoPart = Part::embedding;  // Where a bias could stand and there is none.

  const float* vector(Part part, int layer) const { return reinterpret_cast<const float*>(base_.at(part, layer).data); }
  float epsilon() const { return static_cast<float>(spec_.norm_epsilon); }
  void mark(int layer) {
    if (bad_layer_ == kAllFinite) bad_layer_ = layer;
  }

  // ---- pieces ----

  /// Norm of every row of the residual stream; what is not finite there was written by `last_writer`.
  void normalise(Part norm, Part bias, int layer, int last_writer, float eps, float* y) {
    const float* gamma = vector(norm, layer);
    const float* beta = bias == kNoPart ? nullptr : vector(bias, layer);
    bool finite = true;
    for (std::int64_t t = 0; t < tokens_; ++t)
      finite &= layer_norm(scratch_.residual.data() + t * hidden_, gamma, beta, hidden_, eps, y + t * hidden_);
    if (!finite) mark(last_writer);
  }

  /// y[t] = W x[t] (+ bias) for `rows` rows of x.
  void linear(Part part, Part bias, int layer, const float* x, std::int64_t rows, float* y) {
    const Matrix& weight = base_.at(part, layer);
    const std::int64_t stride = packed_columns(weight.columns);
    const Packing packing = packing_of(weight);
    threads_.run(rows, 8, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t)
        pack(packing, x + t * weight.columns, weight.columns, scratch_.packed.data() + t * stride);
    });
    const float* offsets = bias == kNoPart ? nullptr : vector(bias, layer);
    const std::int64_t items = (weight.rows + kRowsPerItem - 1) / kRowsPerItem;
    threads_.run(items, 1, [&](std::int64_t first, std::int64_t last) {
      const std::int64_t begin = first * kRowsPerItem, end = std::min(last * kRowsPerItem, weight.rows);
      matmul(weight, scratch_.packed.data(), rows, begin, end, y, weight.rows);
      if (offsets == nullptr) return;
      for (std::int64_t t = 0; t < rows; ++t)
        for (std::int64_t i = begin; i < end; ++i) y[t * weight.rows + i] += offsets[i];
    });
  }

  void add_projected() {
    for (std::int64_t i = 0; i < tokens_ * hidden_; ++i)
      scratch_.residual[static_cast<std::size_t>(i)] += scratch_.projected[static_cast<std::size_t>(i)];
  }

  /// Attention of the row over itself: every position, or `window` of each side. `rotary`: the row's cosines and sines,
  /// or none.
  void attend_row(int heads, std::int64_t window, const float* cosine, const float* sine) {
    const std::int64_t size = hidden_ / heads;
    const std::array<std::int32_t, 1> only_page = {0};
    const KvView kv{.pool = reinterpret_cast<std::byte*>(scratch_.keys_values.data()),
                    .page_bytes = 0,
                    .tokens_per_page = tokens_,
                    .kv_heads = heads,
                    .head_size = static_cast<int>(size),
                    .pages = only_page};
    threads_.run(tokens_, 8, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        float* from = scratch_.query_key_value.data() + t * 3 * hidden_;
        for (int head = 0; head < heads; ++head) {
          float *query = from + head * size, *key = query + hidden_, *value = key + hidden_;
          if (cosine != nullptr) {
            rotate(query, cosine + t * (size / 2), sine + t * (size / 2), size);
            rotate(key, cosine + t * (size / 2), sine + t * (size / 2), size);
          }
          std::copy_n(query, size, scratch_.query.data() + t * hidden_ + head * size);
          std::copy_n(key, size, kv.key(0, head, t));
          std::copy_n(value, size, kv.value(0, head, t));
        }
      }
    });
    const float scale = 1.0F / std::sqrt(static_cast<float>(size));
    threads_.run(tokens_ * heads, 4, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t item = first; item < last; ++item) {
        const std::int64_t t = item / heads;
        const auto head = static_cast<int>(item % heads);
        const std::int64_t begin = window > 0 ? std::max<std::int64_t>(0, t - window) : 0;
        const std::int64_t end = window > 0 ? std::min(tokens_, t + window + 1) : tokens_;
        attend(scratch_.query.data() + t * hidden_ + head * size, 1, kv, 0, head, begin, end, scale,
               scratch_.attended.data() + t * hidden_ + head * size);
      }
    });
  }

  // ---- the encoder ----

  void embed() {
    for (std::int64_t t = 0; t < tokens_; ++t) {
      float* x = scratch_.residual.data() + t * hidden_;
      dequantise(base_.at(Part::embedding, -1), std::int64_t{row_.tokens[static_cast<std::size_t>(t)]} * hidden_,
                 {x, static_cast<std::size_t>(hidden_)});
    }
    normalise(Part::embedding_norm, kNoPart, -1, kLayerEmbedding, epsilon(), scratch_.residual.data());
  }

  void encoder_layer(int layer) {
    const float* input = scratch_.residual.data();
    if (layer > 0) {  // The first layer reads what the embedding's norm gave.
      normalise(Part::input_norm, kNoPart, layer, layer - 1, epsilon(), scratch_.normed.data());
      input = scratch_.normed.data();
    }
    linear(Part::query_key_value, kNoPart, layer, input, tokens_, scratch_.query_key_value.data());
    const bool slides = spec_.layer_slides[static_cast<std::size_t>(layer)];
    const std::int64_t table = slides ? std::int64_t{spec_.max_position_tokens} * (spec_.head_size / 2) : 0;
    attend_row(spec_.query_heads, slides ? spec_.sliding_window_tokens : 0, rotary_.cosine.data() + table,
               rotary_.sine.data() + table);
    linear(Part::output, kNoPart, layer, scratch_.attended.data(), tokens_, scratch_.projected.data());
    add_projected();

    normalise(Part::post_attention_norm, kNoPart, layer, layer, epsilon(), scratch_.normed.data());
    linear(Part::gate_up, kNoPart, layer, scratch_.normed.data(), tokens_, scratch_.inner.data());
    for (std::int64_t t = 0; t < tokens_; ++t) {  // In place: row t of the product ends before row t of its inputs.
      const float* both = scratch_.inner.data() + t * 2 * spec_.mlp;
      float* y = scratch_.inner.data() + t * spec_.mlp;
      for (std::int64_t i = 0; i < spec_.mlp; ++i) y[i] = gelu(both[i]) * both[spec_.mlp + i];
    }
    linear(Part::down, kNoPart, layer, scratch_.inner.data(), tokens_, scratch_.projected.data());
    add_projected();
  }

  // ---- the decision head ----

  void add_type() {
    dequantise(base_.at(Part::type_embedding, -1), std::int64_t{row_.question_kind} * hidden_,
               scratch_.projected.first(static_cast<std::size_t>(hidden_)));
    for (std::int64_t t = 0; t < tokens_; ++t)
      for (std::int64_t i = 0; i < hidden_; ++i)
        scratch_.residual[static_cast<std::size_t>(t * hidden_ + i)] += scratch_.projected[static_cast<std::size_t>(i)];
  }

  void decision_layer(int layer) {
    normalise(Part::input_norm, Part::input_norm_bias, layer, layer - 1, kDecisionEpsilon, scratch_.normed.data());
    linear(Part::query_key_value, Part::query_key_value_bias, layer, scratch_.normed.data(), tokens_,
           scratch_.query_key_value.data());
    attend_row(spec_.decision_heads, 0, nullptr, nullptr);
    linear(Part::output, Part::output_bias, layer, scratch_.attended.data(), tokens_, scratch_.projected.data());
    add_projected();

    normalise(Part::post_attention_norm, Part::post_attention_norm_bias, layer, layer, kDecisionEpsilon,
              scratch_.normed.data());
    linear(Part::up, Part::up_bias, layer, scratch_.normed.data(), tokens_, scratch_.inner.data());
    for (std::int64_t i = 0; i < tokens_ * 4 * hidden_; ++i) {
      float& x = scratch_.inner[static_cast<std::size_t>(i)];
      x = std::max(x, 0.0F);
    }
    linear(Part::down, Part::down_bias, layer, scratch_.inner.data(), tokens_, scratch_.projected.data());
    add_projected();
  }

  void score_options() {
    const auto options = static_cast<std::int64_t>(row_.markers.size());
    bool finite = true;
    for (std::int64_t k = 0; k < options; ++k) {
      const float* marker = scratch_.residual.data() + row_.markers[static_cast<std::size_t>(k)] * hidden_;
      finite &= layer_norm(marker, vector(Part::scorer_norm, -1), vector(Part::scorer_norm_bias, -1), hidden_,
                           kDecisionEpsilon, scratch_.normed.data() + k * hidden_);
    }
    linear(Part::scorer_hidden, Part::scorer_hidden_bias, -1, scratch_.normed.data(), options,
           scratch_.projected.data());
    for (std::int64_t i = 0; i < options * hidden_; ++i) {
      float& x = scratch_.projected[static_cast<std::size_t>(i)];
      x = gelu(x);
    }
    linear(Part::scorer_output, Part::scorer_output_bias, -1, scratch_.projected.data(), options, row_.option_logits);
    if (!finite || !all_finite(row_.option_logits, options)) mark(spec_.all_layers());
  }

  /// Reads the first token's vector and four numbers of the untempered probabilities.
  void act() {
    const std::span<float> input = scratch_.small.first(static_cast<std::size_t>(hidden_ + kActFeatures));
    std::copy_n(scratch_.residual.data(), hidden_, input.data());
    const std::array<float, kActFeatures> features = act_features({row_.option_logits, row_.markers.size()});
    std::copy(features.begin(), features.end(), input.data() + hidden_);
    float* inner = scratch_.small.data() + input.size();
    linear(Part::act_hidden, Part::act_hidden_bias, -1, input.data(), 1, inner);
    for (int i = 0; i < kActWidth; ++i) inner[i] = gelu(inner[i]);
    linear(Part::act_output, Part::act_output_bias, -1, inner, 1, row_.act_logits);
  }

  const ModelSpec& spec_;
  const BaseWeights& base_;
  const RotaryTables& rotary_;
  ThreadPool& threads_;
  const EncoderScratch& scratch_;
  const EncoderRow& row_;
  std::int64_t tokens_;
  std::int64_t hidden_;
  int bad_layer_ = kAllFinite;
};

}  // namespace

EncoderScratch carve_encoder_scratch(const ModelSpec& spec, Carver& carver) {
  const auto rows = static_cast<std::size_t>(spec.max_position_tokens);
  const auto take = [&](std::string_view name, std::size_t count, std::int64_t each) {
    return carver.take_array<float>(name, count * static_cast<std::size_t>(each));
  };
  const std::int64_t inner = std::max(2 * spec.mlp, 4 * spec.hidden);
  EncoderScratch scratch;
  scratch.residual = take("residual", rows, spec.hidden);
  scratch.normed = take("normed", rows, spec.hidden);
  scratch.packed = take("packed", rows, packed_columns(std::max<std::int64_t>(inner, spec.hidden + kActFeatures)));
  scratch.query_key_value = take("query, key and value", rows, std::int64_t{3} * spec.hidden);
  scratch.query = take("query", rows, spec.hidden);
  scratch.keys_values = take("keys and values", rows, std::int64_t{2} * spec.hidden);
  scratch.attended = take("attended", rows, spec.hidden);
  scratch.inner = take("inner", rows, inner);
  scratch.projected = take("projected", rows, spec.hidden);
  scratch.small = take("act head", 1, spec.hidden + kActFeatures + kActWidth);
  return scratch;
}

RotaryTables rotary_tables(const ModelSpec& spec) {
  RotaryTables tables;
  for (const RopeSpec* rope : {&spec.rope, &spec.sliding_rope}) {
    const std::vector<float> frequencies = inverse_frequencies(*rope, spec.head_size);
    for (int position = 0; position < spec.max_position_tokens; ++position) {
      for (const float frequency : frequencies) {
        const float angle = static_cast<float>(position) * frequency;
        tables.cosine.push_back(std::cos(angle));
        tables.sine.push_back(std::sin(angle));
      }
    }
  }
  return tables;
}

void run_encoder_row(const EncoderView& encoder, ThreadPool& threads, const EncoderScratch& scratch,
                     const EncoderRow& row, StepOutcome& outcome) {
  outcome = {};
  const int bad_layer = Row(encoder, threads, scratch, row).run();
  outcome.finite = bad_layer == kAllFinite;
  outcome.bad_layer = outcome.finite ? 0 : bad_layer;
}

}  // namespace duet::host
