// Model specs: checks, tensor list, rotary frequencies.
#include "engine/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "duet/error.h"

namespace duet {

namespace {

// Far above any model, far below what could overflow the products taken of them.
constexpr int kMostLayers = 4096;
constexpr int kMostHeads = 1 << 16;
constexpr int kLargestHeadSize = 1 << 12;
constexpr int kLargestWidth = 1 << 20;
constexpr int kLargestVocabulary = 1 << 24;
constexpr int kWidestConvolution = 64;

/// Refuses numbers of one spec, naming where it came from.
class SpecChecker {
 public:
  explicit SpecChecker(std::string_view source) : source_(source) {}

  void within(std::string_view field, std::int64_t value, std::int64_t smallest, std::int64_t largest) const {
    if (value < smallest || value > largest) {
      refuse(fmt::format("{} is {}; {} to {} is possible", field, value, smallest, largest));
    }
  }
  void positive(std::string_view field, double value) const {
    if (!std::isfinite(value) || value <= 0)
      refuse(fmt::format("{} is {}; a positive number was expected", field, value));
  }
  void that(bool holds, std::string_view otherwise) const {
    if (!holds) refuse(std::string(otherwise));
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Code::bad_file, fmt::format("{}: {}", source_, what));
  }
  std::string_view source_;
};

void check_rope(const RopeSpec& rope, const SpecChecker& checker) {
  checker.positive("rope theta", rope.theta);
  checker.positive("rope attention factor", rope.attention_factor);
  if (rope.kind == RopeKind::standard) return;
  checker.positive("rope factor", rope.factor);
  if (rope.kind == RopeKind::linear) return;
  checker.positive("rope original_max_position_embeddings", rope.original_max_position_tokens);
  if (rope.kind == RopeKind::llama3) {
    checker.positive("rope low_freq_factor", rope.low_frequency_factor);
    checker.positive("rope high_freq_factor", rope.high_frequency_factor);
    checker.that(rope.low_frequency_factor < rope.high_frequency_factor,
                 fmt::format("rope low_freq_factor {} is not below high_freq_factor {}", rope.low_frequency_factor,
                             rope.high_frequency_factor));
  }
  if (rope.kind == RopeKind::yarn) {
    checker.positive("rope beta_fast", rope.beta_fast);
    checker.positive("rope beta_slow", rope.beta_slow);
    checker.that(rope.theta != 1.0, "rope theta is 1; yarn divides by its logarithm");
  }
}

// ---- rotary frequencies: transformers modeling_rope_utils.py, in the float32 steps it takes ----

/// base ^ (2 i / head_size), i = 0 ... head_size / 2 - 1.
std::vector<float> powers_of_base(double theta, int head_size) {
  const auto base = static_cast<float>(theta);
  std::vector<float> powers;
  for (int i = 0; i < head_size; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_size);
    powers.push_back(static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent))));
  }
  return powers;
}

void scale_as_llama3(const RopeSpec& rope, std::vector<float>& frequencies) {
  const double longest = rope.original_max_position_tokens / rope.low_frequency_factor;
  const double shortest = rope.original_max_position_tokens / rope.high_frequency_factor;
  for (float& frequency : frequencies) {
    const double wavelength = 2 * std::numbers::pi / static_cast<double>(frequency);
    const double slowed = static_cast<double>(frequency) / rope.factor;
    if (wavelength > longest) {
      frequency = static_cast<float>(slowed);
    } else if (wavelength >= shortest) {
      const double smooth = (rope.original_max_position_tokens / wavelength - rope.low_frequency_factor) /
                            (rope.high_frequency_factor - rope.low_frequency_factor);
      frequency = static_cast<float>((1 - smooth) * slowed + smooth * static_cast<double>(frequency));
    }
  }
}

