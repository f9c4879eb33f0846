#include "loaders/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/loaders/expect_error.h"
#include "tests/support/test_data.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;
using test::fails_with;
using test::TemporaryDirectory;
using test::write_file;

using Report = std::vector<std::string>;

/// The tiny fixture as config.json of a family, every key written out; `extra` replaces or adds keys, null included.
Json tiny(std::string_view type, std::string_view architecture, std::string_view extra = "{}") {
  Json config = Json::parse(R"({"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
    "intermediate_size":128,"vocab_size":320,"max_position_embeddings":512,"rms_norm_eps":1e-5,"rope_theta":10000.0,
    "hidden_act":"silu","tie_word_embeddings":false,"bos_token_id":1,"eos_token_id":2})");
  config["model_type"] = type;
  config["architectures"] = {architecture};
  const Json changes = Json::parse(extra);
  for (const auto& [key, value] : changes.items()) config[key] = value;
  return config;
}
Json llama(std::string_view extra = "{}") { return tiny("llama", "LlamaForCausalLM", extra); }
Json qwen2(std::string_view extra = "{}") { return tiny("qwen2", "Qwen2ForCausalLM", extra); }
Json qwen3(std::string_view extra = "{}") { return tiny("qwen3", "Qwen3ForCausalLM", extra); }
Json mistral(std::string_view extra = "{}") { return tiny("mistral", "MistralForCausalLM", extra); }

Json without(Json config, const std::string& key) {
  config.erase(key);
  return config;
}

ModelSpec spec_of(const Json& config, Report& report) { return parse_hf_config(config, "config.json", report); }
ModelSpec spec_of(const Json& config) {
  Report report;
  return spec_of(config, report);
}

testing::AssertionResult reports(const Report& report, std::initializer_list<std::string_view> parts) {
  for (const std::string& line : report) {
    bool all = true;
    for (const std::string_view part : parts) all = all && line.find(part) != std::string::npos;
    if (all) return testing::AssertionSuccess();
  }
  auto failure = testing::AssertionFailure() << "no such line in the report:";
  for (const std::string& line : report) failure << "\n  " << line;
  return failure;
}

testing::AssertionResult refuses(const Json& config, Code code, std::initializer_list<std::string_view> parts) {
  return fails_with(code, parts, [&] { spec_of(config); });
}

// ---- families ----

TEST(HfConfig, ReadsALlama) {
  Report report;
  const ModelSpec spec = spec_of(llama(), report);
  EXPECT_EQ(spec.architecture, "LlamaForCausalLM");
  EXPECT_EQ(spec.layers, 2);
  EXPECT_EQ(spec.hidden, 64);
  EXPECT_EQ(spec.query_heads, 4);
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.head_size, 16);
  EXPECT_EQ(spec.mlp, 128);
  EXPECT_EQ(spec.vocabulary, 320);
  EXPECT_EQ(spec.max_position_tokens, 512);
  EXPECT_EQ(spec.norm_epsilon, 1e-5);
  EXPECT_FALSE(spec.query_key_value_bias || spec.output_bias || spec.mlp_bias || spec.query_key_norm || spec.tied_head);
  EXPECT_EQ(spec.rope, RopeSpec{.theta = 10000.0});
  EXPECT_EQ(spec.begin_id, 1);
  EXPECT_EQ(spec.end_ids, (std::vector<std::int32_t>{2}));
  EXPECT_EQ(spec.sliding_window_tokens, 0);
  EXPECT_TRUE(report.empty()) << report[0];
}

