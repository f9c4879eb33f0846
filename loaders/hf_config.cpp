#include "loaders/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <system_error>

#include "duet/error.h"
#include "loaders/hf_end_ids.h"
#include "loaders/hf_rope.h"
#include "loaders/hf_unsupported.h"
#include "loaders/kev_checkpoint.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestNumber = INT32_MAX;  // What a spec's int can hold; check() is stricter.

enum class AttentionBias : std::uint8_t { never, by_config, query_key_value_always };
enum class Sliding : std::uint8_t { never, by_layer, every_layer };

/// What transformers' configuration class of a family says where config.json is silent.
struct Family {
  std::string_view model_type;
  std::string_view architecture;
  AttentionBias attention_bias;
  bool may_have_mlp_bias;
  bool query_key_norm;
  Sliding sliding;
  int head_size;  // 0: hidden size / heads.
  int kv_heads;   // 0: as many as query heads.
  int max_position_tokens;
  std::int32_t begin_id, end_id;  // -1: none.
  bool hybrid = false;            // Gated DeltaNet beside attention.
};

constexpr auto kFamilies = std::to_array<Family>({
    {"llama", "LlamaForCausalLM", AttentionBias::by_config, true, false, Sliding::never, 0, 0, 2048, 1, 2},
    {"qwen2", "Qwen2ForCausalLM", AttentionBias::query_key_value_always, false, false, Sliding::by_layer, 0, 32, 32768,
     -1, -1},
    {"qwen3", "Qwen3ForCausalLM", AttentionBias::by_config, false, true, Sliding::by_layer, 128, 32, 32768, -1, -1},
    {"mistral", "MistralForCausalLM", AttentionBias::never, false, false, Sliding::every_layer, 0, 8, 131072, 1, 2},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", AttentionBias::by_config, false, true, Sliding::never, 256, 4, 32768, -1, -1,
     true},
});
/// A picture model around the text model; the latter's config is its text_config.
constexpr std::string_view kWrapperType = "qwen3_5";
constexpr std::string_view kWrapperArchitecture = "Qwen3_5ForConditionalGeneration";
constexpr int kMostLayersCounted = 1 << 16;  // check() refuses more, and far fewer.
constexpr int kDefaultWindow = 4096;
constexpr int kDefaultFirstSlidingLayer = 28;

const Family* family_of_type(std::string_view model_type) {
  const auto row =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& f) { return f.model_type == model_type; });
  return row == kFamilies.end() ? nullptr : &*row;
}

/// "Qwen2Model": the causal model of a family without its head.
bool is_headless(const Family& family, std::string_view architecture) {
  constexpr std::string_view kCausal = "ForCausalLM";
  const std::string_view name = family.architecture.substr(0, family.architecture.size() - kCausal.size());
  return architecture.starts_with(name) && architecture.substr(name.size()) == "Model";
}

const Family* family_of_architecture(std::string_view architecture) {
  const auto row = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& f) {
    return f.architecture == architecture || is_headless(f, architecture);
  });
  return row == kFamilies.end() ? nullptr : &*row;
}

/// The text model's config of a picture model, or nothing when `config` is none.
std::optional<JsonObject> text_config_of(const JsonObject& config) {
  const std::vector<std::string> architectures = config.texts("architectures");
  const std::string first = architectures.empty() ? "" : architectures.front();
  const std::string type = config.text_or("model_type", first == kWrapperArchitecture ? kWrapperType : "");
  if (type != kWrapperType) return std::nullopt;
  auto text = config.object("text_config");
  if (!text) config.refuse("text_config", "the config of the text model");
  return text;
}

/// One config on its way to a spec.
class Reader {
 public:
  /// `wrapper`: what the config stands in as text_config, or null.
  Reader(JsonObject config, const JsonObject* wrapper, std::vector<std::string>& report)
      : config_(std::move(config)), wrapper_(wrapper), report_(report) {}

