#include "loaders/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "duet/error.h"
#include "loaders/hf_config.h"
#include "loaders/names.h"
#include "loaders/synthetic_weights.h"

// What each name stands for: config values of the published models (their config.json on the hub), and the small files.
namespace duet::loaders {
namespace {

struct ControlToken {
  int id;
  std::string_view text;
};

enum class Family : std::uint8_t { qwen2, qwen3, qwen35, llama3, smollm2 };

struct Shape {
  std::string_view name;
  Family family;
  int hidden, layers, heads, kv_heads, head_size, mlp, positions;
  int linear_value_heads = 0;  // Of hybrids; 16 key heads in all of them.
};

constexpr std::array kShapes = {
    Shape{"qwen2.5-0.5b", Family::qwen2, 896, 24, 14, 2, 64, 4864, 32768},
    Shape{"qwen2.5-1.5b", Family::qwen2, 1536, 28, 12, 2, 128, 8960, 32768},
    Shape{"qwen2.5-3b", Family::qwen2, 2048, 36, 16, 2, 128, 11008, 32768},
    Shape{"qwen3-0.6b", Family::qwen3, 1024, 28, 16, 8, 128, 3072, 40960},
    Shape{"qwen3-1.7b", Family::qwen3, 2048, 28, 16, 8, 128, 6144, 40960},
    Shape{"qwen3-4b", Family::qwen3, 2560, 36, 32, 8, 128, 9728, 40960},
    Shape{"qwen3.5-0.8b", Family::qwen35, 1024, 24, 8, 2, 256, 3584, 262144, 16},
    Shape{"qwen3.5-4b", Family::qwen35, 2560, 32, 16, 4, 256, 9216, 262144, 32},
    Shape{"llama-3.2-1b", Family::llama3, 2048, 16, 32, 8, 64, 8192, 131072},
    Shape{"smollm2-135m", Family::smollm2, 576, 30, 9, 3, 64, 1536, 8192},
};

const Shape& shape_of(std::string_view name) {
  const auto found =
      std::find_if(kShapes.begin(), kShapes.end(), [&](const Shape& shape) { return shape.name == name; });
  if (found != kShapes.end()) return *found;
  const std::vector<std::string> names = synthetic_names();
  const std::string nearest = nearest_name(name, names);
  throw Error(Code::invalid_argument,
              fmt::format("There is no synthetic model {}{}", quote(name),
                          nearest.empty() ? "" : fmt::format("; the nearest name is {}", nearest)),
              fmt::format("Take one of {}", fmt::join(names, ", ")));
}

struct Vocabulary {
  int ids = 151936;     ///< Rows of the embedding.
  int words = 151643;   ///< Ids below it are those of the model: bytes, words, and control tokens named there.
  int control_end = 0;  ///< Ids from `words` to here are control tokens; those not named are reserved ones.
  std::vector<ControlToken> controls;
  std::string_view begin, end;  ///< Begin and end token.
};

Vocabulary vocabulary_of(Family family) {
  Vocabulary v;
  v.end = "<|im_end|>";
  switch (family) {
    case Family::qwen2:
    case Family::qwen3:
      v.control_end = 151646;
      v.controls = {{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}};
      v.begin = "<|endoftext|>";
      break;
    case Family::qwen35:
      v.ids = 248320;
      v.words = 248044;
      v.control_end = 248070;
      v.controls = {{248044, "<|endoftext|>"},  {248045, "<|im_start|>"},  {248046, "<|im_end|>"},
                    {248049, "<|box_start|>"},  {248050, "<|box_end|>"},   {248060, "<|fim_prefix|>"},
                    {248061, "<|fim_middle|>"}, {248062, "<|fim_suffix|>"}};
      v.begin = "<|endoftext|>";
      break;
    case Family::llama3:
      v.ids = 128256;
      v.words = 128000;
      v.control_end = 128256;
      v.controls = {{128000, "<|begin_of_text|>"}, {128001, "<|end_of_text|>"}, {128008, "<|eom_id|>"},
                    {128009, "<|eot_id|>"},        {128011, "<|im_start|>"},    {128012, "<|im_end|>"}};
      v.begin = "<|begin_of_text|>";
      break;
    case Family::smollm2:
      v.ids = v.words = v.control_end = 49152;
      v.controls = {{0, "<|endoftext|>"}, {1, "<|im_start|>"}, {2, "<|im_end|>"}};
      v.begin = "<|im_start|>";
      break;
  }
  return v;
}

/// The picture model's config around the text model's.
Json wrapped(Json text) {
  text.erase("architectures");
  text.erase("torch_dtype");
  text["dtype"] = "bfloat16";
  return {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"model_type", "qwen3_5"},
          {"text_config", std::move(text)},
          {"tie_word_embeddings", true}};
}

Json config_of(const Shape& shape) {
  Json config = {{"architectures", Json::array()},
                 {"attention_dropout", 0.0},
                 {"head_dim", shape.head_size},
                 {"hidden_act", "silu"},
                 {"hidden_size", shape.hidden},
                 {"initializer_range", 0.02},
                 {"intermediate_size", shape.mlp},
                 {"max_position_embeddings", shape.positions},
                 {"num_attention_heads", shape.heads},
                 {"num_hidden_layers", shape.layers},
                 {"num_key_value_heads", shape.kv_heads},
                 {"tie_word_embeddings", true},
                 {"torch_dtype", "bfloat16"},
                 {"use_cache", true},
                 {"vocab_size", vocabulary_of(shape.family).ids}};
  switch (shape.family) {
    case Family::qwen2:
      config.erase("head_dim");  // The quotient of hidden size and heads, as in the published configs.
      config.update({{"architectures", {"Qwen2ForCausalLM"}},
                     {"model_type", "qwen2"},
                     {"bos_token_id", 151643},
                     {"eos_token_id", 151645},
                     {"rms_norm_eps", 1e-6},
                     {"rope_theta", 1000000.0},
                     {"sliding_window", 32768},
                     {"max_window_layers", shape.layers},
                     {"use_sliding_window", false}});
      break;
    case Family::qwen3:
      config.update({{"architectures", {"Qwen3ForCausalLM"}},
                     {"model_type", "qwen3"},
                     {"bos_token_id", 151643},
                     {"eos_token_id", 151645},
                     {"rms_norm_eps", 1e-6},
                     {"rope_theta", 1000000.0},
                     {"rope_scaling", nullptr},
                     {"attention_bias", false},
                     {"sliding_window", nullptr},
                     {"max_window_layers", shape.layers},
                     {"use_sliding_window", false}});
      break;
    case Family::qwen35:
      config.update({{"model_type", "qwen3_5_text"},
                     {"eos_token_id", 248044},
                     {"rms_norm_eps", 1e-6},
                     {"attention_bias", false},
                     {"attn_output_gate", true},
                     {"full_attention_interval", 4},
                     {"linear_conv_kernel_dim", 4},
                     {"linear_key_head_dim", 128},
                     {"linear_num_key_heads", 16},
                     {"linear_num_value_heads", shape.linear_value_heads},
                     {"linear_value_head_dim", 128},
                     {"mamba_ssm_dtype", "float32"},
                     {"rope_parameters",
                      {{"mrope_interleaved", true},
                       {"mrope_section", {11, 11, 10}},
                       {"partial_rotary_factor", 0.25},
                       {"rope_theta", 10000000.0},
                       {"rope_type", "default"}}}});
      return wrapped(std::move(config));
    case Family::llama3:
      config.update({{"architectures", {"LlamaForCausalLM"}},
                     {"model_type", "llama"},
                     {"bos_token_id", 128000},
                     {"eos_token_id", {128001, 128008, 128009}},
                     {"rms_norm_eps", 1e-5},
                     {"rope_theta", 500000.0},
                     {"rope_scaling",
                      {{"factor", 32.0},
                       {"high_freq_factor", 4.0},
                       {"low_freq_factor", 1.0},
                       {"original_max_position_embeddings", 8192},
                       {"rope_type", "llama3"}}},
                     {"attention_bias", false},
                     {"mlp_bias", false}});
      break;
    case Family::smollm2:
      config.update({{"architectures", {"LlamaForCausalLM"}},
                     {"model_type", "llama"},
                     {"bos_token_id", 1},
                     {"eos_token_id", 2},
                     {"rms_norm_eps", 1e-5},
                     {"rope_theta", 100000.0},
                     {"rope_scaling", nullptr},
                     {"attention_bias", false},
                     {"mlp_bias", false}});
      break;
  }
  return config;
}

// ---- tokenizer ----

void append_utf8(std::string& text, int letter) {
  if (letter < 0x80) {
    text += static_cast<char>(letter);
  } else {
    text += static_cast<char>(0xC0 | letter >> 6);
    text += static_cast<char>(0x80 | (letter & 0x3F));
  }
}

/// Letters that stand for the 256 bytes in byte-level tokenizers: printable ones for themselves, the others from U+0100
/// on.
std::vector<std::string> byte_letters() {
  std::vector<std::string> letters;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    letters.emplace_back();
    append_utf8(letters.back(), printable ? byte : next++);
  }
  return letters;
}