TEST(HfConfig, ModelTypeRulesOverArchitecture) {
  Report report;
  const ModelSpec spec = spec_of(tiny("qwen2", "LlamaForCausalLM"), report);
  EXPECT_EQ(spec.architecture, "Qwen2ForCausalLM");
  EXPECT_TRUE(spec.query_key_value_bias);
  EXPECT_TRUE(reports(report, {"'architectures'", "LlamaForCausalLM", "qwen2"}));
  EXPECT_EQ(spec_of(without(qwen3(), "model_type")).architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(spec_of(without(qwen3(), "architectures")).architecture, "Qwen3ForCausalLM");
}

TEST(HfConfig, ModelsWithoutTheirHeadAreKnown) {
  Report report;
  EXPECT_EQ(spec_of(tiny("qwen2", "Qwen2Model"), report).architecture, "Qwen2ForCausalLM");
  EXPECT_TRUE(reports(report, {"'architectures'", "Qwen2Model", "without its head"}));
  EXPECT_EQ(spec_of(without(tiny("qwen3", "Qwen3Model"), "model_type")).architecture, "Qwen3ForCausalLM");
  EXPECT_TRUE(refuses(tiny("qwen2", "Qwen2MoeModel"), Code::unsupported, {"Qwen2MoeModel"}));
  EXPECT_TRUE(refuses(tiny("qwen2", "Model"), Code::unsupported, {"'Model'"}));
}

TEST(HfConfig, OtherArchitecturesAreRefusedByName) {
  EXPECT_TRUE(
      refuses(tiny("gemma2", "Gemma2ForCausalLM"), Code::unsupported, {"Gemma2ForCausalLM", "LlamaForCausalLM"}));
  EXPECT_TRUE(refuses(tiny("qwen2_moe", "Qwen2MoeForCausalLM"), Code::unsupported, {"Qwen2MoeForCausalLM"}));
  EXPECT_TRUE(
      refuses(tiny("llama", "LlamaForSequenceClassification"), Code::unsupported, {"LlamaForSequenceClassification"}));
  EXPECT_TRUE(refuses(tiny("phi3", "LlamaForCausalLM"), Code::unsupported, {"'model_type'", "phi3"}));
  EXPECT_TRUE(
      refuses(without(without(llama(), "model_type"), "architectures"), Code::bad_file, {"'model_type' is missing"}));
  EXPECT_TRUE(refuses(Json::array(), Code::bad_file, {"config.json", "an object"}));
}

TEST(HfConfig, FeaturesThatChangeTheMathsAreRefusedByName) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {R"({"hidden_act":"gelu"})", "'hidden_act' is 'gelu'"},
      {R"({"num_local_experts":8})", "a mixture of experts"},
      {R"({"num_experts":60})", "a mixture of experts"},
      {R"({"attn_logit_softcapping":50.0})", "capped attention"},
      {R"({"final_logit_softcapping":30.0})", "capped logits"},
      {R"({"partial_rotary_factor":0.5})", "rotates whole heads"},
      {R"({"rope_interleaved":true})", "rotation of neighbouring"},
      {R"({"logits_scaling":8.0})", "scaled logits"},
      {R"({"no_rope_layers":[1,0]})", "layers without rotation"},
      {R"({"is_encoder_decoder":true})", "encoder"},
      {R"({"vision_config":{"depth":2}})", "vision tower"},
      {R"({"quantization_config":{"quant_method":"gptq","bits":4}})", "'gptq'"},
      {R"({"quantization_config":{"quant_method":"fp8"}})", "'fp8'"},
      {R"({"quantization_config":{"quant_method":"bitsandbytes","load_in_8bit":true}})", "LLM.int8()"},
      {R"({"layer_types":["full_attention","linear_attention"]})", "linear_attention"},
      {R"({"layer_types":["chunked_attention","full_attention"]})", "chunked_attention"}};
  for (const auto& [extra, part] : cases) EXPECT_TRUE(refuses(llama(extra), Code::unsupported, {"config.json", part}));
  EXPECT_TRUE(refuses(qwen2(R"({"mlp_bias":true})"), Code::unsupported, {"mlp_bias"}));
}

TEST(HfConfig, TheSameKeysAtTheirNeutralValuesAreFine) {
  Report report;
  spec_of(
      llama(
          R"({"num_local_experts":1,"attn_logit_softcapping":null,"partial_rotary_factor":1.0,"rope_interleaved":false,
    "logits_scaling":1.0,"is_encoder_decoder":false,"hidden_act":"swish","pretraining_tp":1,"use_cache":true,
    "quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true},"transformers_version":"5.24.0"})"),
      report);
  EXPECT_TRUE(report.empty()) << report[0];
  spec_of(llama(R"({"my_new_key":3})"), report);
  EXPECT_TRUE(reports(report, {"'my_new_key'", "not used"}));
}

TEST(HfConfig, NumbersAreBounded) {
  EXPECT_TRUE(refuses(llama(R"({"hidden_size":-64})"), Code::bad_file, {"'hidden_size' is -64"}));
  EXPECT_TRUE(refuses(llama(R"({"hidden_size":99999999999})"), Code::bad_file, {"'hidden_size'"}));
  EXPECT_TRUE(refuses(llama(R"({"hidden_size":"64"})"), Code::bad_file, {"'hidden_size'", "a string"}));
  EXPECT_TRUE(refuses(llama(R"({"num_hidden_layers":1000000})"), Code::bad_file, {"layers is 1000000"}));
  EXPECT_TRUE(refuses(llama(R"({"num_key_value_heads":3})"), Code::bad_file, {"cannot be shared"}));
  EXPECT_TRUE(refuses(llama(R"({"hidden_size":66})"), Code::bad_file, {"'head_dim' is missing", "66"}));
  EXPECT_TRUE(refuses(without(llama(), "vocab_size"), Code::bad_file, {"'vocab_size' is missing"}));
}