  ModelSpec read() {
    family_ = wrapper_ == nullptr ? choose_family() : choose_wrapped_family();
    refuse_unsupported_keys(config_, family_->hybrid, report_);
    if (wrapper_ != nullptr) refuse_unsupported_wrapper_keys(*wrapper_, report_);
    check_quantisation(config_);
    if (wrapper_ != nullptr) check_quantisation(*wrapper_);
    spec_.architecture = wrapper_ == nullptr ? family_->architecture : kWrapperArchitecture;
    read_sizes();
    read_switches();
    if (family_->hybrid)
      read_hybrid();
    else
      read_layer_types();
    spec_.rope = read_rope(config_, spec_, report_);
    read_token_ids();
    check(spec_, quote(config_.source()));
    return spec_;
  }

 private:
  /// model_type rules, as in transformers' AutoModelForCausalLM; the architecture must not speak of anything else than
  /// a causal model of a known family.
  const Family* choose_family() {
    const std::string type = config_.text_or("model_type", "");
    const std::vector<std::string> architectures = config_.texts("architectures");
    for (const std::string& architecture : architectures) {
      if (family_of_architecture(architecture) == nullptr) refuse_family("architectures", architecture);
    }
    if (type.empty() && architectures.empty()) {
      config_.refuse("model_type", "llama, qwen2, qwen3, mistral or qwen3_5");
    }
    if (type.empty()) return family_of_architecture(architectures.front());
    const Family* family = family_of_type(type);
    if (family == nullptr) refuse_family("model_type", type);
    if (!architectures.empty() && is_headless(*family, architectures.front())) {
      note("architectures", fmt::format("is {}, the model without its head", quote(architectures.front())));
    } else if (!architectures.empty() && architectures.front() != family->architecture) {
      note("architectures",
           fmt::format("is {}, but model_type is {}, which is used", quote(architectures.front()), quote(type)));
    }
    return family;
  }

  const Family* choose_wrapped_family() const {
    for (const std::string& architecture : wrapper_->texts("architectures")) {
      if (architecture != kWrapperArchitecture && family_of_architecture(architecture) == nullptr)
        refuse_family("architectures", architecture);
    }
    const std::string type = config_.text_or("model_type", "qwen3_5_text");
    const Family* family = family_of_type(type);
    if (family == nullptr || !family->hybrid) config_.refuse("model_type", "qwen3_5_text");
    return family;
  }

  [[noreturn]] void refuse_family(std::string_view key, const std::string& found) const {
    throw Error(Code::unsupported,
                fmt::format("{} is {}; Duet runs LlamaForCausalLM (llama), Qwen2ForCausalLM (qwen2), Qwen3ForCausalLM "
                            "(qwen3), MistralForCausalLM (mistral) and Qwen3_5ForCausalLM (qwen3_5)",
                            config_.where(key), quote(found)));
  }

  /// The 4-bit format itself is read where the tensors are (loaders/bnb4).
  static void check_quantisation(const JsonObject& config) {
    const auto settings = config.object("quantization_config");
    if (!settings) return;
    const std::string method = settings->text_or("quant_method", "bitsandbytes");
    if (method != "bitsandbytes") {
      throw Error(Code::unsupported,
                  fmt::format("{} is {}; of quantised checkpoints Duet reads bitsandbytes 4-bit only",
                              settings->where("quant_method"), quote(method)),
                  "Load the 16-bit checkpoint and let Duet quantise it");
    }
    if (settings->boolean_or("load_in_8bit", false) || settings->boolean_or("_load_in_8bit", false)) {
      throw Error(Code::unsupported,
                  fmt::format("{} is true: bitsandbytes LLM.int8() is not supported", settings->where("load_in_8bit")),
                  "Load the 16-bit checkpoint and let Duet quantise it to 8-bit blocks");
    }
  }