/// The (fractional) pair of dimensions that turns `rotations` times within the original context.
double correction_dimension(const RopeSpec& rope, int head_size, double rotations) {
  return head_size * std::log(rope.original_max_position_tokens / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

std::vector<float> yarn_frequencies(const RopeSpec& rope, int head_size) {
  double low = correction_dimension(rope, head_size, rope.beta_fast);
  double high = correction_dimension(rope, head_size, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_size - 1));
  if (low == high) high += 0.001;  // As the reference: keeps the ramp finite.
  std::vector<float> frequencies = powers_of_base(rope.theta, head_size);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const auto power = static_cast<double>(frequencies[i]);
    frequencies[i] = static_cast<float>(ramp / (rope.factor * power) + (1 - ramp) / power);
  }
  return frequencies;
}

// ---- tensors ----

class TensorLister {
 public:
  void matrix(std::string name, Part part, int layer, TensorRole role, int rows, int columns) {
    rows_.push_back({std::move(name), part, layer, role, rows, columns});
  }
  void vector(std::string name, Part part, int layer, int columns) {
    rows_.push_back({std::move(name), part, layer, TensorRole::vector, 1, columns});
  }
  std::vector<TensorRow> take() { return std::move(rows_); }

 private:
  std::vector<TensorRow> rows_;
};

std::string_view prefix_of(const ModelSpec& m) { return m.is_hybrid() ? "model.language_model." : "model."; }

void list_delta(const ModelSpec& m, int layer, const std::string& at, TensorLister& list) {
  const DeltaSpec& d = m.delta;
  const auto matrix = [&](std::string_view name, Part part, TensorRole role, int rows, int columns) {
    list.matrix(fmt::format("{}linear_attn.{}", at, name), part, layer, role, rows, columns);
  };
  const auto vector = [&](std::string_view name, Part part, int columns) {
    list.vector(fmt::format("{}linear_attn.{}", at, name), part, layer, columns);
  };
  matrix("in_proj_qkv.weight", Part::delta_query_key_value, TensorRole::linear, d.channels(), m.hidden);
  matrix("in_proj_z.weight", Part::delta_gate, TensorRole::linear, d.value_width(), m.hidden);
  matrix("in_proj_a.weight", Part::delta_decay, TensorRole::decision, d.value_heads, m.hidden);
  matrix("in_proj_b.weight", Part::delta_rate, TensorRole::decision, d.value_heads, m.hidden);
  matrix("out_proj.weight", Part::delta_output, TensorRole::linear, m.hidden, d.value_width());
  matrix("conv1d.weight", Part::delta_convolution, TensorRole::vector, d.channels(), d.convolution);
  vector("A_log", Part::delta_decay_log, d.value_heads);
  vector("dt_bias", Part::delta_decay_bias, d.value_heads);
  vector("norm.weight", Part::delta_norm, d.value_size);
}

void list_layer(const ModelSpec& m, int layer, TensorLister& list) {
  const std::string at = fmt::format("{}layers.{}.", prefix_of(m), layer);
  const auto linear = [&](std::string_view name, Part part, int rows, int columns) {
    list.matrix(fmt::format("{}{}.weight", at, name), part, layer, TensorRole::linear, rows, columns);
  };
  const auto vector = [&](std::string_view name, Part part, int columns) {
    list.vector(fmt::format("{}{}", at, name), part, layer, columns);
  };
  vector("input_layernorm.weight", Part::input_norm, m.hidden);
  const bool attends = !m.is_delta(layer);
  if (attends) {
    linear("self_attn.q_proj", Part::query, m.query_rows(), m.hidden);
    linear("self_attn.k_proj", Part::key, m.kv_width(), m.hidden);
    linear("self_attn.v_proj", Part::value, m.kv_width(), m.hidden);
    linear("self_attn.o_proj", Part::output, m.hidden, m.query_width());
  }
  vector("post_attention_layernorm.weight", Part::post_attention_norm, m.hidden);
  linear("mlp.gate_proj", Part::gate, m.mlp, m.hidden);
  linear("mlp.up_proj", Part::up, m.mlp, m.hidden);
  linear("mlp.down_proj", Part::down, m.hidden, m.mlp);
  if (attends && m.query_key_value_bias) {
    vector("self_attn.q_proj.bias", Part::query_bias, m.query_rows());
    vector("self_attn.k_proj.bias", Part::key_bias, m.kv_width());
    vector("self_attn.v_proj.bias", Part::value_bias, m.kv_width());
  }
  if (attends && m.output_bias) vector("self_attn.o_proj.bias", Part::output_bias, m.hidden);
  if (m.mlp_bias) {
    vector("mlp.gate_proj.bias", Part::gate_bias, m.mlp);
    vector("mlp.up_proj.bias", Part::up_bias, m.mlp);
    vector("mlp.down_proj.bias", Part::down_bias, m.hidden);
  }
  if (attends && m.query_key_norm) {
    vector("self_attn.q_norm.weight", Part::query_norm, m.head_size);
    vector("self_attn.k_norm.weight", Part::key_norm, m.head_size);
  }
  if (!attends) list_delta(m, layer, at, list);
}