// ---- O-13 ----

TEST(HfConfigHeads, ComeFromConfigThenFamilyThenQuotient) {
  EXPECT_EQ(spec_of(llama(R"({"head_dim":32})")).head_size, 32);
  EXPECT_EQ(spec_of(llama(R"({"head_dim":32})")).query_width(), 128);
  EXPECT_EQ(kv_bytes_per_token(spec_of(llama(R"({"head_dim":32})")), KvStorage::f16), 2 * 2 * 2 * 32 * 2);
  EXPECT_EQ(spec_of(llama(R"({"head_dim":null})")).head_size, 16);
  EXPECT_EQ(spec_of(llama()).head_size, 16);
  EXPECT_EQ(spec_of(qwen2()).head_size, 16);
  EXPECT_EQ(spec_of(mistral()).head_size, 16);
  Report report;
  EXPECT_EQ(spec_of(qwen3(), report).head_size, 128);
  EXPECT_TRUE(reports(report, {"'head_dim' is missing", "128", "qwen3"}));
  EXPECT_EQ(spec_of(qwen3(R"({"head_dim":32})")).head_size, 32);
}

TEST(HfConfigHeads, KeyValueHeadsDefaultAsInTheReference) {
  EXPECT_EQ(spec_of(without(llama(), "num_key_value_heads")).kv_heads, 4);
  EXPECT_EQ(spec_of(qwen2(R"({"num_key_value_heads":null})")).kv_heads, 4);
  EXPECT_EQ(spec_of(qwen2(R"({"num_key_value_heads":1})")).kv_heads, 1);
  EXPECT_TRUE(refuses(without(qwen2(), "num_key_value_heads"), Code::bad_file, {"4 query heads", "32"}));
}

TEST(HfConfigBias, FollowsTheFamily) {
  EXPECT_TRUE(spec_of(qwen2()).query_key_value_bias);  // No key says so.
  EXPECT_FALSE(spec_of(qwen2()).output_bias);
  const ModelSpec with_bias = spec_of(llama(R"({"attention_bias":true,"mlp_bias":true})"));
  EXPECT_TRUE(with_bias.query_key_value_bias && with_bias.output_bias && with_bias.mlp_bias);
  const ModelSpec qwen = spec_of(qwen3(R"({"attention_bias":true})"));
  EXPECT_TRUE(qwen.query_key_value_bias && qwen.output_bias && qwen.query_key_norm);
  EXPECT_FALSE(spec_of(qwen3()).query_key_value_bias);
  EXPECT_FALSE(spec_of(mistral()).query_key_value_bias);
  Report report;
  EXPECT_TRUE(spec_of(qwen2(R"({"attention_bias":false})"), report).query_key_value_bias);
  EXPECT_TRUE(reports(report, {"'attention_bias' is not used", "always has biases"}));
}

// ---- O-14 ----

TEST(HfConfigRope, BothShapesOfTheBaseAreTheSame) {
  const RopeSpec want{.theta = 1e6};
  EXPECT_EQ(spec_of(llama(R"({"rope_theta":1e6})")).rope, want);
  EXPECT_EQ(spec_of(llama(R"({"rope_theta":1000000})")).rope, want);
  const Json bare = without(llama(), "rope_theta");
  Json flat = bare;
  flat["rope_parameters"] = Json::parse(R"({"rope_type":"default","rope_theta":1e6})");
  Report report;
  EXPECT_EQ(spec_of(flat, report).rope, want);
  EXPECT_TRUE(report.empty()) << report[0];
  Json nested = bare;
  nested["rope_parameters"] = Json::parse(R"({"full_attention":{"rope_type":"default","rope_theta":1e6},
    "sliding_attention":{"rope_type":"default","rope_theta":1e4}})");
  EXPECT_EQ(spec_of(nested, report).rope, want);  // No layer slides: the other base reaches none.
  EXPECT_TRUE(reports(report, {"'rope_parameters.sliding_attention' is not used"}));
}

