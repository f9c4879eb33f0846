#include "loaders/hf_unsupported.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

/// The value at which a key asks for nothing: then it may stand there.
enum class Neutral : std::uint8_t { null_only, off, zero, one, zero_or_one, empty };

struct MathsKey {
  std::string_view key;
  Neutral neutral;
  std::string_view feature;
};

constexpr auto kMathsKeys = std::to_array<MathsKey>({
    {"num_experts", Neutral::zero_or_one, "a mixture of experts"},
    {"num_local_experts", Neutral::zero_or_one, "a mixture of experts"},
    {"n_routed_experts", Neutral::zero_or_one, "a mixture of experts"},
    {"n_shared_experts", Neutral::zero, "a mixture of experts"},
    {"moe_intermediate_size", Neutral::zero, "a mixture of experts"},
    {"is_encoder_decoder", Neutral::off, "an encoder with a decoder"},
    {"add_cross_attention", Neutral::off, "cross attention"},
    {"cross_attention_layers", Neutral::empty, "cross attention"},
    {"use_bidirectional_attention", Neutral::off, "attention in both directions"},
    {"vision_config", Neutral::null_only, "a vision tower"},
    {"audio_config", Neutral::null_only, "an audio tower"},
    {"text_config", Neutral::null_only, "a text model inside a multimodal one"},
    {"num_nextn_predict_layers", Neutral::zero, "multi-token prediction layers"},
    {"attn_logit_softcapping", Neutral::null_only, "capped attention scores"},
    {"final_logit_softcapping", Neutral::null_only, "capped logits"},
    {"attn_temperature_tuning", Neutral::off, "attention temperature by position"},
    {"query_pre_attn_scalar", Neutral::null_only, "another softmax scale"},
    {"attention_multiplier", Neutral::null_only, "another softmax scale"},
    {"logit_scale", Neutral::one, "scaled logits"},
    {"logits_scaling", Neutral::one, "scaled logits"},
    {"embedding_multiplier", Neutral::one, "scaled embeddings"},
    {"residual_multiplier", Neutral::one, "scaled residuals"},
    {"scale_emb", Neutral::one, "scaled embeddings"},
    {"scale_depth", Neutral::one, "scaled residuals"},
    {"clip_qkv", Neutral::null_only, "clipped queries and keys"},
    {"alibi", Neutral::off, "ALiBi positions"},
    {"use_alibi", Neutral::off, "ALiBi positions"},
    {"parallel_attn", Neutral::off, "attention parallel to the MLP"},
    {"use_parallel_residual", Neutral::off, "attention parallel to the MLP"},
    {"no_rope_layers", Neutral::empty, "layers without rotation"},
    {"no_rope_layer_interval", Neutral::zero, "layers without rotation"},
    {"rope_interleaved", Neutral::off, "rotation of neighbouring elements"},
    {"rope_local_base_freq", Neutral::null_only, "a second rotary base"},
    {"mrope_section", Neutral::null_only, "multimodal rotation"},
    {"use_mrope", Neutral::off, "multimodal rotation"},
    {"use_qk_norm", Neutral::off, "query and key norms outside of Qwen3"},
    {"qk_layernorm", Neutral::off, "query and key norms outside of Qwen3"},
    {"attention_chunk_size", Neutral::null_only, "attention in chunks"},
    {"attention_sinks", Neutral::off, "attention sinks"},
    {"kv_lora_rank", Neutral::zero, "latent attention"},
    {"q_lora_rank", Neutral::zero, "latent attention"},
    {"mup_enabled", Neutral::off, "muP scaling"},
    {"per_layer_config", Neutral::empty, "layers of different shapes"},
    {"mlp_only_layers", Neutral::empty, "layers with experts between layers without"},
});