// Names as in Laya's published files (ModernBERT under "encoder.", torch's TransformerEncoderLayer under "head.").

void list_encoder_layer(const ModelSpec& m, int layer, TensorLister& list) {
  const std::string at = fmt::format("encoder.layers.{}.", layer);
  const auto linear = [&](std::string_view name, Part part, int rows, int columns) {
    list.matrix(fmt::format("{}{}.weight", at, name), part, layer, TensorRole::linear, rows, columns);
  };
  if (layer > 0) list.vector(at + "attn_norm.weight", Part::input_norm, layer, m.hidden);
  linear("attn.Wo", Part::output, m.hidden, m.hidden);
  list.vector(at + "mlp_norm.weight", Part::post_attention_norm, layer, m.hidden);
  linear("mlp.Wo", Part::down, m.hidden, m.mlp);
  linear("attn.Wqkv", Part::query_key_value, 3 * m.hidden, m.hidden);
  linear("mlp.Wi", Part::gate_up, 2 * m.mlp, m.hidden);
}

/// A matrix of the decision head and its bias.
void list_biased(std::string_view weight, std::string_view bias, Part part, Part bias_part, int layer, int rows,
                 int columns, TensorLister& list) {
  list.matrix(std::string(weight), part, layer, TensorRole::decision, rows, columns);
  list.vector(std::string(bias), bias_part, layer, rows);
}

void list_decision_layer(const ModelSpec& m, int index, TensorLister& list) {
  const std::string at = fmt::format("head.layers.{}.", index);
  const int layer = m.layers + index;
  const auto biased = [&](const std::string& name, Part part, Part bias_part, int rows, int columns) {
    list_biased(at + name + "weight", at + name + "bias", part, bias_part, layer, rows, columns, list);
  };
  const int wide = 4 * m.hidden;
  list.vector(at + "norm1.weight", Part::input_norm, layer, m.hidden);
  list.vector(at + "norm1.bias", Part::input_norm_bias, layer, m.hidden);
  biased("self_attn.in_proj_", Part::query_key_value, Part::query_key_value_bias, 3 * m.hidden, m.hidden);
  biased("self_attn.out_proj.", Part::output, Part::output_bias, m.hidden, m.hidden);
  list.vector(at + "norm2.weight", Part::post_attention_norm, layer, m.hidden);
  list.vector(at + "norm2.bias", Part::post_attention_norm_bias, layer, m.hidden);
  biased("linear1.", Part::up, Part::up_bias, wide, m.hidden);
  biased("linear2.", Part::down, Part::down_bias, m.hidden, wide);
}