TEST(HfConfigRope, TwoBasesInOneDecoderAreRefused) {
  const Json config = qwen2(R"({"use_sliding_window":true,"sliding_window":8,"max_window_layers":1,"rope_theta":null,
    "rope_parameters":{"full_attention":{"rope_theta":1e6},"sliding_attention":{"rope_theta":1e4}}})");
  EXPECT_TRUE(refuses(config, Code::unsupported, {"'rope_parameters.sliding_attention'", "one rotation"}));
  EXPECT_TRUE(refuses(qwen2(R"({"use_sliding_window":true,"sliding_window":8,"max_window_layers":1,
    "rope_parameters":{"full_attention":{"rope_theta":1e6}}})"),
                      Code::bad_file, {"'rope_parameters.sliding_attention' is missing"}));
}

TEST(HfConfigRope, ContradictionsAreReportedOrRefused) {
  Report report;
  EXPECT_EQ(spec_of(llama(R"({"rope_theta":1e4,"rope_parameters":{"rope_type":"default","rope_theta":1e6}})"), report)
                .rope.theta,
            1e6);
  EXPECT_TRUE(reports(report, {"'rope_theta'", "10000", "'rope_parameters.rope_theta'", "1000000"}));
  EXPECT_TRUE(refuses(
      llama(R"({"rope_parameters":{"rope_type":"default"},"rope_scaling":{"rope_type":"linear","factor":2.0}})"),
      Code::bad_file, {"'rope_parameters'", "rope_scaling", "contradict"}));
  EXPECT_EQ(
      spec_of(
          llama(
              R"({"rope_parameters":{"rope_type":"linear","factor":2},"rope_scaling":{"type":"linear","factor":2.0}})"))
          .rope.factor,
      2.0);
}

TEST(HfConfigRope, AMissingBaseIsTheFamilysAndReported) {
  Report report;
  EXPECT_EQ(spec_of(without(llama(), "rope_theta"), report).rope.theta, 1e4);
  EXPECT_TRUE(reports(report, {"'rope_theta' is missing", "10000"}));
}

TEST(HfConfigRope, ReadsEveryKind) {
  const RopeSpec llama3 = spec_of(llama(R"({"rope_theta":500000.0,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,
    "low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"}})"))
                              .rope;
  EXPECT_EQ(llama3, (RopeSpec{.kind = RopeKind::llama3,
                              .theta = 5e5,
                              .factor = 32,
                              .low_frequency_factor = 1,
                              .high_frequency_factor = 4,
                              .original_max_position_tokens = 8192}));
  EXPECT_EQ(spec_of(llama(R"({"rope_scaling":{"type":"linear","factor":4}})")).rope,
            (RopeSpec{.kind = RopeKind::linear, .factor = 4}));
  const RopeSpec yarn =
      spec_of(qwen2(R"({"rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":128}})")).rope;
  EXPECT_EQ(yarn.kind, RopeKind::yarn);
  EXPECT_EQ(yarn.original_max_position_tokens, 128);
  EXPECT_DOUBLE_EQ(yarn.attention_factor, 0.1 * std::log(4.0) + 1.0);
  EXPECT_TRUE(yarn.truncate);
  const RopeSpec all =
      spec_of(qwen2(R"({"rope_scaling":{"rope_type":"yarn","factor":3.0,"original_max_position_embeddings":128,
    "beta_fast":16,"beta_slow":0,"mscale":0.7,"mscale_all_dim":0.3,"truncate":false}})"))
          .rope;
  EXPECT_EQ(all.beta_fast, 16);
  EXPECT_EQ(all.beta_slow, 1);  // 0 means the default, as in the reference.
  EXPECT_FALSE(all.truncate);
  EXPECT_DOUBLE_EQ(all.attention_factor, (0.07 * std::log(3.0) + 1) / (0.03 * std::log(3.0) + 1));
  Report report;
  const Json inferred = qwen2(R"({"rope_scaling":{"type":"yarn","factor":4.0,"attention_factor":1.5}})");
  EXPECT_EQ(spec_of(inferred, report).rope.attention_factor, 1.5);
  EXPECT_EQ(spec_of(inferred).rope.original_max_position_tokens, 512);
  EXPECT_TRUE(reports(report, {"original_max_position_embeddings' is missing", "512"}));
  EXPECT_EQ(spec_of(llama(R"({"rope_scaling":null})")).rope.kind, RopeKind::standard);
  EXPECT_EQ(spec_of(llama(R"({"rope_scaling":{"type":"default"}})")).rope.kind, RopeKind::standard);
}