  void read_sizes() {
    spec_.layers = required("num_hidden_layers");
    spec_.hidden = required("hidden_size");
    spec_.query_heads = required("num_attention_heads");
    spec_.mlp = required("intermediate_size");
    spec_.vocabulary = required("vocab_size");
    spec_.max_position_tokens = size_or_default("max_position_embeddings", family_->max_position_tokens);
    spec_.norm_epsilon = config_.number_or("rms_norm_eps", 1e-6);
    if (!config_.has("rms_norm_eps")) note_default("rms_norm_eps", "1e-6");
    read_kv_heads();
    read_head_size();
  }

  void read_kv_heads() {
    constexpr std::string_view kKey = "num_key_value_heads";
    const bool is_null = !config_.has(kKey) && config_.json().contains(std::string(kKey));
    if (is_null || family_->kv_heads == 0) {  // null: as many as query heads, in every family.
      spec_.kv_heads = static_cast<int>(config_.integer_or(kKey, spec_.query_heads, 1, kLargestNumber));
    } else {
      spec_.kv_heads = size_or_default(kKey, family_->kv_heads);
    }
  }

  void read_head_size() {
    if (config_.has("head_dim")) {
      spec_.head_size = required("head_dim");
    } else if (family_->head_size > 0) {
      spec_.head_size = size_or_default("head_dim", family_->head_size);
    } else if (spec_.hidden % spec_.query_heads != 0) {
      throw Error(Code::bad_file,
                  fmt::format("{} is missing, and hidden_size {} is no multiple of num_attention_heads {}",
                              config_.where("head_dim"), spec_.hidden, spec_.query_heads));
    } else {
      spec_.head_size = spec_.hidden / spec_.query_heads;
    }
  }

  void read_switches() {
    const std::string activation = config_.text_or("hidden_act", "silu");
    if (activation != "silu" && activation != "swish") {
      throw Error(Code::unsupported,
                  fmt::format("{} is {}; Duet does silu", config_.where("hidden_act"), quote(activation)));
    }
    read_tied_head();
    spec_.query_key_norm = family_->query_key_norm;

    const bool attention_bias = config_.boolean_or("attention_bias", false);
    if (family_->attention_bias == AttentionBias::by_config) {
      spec_.query_key_value_bias = spec_.output_bias = attention_bias;
    } else {
      spec_.query_key_value_bias = family_->attention_bias == AttentionBias::query_key_value_always;
      if (config_.has("attention_bias") && attention_bias != spec_.query_key_value_bias) {
        note("attention_bias",
             fmt::format("is not used: {} {}", family_->architecture,
                         spec_.query_key_value_bias ? "always has biases on q, k and v" : "has none"));
      }
    }
    spec_.mlp_bias = config_.boolean_or("mlp_bias", false);
    if (spec_.mlp_bias && !family_->may_have_mlp_bias) {
      throw Error(Code::unsupported,
                  fmt::format("{} is true; {} has no such biases", config_.where("mlp_bias"), family_->architecture));
    }
    check_dtype();
  }

  void read_tied_head() {
    constexpr std::string_view kKey = "tie_word_embeddings";
    const bool around = wrapper_ != nullptr && wrapper_->has(kKey);
    if (!around && !config_.has(kKey)) note_default(kKey, "false");
    spec_.tied_head = around ? wrapper_->boolean_or(kKey, false) : config_.boolean_or(kKey, false);
    if (around && config_.boolean_or(kKey, spec_.tied_head) != spec_.tied_head)
      throw Error(Code::bad_file,
                  fmt::format("{} and {} contradict each other", wrapper_->where(kKey), config_.where(kKey)),
                  "Remove the one that is wrong");
  }

  /// The tensors say how they are stored; the two spellings of the key are only compared.
  void check_dtype() {
    if (!config_.has("dtype") || !config_.has("torch_dtype")) return;
    const std::string wanted = config_.text("dtype");
    if (wanted == config_.text("torch_dtype")) return;
    note("torch_dtype",
         fmt::format("is {}, but dtype is {}; the tensors decide", quote(config_.text("torch_dtype")), quote(wanted)));
  }

