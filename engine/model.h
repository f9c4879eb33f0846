#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights.h"

/// What a model is, a decoder or an encoder with a decision head: numbers that never change after load. Where its
/// weights lie is `plan.h`; what a step scribbles on, the backend's.
namespace duet {

enum class RopeKind : std::uint8_t { standard, linear, llama3, yarn };

/// Rotary embedding. Inverse frequencies are `inverse_frequencies(spec)`, cos and sin are multiplied by
/// `attention_factor`.
struct RopeSpec {
  RopeKind kind = RopeKind::standard;
  double theta = 10000.0;
  double factor = 1.0;                       ///< linear, llama3, yarn.
  double low_frequency_factor = 1.0;         ///< llama3.
  double high_frequency_factor = 4.0;        ///< llama3.
  double original_max_position_tokens = 0;   ///< llama3, yarn.
  double beta_fast = 32.0, beta_slow = 1.0;  ///< yarn.
  bool truncate = true;                      ///< yarn: correction range rounded to whole dimensions.
  double attention_factor = 1.0;             ///< yarn: resolved by the loader as transformers resolves it.

  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

/// Gated DeltaNet (arXiv:2412.06464) as Qwen3.5 has it in place of attention: a causal convolution a few tokens wide
/// over queries, keys and values, then a memory [key_size, value_size] of each value head, which a token fades,
/// corrects and reads. A key head serves value_heads / key_heads neighbouring value heads.
struct DeltaSpec {
  int key_heads = 0;
  int value_heads = 0;
  int key_size = 0;
  int value_size = 0;
  int convolution = 0;       ///< Tokens that the convolution sees: the newest and those before it.
  std::vector<bool> layers;  ///< [layers] which ones; empty: none.

  int key_width() const { return key_heads * key_size; }
  int value_width() const { return value_heads * value_size; }
  int channels() const { return 2 * key_width() + value_width(); }  ///< Queries, keys, values.
  friend bool operator==(const DeltaSpec&, const DeltaSpec&) = default;
};

enum class ModelKind : std::uint8_t {
  decoder,  ///< Causal: keys and values in pages, a token at a time.
  encoder   ///< ModernBERT with Laya's decision head: whole rows, both ways, nothing kept between steps.
};

struct ModelSpec {
  ModelKind kind = ModelKind::decoder;
  std::string architecture;  ///< "Qwen2ForCausalLM", ... as the config names it.
  int layers = 0;
  int hidden = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  int mlp = 0;         ///< Width between gate/up and down.
  int vocabulary = 0;  ///< Rows of embedding and head; may exceed the tokenizer's.
  int max_position_tokens = 0;
  double norm_epsilon = 1e-6;
  bool query_key_value_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool query_key_norm = false;  ///< RMSNorm over each head of q and k before rotation (Qwen3).
  bool tied_head = false;       ///< logits = embedding * h.
  bool output_gate =
      false;  ///< Attention times sigmoid(gate); in the query projection a head's gate follows its query.
  bool zero_centred_norms = false;  ///< Norm weights are held as gamma - 1; DeltaNet's own norm is not.
  int rotary_size = 0;              ///< Elements of a head, from the first on, that are rotated; 0: all.
  /// 0: none. A layer that slides sees positions (p - window, p]; an encoder's [p - window, p + window].
  int sliding_window_tokens = 0;
  std::vector<bool> layer_slides;  ///< [layers] when sliding_window_tokens > 0.
  DeltaSpec delta;
  RopeSpec rope;
  RopeSpec sliding_rope;              ///< Encoders: of the layers that slide.
  int decision_layers = 0;            ///< Encoders: layers of the decision head, numbered behind the encoder's own.
  int decision_heads = 0;             ///< Encoders: attention heads of those.
  int act_outputs = 0;                ///< Encoders: outputs of the act head.
  std::vector<std::int32_t> end_ids;  ///< Union of every source; generation stops on any.
  std::int32_t begin_id = -1;         ///< -1: none.