TEST(HfConfigRope, UnknownKindsAndSettingsAreRefused) {
  for (const std::string type : {"dynamic", "longrope", "su", "mrope", "proportional", "axial", "nonsense"}) {
    EXPECT_TRUE(refuses(llama(R"({"rope_scaling":{"factor":2.0,"type":")" + type + "\"}}"), Code::unsupported,
                        {"'rope_scaling.type'", type}));
  }
  EXPECT_TRUE(refuses(llama(R"({"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.25}})"),
                      Code::unsupported, {"'rope_parameters.partial_rotary_factor' is 0.25"}));
  EXPECT_TRUE(
      refuses(llama(R"({"rope_scaling":{"type":"linear"}})"), Code::bad_file, {"'rope_scaling.factor' is missing"}));
  EXPECT_TRUE(refuses(llama(R"({"rope_scaling":{"type":"linear","factor":0}})"), Code::bad_file, {"rope factor is 0"}));
  EXPECT_TRUE(refuses(llama(R"({"rope_scaling":{"type":7}})"), Code::bad_file, {"'rope_scaling.type'", "a string"}));
  EXPECT_TRUE(refuses(llama(R"({"rope_scaling":[1]})"), Code::bad_file, {"'rope_scaling'", "an object"}));
}

TEST(HfConfig, TwoSpellingsOfTheDtypeAreCompared) {
  Report report;
  spec_of(llama(R"({"dtype":"bfloat16","torch_dtype":"bfloat16"})"), report);
  EXPECT_TRUE(report.empty());
  spec_of(llama(R"({"dtype":"bfloat16","torch_dtype":"float16"})"), report);
  EXPECT_TRUE(reports(report, {"'torch_dtype' is 'float16'", "'bfloat16'"}));
}

// ---- sliding windows ----

TEST(HfConfigSliding, EveryLayerOfMistralSlides) {
  const ModelSpec spec = spec_of(mistral(R"({"sliding_window":8})"));
  EXPECT_EQ(spec.sliding_window_tokens, 8);
  EXPECT_EQ(spec.layer_slides, (std::vector<bool>{true, true}));
  EXPECT_EQ(spec_of(mistral(R"({"sliding_window":null})")).sliding_window_tokens, 0);
  EXPECT_TRUE(spec_of(mistral(R"({"sliding_window":null})")).layer_slides.empty());
  Report report;
  EXPECT_EQ(spec_of(mistral(), report).sliding_window_tokens, 4096);
  EXPECT_TRUE(reports(report, {"'sliding_window' is missing", "4096"}));
}

TEST(HfConfigSliding, QwenSlidesOnlyWhenAskedAndFromALayerOn) {
  EXPECT_EQ(
      spec_of(qwen2(R"({"sliding_window":8,"use_sliding_window":false,"max_window_layers":1})")).sliding_window_tokens,
      0);
  const ModelSpec spec = spec_of(qwen2(R"({"sliding_window":8,"use_sliding_window":true,"max_window_layers":1})"));
  EXPECT_EQ(spec.sliding_window_tokens, 8);
  EXPECT_EQ(spec.layer_slides, (std::vector<bool>{false, true}));
  EXPECT_EQ(spec_of(qwen3(R"({"sliding_window":8,"use_sliding_window":true})")).sliding_window_tokens,
            0);  // From layer 28.
  EXPECT_EQ(
      spec_of(
          qwen3(
              R"({"sliding_window":8,"use_sliding_window":true,"layer_types":["sliding_attention","full_attention"]})"))
          .layer_slides,
      (std::vector<bool>{true, false}));
}

TEST(HfConfigSliding, ContradictionsAreRefused) {
  EXPECT_TRUE(refuses(qwen2(R"({"layer_types":["sliding_attention","full_attention"]})"), Code::bad_file,
                      {"'layer_types'", "window"}));
  EXPECT_TRUE(refuses(llama(R"({"layer_types":["sliding_attention","full_attention"]})"), Code::bad_file,
                      {"'layer_types'", "window"}));
  EXPECT_TRUE(
      refuses(qwen2(R"({"layer_types":["full_attention"]})"), Code::bad_file, {"'layer_types' has 1", "2 layers"}));
  EXPECT_TRUE(refuses(mistral(R"({"sliding_window":8,"layer_types":["sliding_attention","full_attention"]})"),
                      Code::unsupported, {"'layer_types'"}));
}

// ---- O-15, as far as a config goes ----

TEST(HfConfigHead, TiedByKeyOrByFamily) {
  EXPECT_TRUE(spec_of(llama(R"({"tie_word_embeddings":true})")).tied_head);
  Report report;
  EXPECT_FALSE(spec_of(without(llama(), "tie_word_embeddings"), report).tied_head);
  EXPECT_TRUE(reports(report, {"'tie_word_embeddings' is missing", "false"}));
  EXPECT_TRUE(refuses(llama(R"({"tie_word_embeddings":"yes"})"), Code::bad_file, {"'tie_word_embeddings'"}));
}