std::vector<TensorRow> tensors_of_encoder(const ModelSpec& m) {
  TensorLister list;
  list.matrix("encoder.embeddings.tok_embeddings.weight", Part::embedding, -1, TensorRole::embedding, m.vocabulary,
              m.hidden);
  list.vector("encoder.embeddings.norm.weight", Part::embedding_norm, -1, m.hidden);
  for (int layer = 0; layer < m.layers; ++layer) list_encoder_layer(m, layer, list);
  list.vector("encoder.final_norm.weight", Part::final_norm, -1, m.hidden);
  list.matrix("type_emb.weight", Part::type_embedding, -1, TensorRole::decision, kQuestionKinds, m.hidden);
  for (int index = 0; index < m.decision_layers; ++index) list_decision_layer(m, index, list);
  list.vector("scorer.0.weight", Part::scorer_norm, -1, m.hidden);
  list.vector("scorer.0.bias", Part::scorer_norm_bias, -1, m.hidden);
  list_biased("scorer.1.weight", "scorer.1.bias", Part::scorer_hidden, Part::scorer_hidden_bias, -1, m.hidden, m.hidden,
              list);
  list_biased("scorer.3.weight", "scorer.3.bias", Part::scorer_output, Part::scorer_output_bias, -1, 1, m.hidden, list);
  list_biased("act_head.0.weight", "act_head.0.bias", Part::act_hidden, Part::act_hidden_bias, -1, kActWidth,
              m.hidden + kActFeatures, list);
  list_biased("act_head.2.weight", "act_head.2.bias", Part::act_output, Part::act_output_bias, -1, m.act_outputs,
              kActWidth, list);
  return list.take();
}

void check_encoder(const ModelSpec& spec, const SpecChecker& checker) {
  checker.within("the number of decision layers", spec.decision_layers, 0, kMostLayers);
  checker.within("the number of decision heads", spec.decision_heads, 1, kMostHeads);
  checker.within("outputs of the act head", spec.act_outputs, 1, kMostHeads);
  checker.that(
      spec.query_heads == spec.kv_heads && spec.query_width() == spec.hidden,
      fmt::format("{} heads of {} do not make the hidden size {}", spec.query_heads, spec.head_size, spec.hidden));
  checker.that(spec.hidden % spec.decision_heads == 0,
               fmt::format("{} decision heads do not divide the hidden size {}", spec.decision_heads, spec.hidden));
  checker.that(spec.rope.kind == RopeKind::standard && spec.sliding_rope.kind == RopeKind::standard,
               "an encoder's rotary embedding is not of the default kind");
  check_rope(spec.sliding_rope, checker);
}

void check_delta(const ModelSpec& spec, const SpecChecker& checker) {
  const DeltaSpec& d = spec.delta;
  const auto marked = static_cast<std::int64_t>(d.layers.size());
  checker.that(marked == spec.layers,
               fmt::format("{} layers are marked as linear attention or not; the model has {}", marked, spec.layers));
  checker.that(spec.delta_layers() < spec.layers, "no layer has full attention; Duet needs one at least");
  checker.within("the number of linear key heads", d.key_heads, 1, kMostHeads);
  checker.within("the number of linear value heads", d.value_heads, 1, kMostHeads);
  checker.within("linear key head size", d.key_size, 1, kLargestHeadSize);
  checker.within("linear value head size", d.value_size, 1, kLargestHeadSize);
  checker.within("the width of the linear convolution", d.convolution, 1, kWidestConvolution);
  checker.within("linear key heads times head size", std::int64_t{d.key_heads} * d.key_size, 1, kLargestWidth);
  checker.within("linear value heads times head size", std::int64_t{d.value_heads} * d.value_size, 1, kLargestWidth);
  checker.that(d.value_heads % d.key_heads == 0,
               fmt::format("{} linear value heads cannot share {} key heads", d.value_heads, d.key_heads));
}

}  // namespace

int ModelSpec::delta_layers() const {
  return static_cast<int>(std::count(delta.layers.begin(), delta.layers.end(), true));
}