/// The number as a word of three syllables after a space: " bakido".
std::string word_of(int number) {
  constexpr std::string_view kConsonants = "bcdfghjklmnpqrstvwxz", kVowels = "aeiou";
  std::string word;
  append_utf8(word, 0x120);  // The letter that stands for a space.
  for (int syllable = 0; syllable < 3; ++syllable, number /= 100) {
    word += kConsonants[static_cast<std::size_t>(number % 100 / 5)];
    word += kVowels[static_cast<std::size_t>(number % 5)];
  }
  return word;
}

std::string tokenizer_json(const Vocabulary& vocabulary) {
  std::map<int, std::string> controls;
  for (const ControlToken& token : vocabulary.controls) controls.emplace(token.id, token.text);
  // Readers number added tokens that the model lacks upwards from its size, so none may be left out between them.
  for (int id = vocabulary.words; id < vocabulary.control_end; ++id)
    controls.emplace(id, fmt::format("<|reserved_special_token_{}|>", id - vocabulary.words));
  Json added = Json::array();
  for (const auto& [id, text] : controls)
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});

  const std::vector<std::string> bytes = byte_letters();
  Json vocab = Json::object();
  auto& entries = vocab.get_ref<Json::object_t&>();  // Appended to directly: adding by key searches the whole list.
  std::size_t number = 0;
  for (int id = 0; id < vocabulary.words; ++id) {
    const auto control = controls.find(id);
    if (control != controls.end()) {
      entries.emplace_back(control->second, Json(id));
      continue;
    }
    entries.emplace_back(number < bytes.size() ? bytes[number] : word_of(static_cast<int>(number)), Json(id));
    ++number;
  }
  const Json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", std::move(added)},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", level},
                          {"post_processor", nullptr},
                          {"decoder", level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", ""},
                            {"end_of_word_suffix", ""},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"ignore_merges", false},
                            {"vocab", std::move(vocab)},
                            {"merges", Json::array()}}}};
  return tokenizer.dump();
}