// ---- O-16 ----

// ---- Qwen3.5 ----

/// The text model of the published 0.8B, smaller.
Json qwen35(std::string_view extra = "{}") {
  Json config = Json::parse(R"({"architectures":["Qwen3_5ForCausalLM"],"model_type":"qwen3_5_text","hidden_size":64,
    "num_hidden_layers":8,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,"intermediate_size":128,
    "vocab_size":320,"max_position_embeddings":512,"rms_norm_eps":1e-6,"hidden_act":"silu","attention_bias":false,
    "tie_word_embeddings":true,"eos_token_id":2,"attn_output_gate":true,"full_attention_interval":4,
    "linear_conv_kernel_dim":4,"linear_key_head_dim":16,"linear_num_key_heads":2,"linear_num_value_heads":6,
    "linear_value_head_dim":24,"mamba_ssm_dtype":"float32","mlp_only_layers":[],"mtp_num_hidden_layers":1,
    "mtp_use_dedicated_embeddings":false,"rope_parameters":{"rope_type":"default","rope_theta":10000000,
    "partial_rotary_factor":0.25,"mrope_interleaved":true,"mrope_section":[2,1,1]}})");
  const Json changes = Json::parse(extra);
  for (const auto& [key, value] : changes.items()) config[key] = value;
  return config;
}
Json picture_model(const Json& text, std::string_view extra = "{}") {
  Json config = Json::parse(R"({"architectures":["Qwen3_5ForConditionalGeneration"],"model_type":"qwen3_5",
    "image_token_id":300,"video_token_id":301,"vision_start_token_id":302,"vision_end_token_id":303,
    "vision_config":{"depth":2},"tie_word_embeddings":true})");
  config["text_config"] = text;
  const Json changes = Json::parse(extra);
  for (const auto& [key, value] : changes.items()) config[key] = value;
  return config;
}

TEST(HfConfigHybrid, ReadsTheTextModelAloneAndInsideAPictureModel) {
  Report report;
  const ModelSpec spec = spec_of(qwen35(), report);
  EXPECT_TRUE(report.empty()) << report[0];
  EXPECT_EQ(spec.architecture, "Qwen3_5ForCausalLM");
  EXPECT_TRUE(spec.is_hybrid() && spec.output_gate && spec.zero_centred_norms && spec.query_key_norm && spec.tied_head);
  EXPECT_FALSE(spec.query_key_value_bias || spec.output_bias);
  EXPECT_EQ(spec.delta, (DeltaSpec{.key_heads = 2,
                                   .value_heads = 6,
                                   .key_size = 16,
                                   .value_size = 24,
                                   .convolution = 4,
                                   .layers = {true, true, true, false, true, true, true, false}}));
  EXPECT_EQ(spec.rotated_size(), 8);
  EXPECT_EQ(spec.rope, RopeSpec{.theta = 1e7});
  EXPECT_EQ(spec.query_rows(), 256);
  EXPECT_EQ(kv_bytes_per_token(spec, KvStorage::f16), 2 * 2 * 2 * 32 * 2);
  EXPECT_EQ(state_bytes(spec), 6 * (6 * 16 * 24 + 3 * (2 * 32 + 144)) * 4);
  EXPECT_EQ(spec.end_ids, (std::vector<std::int32_t>{2}));

  ModelSpec inside = spec_of(picture_model(without(without(qwen35(), "architectures"), "tie_word_embeddings")), report);
  EXPECT_TRUE(report.empty()) << report[0];
  EXPECT_EQ(inside.architecture, "Qwen3_5ForConditionalGeneration");
  inside.architecture = spec.architecture;
  EXPECT_EQ(inside, spec);
  EXPECT_EQ(spec_of(without(picture_model(qwen35()), "model_type")).delta, spec.delta);
}