void check(const ModelSpec& spec, std::string_view source) {
  const SpecChecker checker(source);
  checker.within("the number of layers", spec.layers, 1, kMostLayers);
  checker.within("hidden size", spec.hidden, 1, kLargestWidth);
  checker.within("the number of query heads", spec.query_heads, 1, kMostHeads);
  checker.within("the number of key/value heads", spec.kv_heads, 1, kMostHeads);
  checker.within("head size", spec.head_size, 2, kLargestHeadSize);
  checker.within("intermediate size", spec.mlp, 1, kLargestWidth);
  checker.within("vocabulary size", spec.vocabulary, 1, kLargestVocabulary);
  checker.within("max_position_embeddings", spec.max_position_tokens, 1, INT32_MAX);
  checker.within("query heads times head size", std::int64_t{spec.query_heads} * spec.head_size, 1, kLargestWidth);
  checker.that(spec.head_size % 2 == 0, fmt::format("head size {} is odd; rotation needs pairs", spec.head_size));
  checker.that(spec.query_heads % spec.kv_heads == 0,
               fmt::format("{} query heads cannot be shared by {} key/value heads", spec.query_heads, spec.kv_heads));
  checker.within("rotated elements of a head", spec.rotated_size(), 2, spec.head_size);
  checker.that(spec.rotated_size() % 2 == 0,
               fmt::format("{} elements of a head are rotated; rotation needs pairs", spec.rotated_size()));
  checker.positive("rms_norm_eps", spec.norm_epsilon);
  check_rope(spec.rope, checker);

  checker.within("sliding window", spec.sliding_window_tokens, 0, INT32_MAX);
  checker.that(
      spec.sliding_window_tokens == 0 || spec.layer_slides.size() == static_cast<std::size_t>(spec.layers),
      fmt::format("{} layers are marked as sliding or not; the model has {}", spec.layer_slides.size(), spec.layers));
  checker.within("begin id", spec.begin_id, -1, spec.vocabulary - 1);
  for (const std::int32_t id : spec.end_ids) checker.within("end id", id, 0, spec.vocabulary - 1);
  if (!spec.delta.layers.empty()) check_delta(spec, checker);
  if (spec.kind == ModelKind::encoder) check_encoder(spec, checker);
}

std::vector<float> inverse_frequencies(const RopeSpec& rope, int head_size) {
  if (rope.kind == RopeKind::yarn) return yarn_frequencies(rope, head_size);
  std::vector<float> frequencies = powers_of_base(rope.theta, head_size);
  for (float& frequency : frequencies) frequency = 1.0F / frequency;
  if (rope.kind == RopeKind::linear) {
    for (float& frequency : frequencies) frequency /= static_cast<float>(rope.factor);
  }
  if (rope.kind == RopeKind::llama3) scale_as_llama3(rope, frequencies);
  return frequencies;
}

std::string_view name_of(KvStorage storage) {
  switch (storage) {
    case KvStorage::f32:
      return "f32";
    case KvStorage::f16:
      return "f16";
    case KvStorage::bf16:
      return "bf16";
    case KvStorage::int8:
      return "int8";
  }
  return "unknown";
}

std::int64_t kv_bytes_per_token(const ModelSpec& spec, KvStorage storage) {
  if (spec.kind == ModelKind::encoder) return 0;
  std::int64_t head_bytes = std::int64_t{spec.head_size} * (storage == KvStorage::f32 ? 4 : 2);
  if (storage == KvStorage::int8) head_bytes = spec.head_size + std::int64_t{sizeof(float)};
  return std::int64_t{2} * (spec.layers - spec.delta_layers()) * spec.kv_heads * head_bytes;
}

std::int64_t state_bytes(const ModelSpec& spec) {
  const DeltaSpec& d = spec.delta;
  const std::int64_t memories = std::int64_t{d.value_width()} * d.key_size;
  const std::int64_t tail = std::int64_t{d.channels()} * (d.convolution - 1);
  return d.layers.empty() ? 0 : spec.delta_layers() * (memories + tail) * std::int64_t{sizeof(float)};
}

std::vector<TensorRow> tensors_of(const ModelSpec& spec) {
  if (spec.kind == ModelKind::encoder) return tensors_of_encoder(spec);
  TensorLister list;
  const std::string prefix(prefix_of(spec));
  list.matrix(prefix + "embed_tokens.weight", Part::embedding, -1, TensorRole::embedding, spec.vocabulary, spec.hidden);
  for (int layer = 0; layer < spec.layers; ++layer) list_layer(spec, layer, list);
  list.vector(prefix + "norm.weight", Part::final_norm, -1, spec.hidden);
  if (!spec.tied_head) list.matrix("lm_head.weight", Part::head, -1, TensorRole::head, spec.vocabulary, spec.hidden);
  return list.take();
}

}  // namespace duet