  int query_width() const { return query_heads * head_size; }
  int kv_width() const { return kv_heads * head_size; }
  int query_rows() const { return output_gate ? 2 * query_width() : query_width(); }  ///< Of the query projection.
  int rotated_size() const { return rotary_size > 0 ? rotary_size : head_size; }
  int all_layers() const { return layers + decision_layers; }
  bool is_delta(int layer) const { return !delta.layers.empty() && delta.layers[static_cast<std::size_t>(layer)]; }
  int delta_layers() const;
  /// Some layer is as in Qwen3.5 and in no other family.
  bool is_hybrid() const {
    return !delta.layers.empty() || output_gate || zero_centred_norms || rotated_size() != head_size;
  }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

/// Throws Error(bad_file) naming `source` and the field when numbers contradict each other or are absurd (overflow,
/// zero, negative).
void check(const ModelSpec& spec, std::string_view source);

/// [head_size / 2], head_size being what is rotated of a head: inverse frequencies as transformers computes them: the
/// powers of theta and their reciprocals are rounded to float32, the corrections of llama3 and yarn are float64 maths
/// on those, rounded once.
std::vector<float> inverse_frequencies(const RopeSpec& rope, int head_size);

/// How keys and values are held. int8: one code an element and one float32 scale for each token and head.
enum class KvStorage : std::uint8_t { f32, f16, bf16, int8 };
std::string_view name_of(KvStorage storage);

/// Bytes of KV one token costs: 2 * layers that attend * kv_heads * (head_size elements, and for int8 a scale); 0 for
/// an encoder.
std::int64_t kv_bytes_per_token(const ModelSpec& spec, KvStorage storage);

/// Bytes of the recurrent state of one sequence, float32, 0 without DeltaNet: for each of its layers the memories
/// [value_heads, key_size, value_size], then the tail [convolution - 1, channels]: what goes into the convolution of
/// the next tokens, the oldest first.
std::int64_t state_bytes(const ModelSpec& spec);

enum class TensorRole : std::uint8_t {
  embedding,
  head,
  linear,
  decision,  ///< Never quantised: matrices of a decision head, and those that make DeltaNet's gates.
  vector     ///< Norms, biases, convolutions: always float32 in memory.
};

/// The matrices of a model, by place. `layer` is -1 for what stands before and behind the layers.
enum class Part : std::uint8_t {
  embedding,
  head,
  final_norm,
  input_norm,
  query,
  key,
  value,
  output,
  post_attention_norm,
  gate,
  up,
  down,
  query_bias,
  key_bias,
  value_bias,
  output_bias,
  gate_bias,
  up_bias,
  down_bias,
  query_norm,
  key_norm,
  // Encoders and decision heads.
  embedding_norm,
  query_key_value,  ///< One matrix: rows of queries, keys, values.
  query_key_value_bias,
  gate_up,  ///< One matrix: rows of the activated half, then of its factor.
  input_norm_bias,
  post_attention_norm_bias,
  type_embedding,
  scorer_norm,
  scorer_norm_bias,
  scorer_hidden,
  scorer_hidden_bias,
  scorer_output,
  scorer_output_bias,
  act_hidden,
  act_hidden_bias,
  act_output,
  act_output_bias,
  // Gated DeltaNet.
  delta_query_key_value,  ///< One matrix: rows of queries, keys, values.
  delta_gate,             ///< Of its output.
  delta_decay,            ///< A row for each value head.
  delta_rate,             ///< A row for each value head.
  delta_output,
  delta_convolution,  ///< [channels, convolution], the newest token last.
  delta_decay_log,
  delta_decay_bias,
  delta_norm
};

constexpr std::size_t kParts = static_cast<std::size_t>(Part::delta_norm) + 1;
constexpr int kQuestionKinds = 3;  ///< Rows of a type embedding.
constexpr int kActFeatures = 4;    ///< What the act head reads beside the first token's vector.
constexpr int kActWidth = 256;     ///< Of its hidden layer.

/// Every part of every layer has a number of its own, below places_of: tables of weights and adapters go by it.
inline std::size_t place_of(Part part, int layer) {
  return static_cast<std::size_t>(layer + 1) * kParts + static_cast<std::size_t>(part);
}

struct TensorRow {
  std::string name;  ///< As in Hugging Face files: "model.layers.0.self_attn.q_proj.weight".
  Part part = Part::embedding;
  int layer = -1;
  TensorRole role = TensorRole::linear;
  std::int64_t rows = 0;  ///< Vectors: 1; a convolution: its channels.
  std::int64_t columns = 0;
};

inline std::size_t places_of(const ModelSpec& spec) { return static_cast<std::size_t>(spec.all_layers() + 1) * kParts; }

/// The one list of tensors: loaders, plan, backends, packer and tests ask it. A tied head has no row of its own.
/// Order: embedding, layers ascending (parts in enum order), final norm, head. Of a hybrid the names are those of
/// Qwen3_5ForConditionalGeneration: "model.language_model.layers.0.linear_attn.in_proj_qkv.weight". An encoder's:
/// embedding and its norm, layers, final norm, then its decision head.
std::vector<TensorRow> tensors_of(const ModelSpec& spec);

}  // namespace duet