TEST(HfConfigHybrid, TheListOfLayersDecidesOverTheInterval) {
  EXPECT_EQ(
      spec_of(qwen35(R"({"num_hidden_layers":2,"layer_types":["full_attention","linear_attention"]})")).delta.layers,
      (std::vector<bool>{false, true}));
  const ModelSpec attending = spec_of(qwen35(R"({"num_hidden_layers":1,"layer_types":["full_attention"]})"));
  EXPECT_EQ(attending.delta, DeltaSpec{});
  EXPECT_EQ(state_bytes(attending), 0);
  Report report;
  EXPECT_EQ(spec_of(without(qwen35(), "full_attention_interval"), report).delta.layers[3], false);
  EXPECT_TRUE(reports(report, {"'full_attention_interval' is missing", "4"}));
  EXPECT_EQ(spec_of(without(qwen35(), "linear_num_value_heads")).delta.value_heads, 32);
  EXPECT_EQ(spec_of(qwen35(R"({"rope_parameters":{"rope_theta":1e6}})"), report).rotated_size(), 8);
  EXPECT_TRUE(reports(report, {"'partial_rotary_factor' is missing", "0.25"}));
  EXPECT_EQ(spec_of(qwen35(R"({"rope_parameters":{"rope_theta":1e6},"partial_rotary_factor":0.5})")).rotated_size(),
            16);
}

TEST(HfConfigHybrid, WhatIsNotDoneIsRefusedByName) {
  const std::vector<std::pair<std::string_view, std::string_view>> unsupported = {
      {R"({"layer_types":["sliding_attention"]})", "'sliding_attention'"},
      {R"({"attention_bias":true})", "attention_bias' is true"},
      {R"({"attn_output_gate":false})", "attn_output_gate' is false"},
      {R"({"hidden_act":"gelu"})", "hidden_act' is 'gelu'"},
      {R"({"num_experts":8})", "a mixture of experts"},
      {R"({"mlp_only_layers":[1]})", "mlp_only_layers"},
      {R"({"vision_config":{"depth":1}})", "vision tower"}};
  for (const auto& [extra, part] : unsupported) {
    EXPECT_TRUE(refuses(qwen35(extra), Code::unsupported, {part}));
    if (part == "vision tower") continue;
    EXPECT_TRUE(refuses(picture_model(qwen35(extra)), Code::unsupported, {part}));
  }
  const std::vector<std::pair<std::string_view, std::string_view>> wrong = {
      {R"({"layer_types":["full_attention"]})", "1 entries; the model has 8"},
      {R"({"full_attention_interval":9})", "no layer has full attention"},
      {R"({"full_attention_interval":0})", "full_attention_interval"},
      {R"({"linear_num_value_heads":5})", "5 linear value heads cannot share 2"},
      {R"({"linear_key_head_dim":0})", "linear_key_head_dim"},
      {R"({"linear_conv_kernel_dim":1000})", "convolution is 1000"},
      {R"({"num_hidden_layers":2000000000})", "layers is 2000000000"},
      {R"({"head_dim":20,"rope_parameters":{"partial_rotary_factor":0.25}})", "5 elements of a head"},
      {R"({"rope_parameters":{"partial_rotary_factor":1.5}})", "partial_rotary_factor"}};
  for (const auto& [extra, part] : wrong) EXPECT_TRUE(refuses(qwen35(extra), Code::bad_file, {part}));
  EXPECT_TRUE(refuses(tiny("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"), Code::unsupported,
                      {"Qwen3_5MoeForConditionalGeneration"}));
  EXPECT_TRUE(
      refuses(tiny("qwen3_5", "Qwen3_5ForConditionalGeneration"), Code::bad_file, {"'text_config' is missing"}));
  EXPECT_TRUE(refuses(picture_model(llama()), Code::bad_file, {"'text_config.model_type'", "qwen3_5_text"}));
  EXPECT_TRUE(refuses(picture_model(qwen35(), R"({"tie_word_embeddings":false})"), Code::bad_file, {"contradict"}));
  EXPECT_TRUE(refuses(picture_model(qwen35(), R"({"logits_scaling":8.0})"), Code::unsupported, {"logits_scaling"}));
  EXPECT_TRUE(refuses(picture_model(qwen35(), R"({"quantization_config":{"quant_method":"fp8"}})"), Code::unsupported,
                      {"'fp8'"}));
  Report report;
  spec_of(picture_model(qwen35(), R"({"new_key":1})"), report);
  EXPECT_TRUE(reports(report, {"'new_key'", "not used"}));
}

class EndIds : public testing::Test {
 protected:
  ModelSpec read(const Json& config, std::string_view generation = {}, std::string_view tokenizer_config = {},
                 std::string_view tokenizer = {}) {
    const TemporaryDirectory folder;
    write_file(folder.path() / "config.json", config.dump());
    if (!generation.empty()) write_file(folder.path() / "generation_config.json", generation);
    if (!tokenizer_config.empty()) write_file(folder.path() / "tokenizer_config.json", tokenizer_config);
    if (!tokenizer.empty()) write_file(folder.path() / "tokenizer.json", tokenizer);
    report_.clear();
    return read_hf_config(folder.path(), report_);
  }
  Report report_;
};
using Ids = std::vector<std::int32_t>;