/// Read by the config reader, or known to change nothing that is computed.
constexpr auto kKnownKeys = std::to_array<std::string_view>(
    {"architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
     "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta",
     "rope_scaling", "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings", "hidden_act",
     "tie_word_embeddings", "attention_bias", "mlp_bias", "bos_token_id", "eos_token_id", "torch_dtype", "dtype",
     "use_sliding_window", "sliding_window", "max_window_layers", "layer_types", "quantization_config",
     // Training, generation defaults and house-keeping.
     "_name_or_path", "name_or_path", "_commit_hash", "_attn_implementation", "_attn_implementation_autoset",
     "attn_implementation", "transformers_version", "auto_map", "use_cache", "initializer_range", "attention_dropout",
     "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "pad_token_id", "unk_token_id",
     "sep_token_id", "mask_token_id", "cls_token_id", "decoder_start_token_id", "forced_bos_token_id",
     "forced_eos_token_id", "pretraining_tp", "torchscript", "use_bfloat16", "output_attentions",
     "output_hidden_states", "return_dict", "return_dict_in_generate", "output_scores", "id2label", "label2id",
     "num_labels", "problem_type", "finetuning_task", "task_specific_params", "tokenizer_class", "prefix",
     "pruned_heads", "chunk_size_feed_forward", "is_decoder", "gradient_checkpointing", "is_llama_config",
     "transformers.js_config", "unsloth_fixed", "unsloth_version", "max_length", "min_length", "do_sample",
     "temperature", "top_k", "top_p", "num_beams", "repetition_penalty", "no_repeat_ngram_size", "router_aux_loss_coef",
     "output_router_logits"});

/// Read by the reader of hybrids, or of parts that are not used.
constexpr auto kHybridKeys = std::to_array<std::string_view>(
    {"attn_output_gate", "full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim",
     "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "mamba_ssm_dtype",
     "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"});

constexpr auto kWrapperKeys = std::to_array<std::string_view>(
    {"architectures", "model_type", "text_config", "vision_config", "tie_word_embeddings", "image_token_id",
     "video_token_id", "vision_start_token_id", "vision_end_token_id", "quantization_config", "dtype", "torch_dtype",
     "transformers_version", "_name_or_path", "name_or_path", "use_cache", "bos_token_id", "eos_token_id",
     "pad_token_id"});

bool is_neutral(const Json& value, Neutral neutral) {
  switch (neutral) {
    case Neutral::null_only:
      return false;
    case Neutral::off:
      return value.is_boolean() && !value.get<bool>();
    case Neutral::zero:
      return value.is_number() && value.get<double>() == 0;
    case Neutral::one:
      return value.is_number() && value.get<double>() == 1;
    case Neutral::zero_or_one:
      return value.is_number() && (value.get<double>() == 0 || value.get<double>() == 1);
    case Neutral::empty:
      return value.empty();
  }
  return false;
}

template <typename Table>
bool contains(const Table& table, std::string_view key) {
  return std::find(table.begin(), table.end(), key) != table.end();
}

}  // namespace

void refuse_unsupported_keys(const JsonObject& config, bool hybrid, std::vector<std::string>& report) {
  for (const auto& [key, value] : config.json().get_ref<const Json::object_t&>()) {
    const std::string& name = key;
    const auto row =
        std::find_if(kMathsKeys.begin(), kMathsKeys.end(), [&](const MathsKey& maths) { return maths.key == name; });
    if (row != kMathsKeys.end()) {
      if (value.is_null() || is_neutral(value, row->neutral)) continue;
      throw Error(Code::unsupported,
                  fmt::format("{} is {}: {} is not supported", config.where(name), shown(value), row->feature));
    }
    if (!contains(kKnownKeys, name) && !(hybrid && contains(kHybridKeys, name)) && !value.is_null()) {
      report.push_back(fmt::format("{} is not known and not used", config.where(name)));
    }
  }
}

void refuse_unsupported_wrapper_keys(const JsonObject& wrapper, std::vector<std::string>& report) {
  for (const auto& entry : wrapper.json().get_ref<const Json::object_t&>()) {
    const std::string& name = entry.first;
    const Json& value = entry.second;
    if (contains(kWrapperKeys, name) || value.is_null()) continue;
    const bool maths = std::any_of(kMathsKeys.begin(), kMathsKeys.end(), [&](const MathsKey& row) {
      return row.key == name && !is_neutral(value, row.neutral);
    });
    if (maths)
      throw Error(Code::unsupported, fmt::format("{} is {}: it belongs into text_config and is not read here",
                                                 wrapper.where(name), shown(value)));
    report.push_back(fmt::format("{} is not known and not used", wrapper.where(name)));
  }
}

}  // namespace duet::loaders