  void read_hybrid() {
    if (spec_.query_key_value_bias)
      throw Error(Code::unsupported, fmt::format("{} is true; Duet runs {} without biases only",
                                                 config_.where("attention_bias"), family_->architecture));
    if (!config_.boolean_or("attn_output_gate", true))
      throw Error(Code::unsupported, fmt::format("{} is false; attention of {} always has the gate",
                                                 config_.where("attn_output_gate"), family_->architecture));
    spec_.output_gate = spec_.zero_centred_norms = true;
    spec_.rotary_size = read_rotary_size(config_, spec_.head_size, report_);
    std::vector<bool> linear = linear_layers();
    if (std::find(linear.begin(), linear.end(), true) == linear.end()) return;
    spec_.delta = {.key_heads = size_or_default("linear_num_key_heads", 16),
                   .value_heads = size_or_default("linear_num_value_heads", 32),
                   .key_size = size_or_default("linear_key_head_dim", 128),
                   .value_size = size_or_default("linear_value_head_dim", 128),
                   .convolution = size_or_default("linear_conv_kernel_dim", 4),
                   .layers = std::move(linear)};
  }

  /// The list decides; without one every so manieth layer attends.
  std::vector<bool> linear_layers() {
    std::vector<bool> linear;
    for (const std::string& type : config_.texts("layer_types")) {
      if (type != "full_attention" && type != "linear_attention")
        throw Error(Code::unsupported, fmt::format("{} holds {}; Duet does full_attention and linear_attention in {}",
                                                   config_.where("layer_types"), quote(type), family_->architecture));
      linear.push_back(type == "linear_attention");
    }
    if (linear.empty()) {
      const int interval = size_or_default("full_attention_interval", 4);
      const int counted = std::min(spec_.layers, kMostLayersCounted);
      for (int layer = 0; layer < counted; ++layer) linear.push_back((layer + 1) % interval != 0);
    } else if (linear.size() != static_cast<std::size_t>(spec_.layers)) {
      throw Error(Code::bad_file, fmt::format("{} has {} entries; the model has {} layers",
                                              config_.where("layer_types"), linear.size(), spec_.layers));
    }
    return linear;
  }

  void read_layer_types() {
    const std::vector<std::string> types = config_.texts("layer_types");
    for (const std::string& type : types) {
      if (type == "full_attention" || type == "sliding_attention") continue;
      throw Error(Code::unsupported, fmt::format("{} holds {}; Duet does full_attention and sliding_attention",
                                                 config_.where("layer_types"), quote(type)));
    }
    if (!types.empty() && types.size() != static_cast<std::size_t>(spec_.layers)) {
      throw Error(Code::bad_file, fmt::format("{} has {} entries; the model has {} layers",
                                              config_.where("layer_types"), types.size(), spec_.layers));
    }
    const int window = read_window();
    std::vector<bool> slides = layers_that_slide(window);
    if (!types.empty()) {
      std::vector<bool> named;
      named.reserve(types.size());
      for (const std::string& type : types) named.push_back(type == "sliding_attention");
      const bool any = std::find(named.begin(), named.end(), true) != named.end();
      if (any && window == 0) {
        throw Error(
            Code::bad_file,
            fmt::format("{} names sliding layers, but no sliding window is in use", config_.where("layer_types")),
            "Set sliding_window and use_sliding_window, or the layers to full_attention");
      }
      if (family_->sliding == Sliding::every_layer && named != slides) {
        throw Error(Code::unsupported, fmt::format("{} mixes layer types; every layer of {} is alike",
                                                   config_.where("layer_types"), family_->architecture));
      }
      slides = std::move(named);
    }
    if (std::find(slides.begin(), slides.end(), true) == slides.end()) return;
    spec_.sliding_window_tokens = window;
    spec_.layer_slides = std::move(slides);
  }