TEST_F(EndIds, AreTheUnionOfAllSources) {
  EXPECT_EQ(read(llama(R"({"eos_token_id":7})"), R"({"eos_token_id":[9,8]})",
                 R"({"eos_token":"<e>","added_tokens_decoder":{"5":{"content":"<e>"},"6":{"content":"<f>"}}})")
                .end_ids,
            (Ids{5, 7, 8, 9}));
  EXPECT_EQ(read(llama(R"({"eos_token_id":[2,3]})")).end_ids, (Ids{2, 3}));
  EXPECT_EQ(read(llama(R"({"eos_token_id":[3,2]})"), R"({"eos_token_id":3})").end_ids, (Ids{2, 3}));
  EXPECT_EQ(read(llama(R"({"eos_token_id":null})"), R"({"eos_token_id":3})").end_ids, (Ids{3}));
}

TEST_F(EndIds, AbsentEverywhereMeansTheFamilysDefault) {
  EXPECT_EQ(read(without(llama(), "eos_token_id")).end_ids, (Ids{2}));
  EXPECT_EQ(read(without(llama(), "eos_token_id"), R"({"eos_token_id":3})").end_ids, (Ids{3}));
  EXPECT_EQ(read(llama(R"({"eos_token_id":null})")).end_ids, Ids{});
  EXPECT_TRUE(reports(report_, {"no end of text"}));
  EXPECT_EQ(read(without(qwen2(), "eos_token_id")).end_ids, Ids{});
}

TEST_F(EndIds, TheTokenizersTokenIsLookedUpByText) {
  const std::string_view tokenizer =
      R"({"added_tokens":[{"id":11,"content":"<e>"}],"model":{"type":"BPE","vocab":{"<v>":12}}})";
  EXPECT_EQ(read(llama(), {}, R"({"eos_token":{"content":"<e>"}})", tokenizer).end_ids, (Ids{2, 11}));
  EXPECT_EQ(read(llama(), {}, R"({"eos_token":"<v>"})", tokenizer).end_ids, (Ids{2, 12}));
  EXPECT_EQ(read(llama(), {}, R"({"eos_token":"<x>"})", tokenizer).end_ids, (Ids{2}));
  EXPECT_TRUE(reports(report_, {"'eos_token' is '<x>'", "no id"}));
  EXPECT_EQ(read(llama(), {}, R"({"eos_token":null})").end_ids, (Ids{2}));
}

TEST_F(EndIds, OutsideOfTheVocabularyAreReportedNotUsed) {
  EXPECT_EQ(read(llama(R"({"eos_token_id":[2,320,-1,18446744073709551615]})")).end_ids, (Ids{2}));
  EXPECT_TRUE(reports(report_, {"'eos_token_id' names token 320", "0 to 319"}));
  EXPECT_TRUE(reports(report_, {"'eos_token_id' names token -1"}));
  EXPECT_TRUE(fails_with(Code::bad_file, {"'eos_token_id'"}, [&] { read(llama(R"({"eos_token_id":"2"})")); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"'eos_token_id'"}, [&] { read(llama(R"({"eos_token_id":true})")); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"generation_config.json"}, [&] { read(llama(), "{"); }));
}

TEST_F(EndIds, TheBeginIdMayBeAbsent) {
  EXPECT_EQ(read(llama(R"({"bos_token_id":null})")).begin_id, -1);
  EXPECT_EQ(read(without(llama(), "bos_token_id")).begin_id, 1);
  EXPECT_EQ(read(without(qwen2(), "bos_token_id")).begin_id, -1);
}

TEST(HfConfig, AFolderWithoutConfigSaysSo) {
  const TemporaryDirectory folder;
  Report report;
  EXPECT_TRUE(fails_with(Code::not_found, {"no config.json"}, [&] { read_hf_config(folder.path(), report); }));
}

TEST(HfConfigReal, Stories260kIsRead) {
  const auto shared = test::shared_data_directory();
  if (!shared || !fs::exists(*shared / "stories260k/config.json")) GTEST_SKIP() << "no shared data: stories260k";
  Report report;
  const ModelSpec spec = read_hf_config(*shared / "stories260k", report);
  EXPECT_EQ(spec.head_size, 8);
  EXPECT_EQ(spec.mlp, 172);
  EXPECT_EQ(spec.layers, 5);
  EXPECT_TRUE(spec.tied_head);
  EXPECT_EQ(spec.end_ids, (Ids{2}));
}

}  // namespace
}  // namespace duet::loaders