constexpr std::string_view kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

}  // namespace

std::vector<std::string> synthetic_names() {
  std::vector<std::string> names;
  names.reserve(kShapes.size());
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

std::shared_ptr<const WeightSource> make_synthetic(std::string_view name, const WeightOptions& options,
                                                   std::uint64_t seed) {
  const Shape& shape = shape_of(name);
  std::vector<std::string> report;
  const ModelSpec spec = parse_hf_config(config_of(shape), fmt::format("synthetic {}", name), report);
  return random_weights(spec, fmt::format("synthetic {} (seed {})", name, seed), options, seed);
}

TextFiles synthetic_texts(std::string_view name) {
  const Shape& shape = shape_of(name);
  const Json config = config_of(shape);
  const Vocabulary vocabulary = vocabulary_of(shape.family);
  const Json& text_model = text_model_of(config);
  Json generation = {{"eos_token_id", text_model["eos_token_id"]}};
  if (text_model.contains("bos_token_id")) generation["bos_token_id"] = text_model["bos_token_id"];
  const Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"add_bos_token", false},
                                 {"bos_token", vocabulary.begin},
                                 {"eos_token", vocabulary.end},
                                 {"clean_up_tokenization_spaces", false},
                                 {"model_max_length", shape.positions},
                                 {"chat_template", kChatMl}};
  return {{"config.json", config.dump(2) + '\n'},
          {"generation_config.json", generation.dump(2) + '\n'},
          {"tokenizer.json", tokenizer_json(vocabulary)},
          {"tokenizer_config.json", tokenizer_config.dump(2) + '\n'}};
}

void write_synthetic_adapter(const std::filesystem::path& folder, std::string_view name, int rank, std::uint64_t seed) {
  const Shape& shape = shape_of(name);
  std::vector<std::string> report;
  const ModelSpec spec = parse_hf_config(config_of(shape), fmt::format("synthetic {}", name), report);
  write_random_adapter(folder, spec, name, rank, seed);
}

}  // namespace duet::loaders