  /// 0: none.
  int read_window() {
    constexpr std::string_view kKey = "sliding_window";
    if (family_->sliding == Sliding::never) {
      if (config_.has(kKey)) note(kKey, fmt::format("is not used: {} attends to everything", family_->architecture));
      return 0;
    }
    if (family_->sliding == Sliding::by_layer && !config_.boolean_or("use_sliding_window", false)) return 0;
    if (config_.has(kKey)) return required(kKey);
    if (config_.json().contains(std::string(kKey))) return 0;  // null
    note_default(kKey, fmt::format("{}", kDefaultWindow));
    return kDefaultWindow;
  }

  std::vector<bool> layers_that_slide(int window) const {
    std::vector<bool> slides(static_cast<std::size_t>(spec_.layers), false);
    if (window == 0) return slides;
    const std::int64_t first =
        family_->sliding == Sliding::every_layer
            ? 0
            : config_.integer_or("max_window_layers", kDefaultFirstSlidingLayer, 0, kLargestNumber);
    for (std::int64_t layer = first; layer < spec_.layers; ++layer) slides[static_cast<std::size_t>(layer)] = true;
    return slides;
  }

  void read_token_ids() {
    spec_.begin_id = family_->begin_id;
    if (config_.json().contains("bos_token_id")) {
      const std::vector<std::int32_t> ids = read_ids(config_, "bos_token_id", spec_.vocabulary, report_);
      spec_.begin_id = ids.empty() ? -1 : ids.front();
    } else if (spec_.begin_id >= spec_.vocabulary) {
      spec_.begin_id = -1;
    }
    if (config_.json().contains("eos_token_id")) {
      spec_.end_ids = read_ids(config_, "eos_token_id", spec_.vocabulary, report_);
    } else if (family_->end_id >= 0 && family_->end_id < spec_.vocabulary) {
      note_default("eos_token_id", fmt::format("{}", family_->end_id));
      spec_.end_ids = {family_->end_id};
    }
  }

  int required(std::string_view key) const { return static_cast<int>(config_.integer(key, 1, kLargestNumber)); }

  int size_or_default(std::string_view key, int fallback) {
    if (!config_.has(key)) note_default(key, fmt::format("{}", fallback));
    return static_cast<int>(config_.integer_or(key, fallback, 1, kLargestNumber));
  }

  void note(std::string_view key, std::string_view text) {
    report_.push_back(fmt::format("{} {}", config_.where(key), text));
  }
  void note_default(std::string_view key, std::string_view value) {
    note(key, fmt::format("is missing; {}, the default of {}, is used", value, family_->model_type));
  }

  JsonObject config_;
  const JsonObject* wrapper_;
  std::vector<std::string>& report_;
  const Family* family_ = nullptr;
  ModelSpec spec_;
};

}  // namespace

const Json& text_model_of(const Json& config) {
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? *text : config;
}

ModelSpec parse_hf_config(const Json& config, const std::string& source, std::vector<std::string>& report) {
  const JsonObject whole(config, source);
  if (auto text = text_config_of(whole)) return Reader(std::move(*text), &whole, report).read();
  return Reader(whole, nullptr, report).read();
}

ModelSpec read_hf_config(const fs::path& folder, std::vector<std::string>& report) {
  const fs::path path = folder / "config.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw Error(Code::not_found, fmt::format("{} has no config.json", quote(folder.string())),
                "Is this the folder of a Hugging Face model?");
  }
  const Json config = read_json_file(path);
  ModelSpec spec = parse_hf_config(config, path.string(), report);
  if (!spec.tied_head && is_kev_folder(folder)) {
    spec.tied_head = true;
    report.push_back(
        fmt::format("{}: its own head answers; lm_head, which Kev does without, is not read", quote(folder.string())));
  }
  const bool names_end = text_model_of(config).contains("eos_token_id");
  add_end_ids(folder, names_end, spec, report);
  return spec;
}

}  // namespace duet::loaders
