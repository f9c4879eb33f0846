#include "loaders/synthetic_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "duet/error.h"
#include "engine/half.h"
#include "engine/quant_blocks.h"
#include "loaders/checkpoint.h"
#include "loaders/checksum.h"
#include "loaders/file_writer.h"
#include "loaders/json_file.h"
#include "loaders/quantise.h"
#include "loaders/safetensors_writer.h"
#include "loaders/storage_choice.h"

namespace duet::loaders {
namespace {

// ---- random bytes ----

/// 64 random bits by position: the finaliser of SplitMix64 (Steele, Lea, Flood 2014) over key + index * golden ratio.
std::uint64_t random_word(std::uint64_t key, std::uint64_t index) {
  std::uint64_t word = key + (index + 1) * 0x9E3779B97F4A7C15;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
  return word ^ (word >> 31);
}

std::uint64_t key_of(std::uint64_t seed, std::string_view name) {
  return random_word(seed, checksum_of(std::as_bytes(std::span(name))));
}

void fill_random(std::uint64_t key, std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = random_word(key, i / 8);
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, bytes.size() - i));
  }
}

/// Uniform in [-1, 1).
float random_unit(std::uint64_t key, std::uint64_t index) {
  return static_cast<float>(random_word(key, index) >> 40) * 0x1p-23F - 1.0F;
}

// ---- values ----

double deviation_of(const TensorRow& row) {
  if (row.role == TensorRole::embedding) return 0.02;
  return 0.8 / std::sqrt(static_cast<double>(row.columns));
}

/// Root mean square of the codes when all are equally likely.
double rms_of_codes(Storage storage) {
  double sum = 0;
  if (storage == Storage::int8) {
    for (int code = -127; code <= 127; ++code) sum += code * code / 255.0;
  } else {
    for (const float code : storage == Storage::nf4 ? kNf4Codes : kFp4Codes) sum += double{code} * double{code} / 16.0;
  }
  return std::sqrt(sum);
}

/// Elements drawn from 65,536 even steps of a uniform distribution: one table look-up each.
template <typename Element, typename Convert>
void fill_dense(std::uint64_t key, double deviation, std::span<Element> elements, Convert convert) {
  const double reach = deviation * std::sqrt(3.0);
  std::vector<Element> table(65536);
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = convert(static_cast<float>(((static_cast<double>(i) + 0.5) / 32768.0 - 1.0) * reach));
  for (std::size_t i = 0; i < elements.size(); i += 4) {
    std::uint64_t word = random_word(key, i / 4);
    for (std::size_t j = i; j < std::min(i + 4, elements.size()); ++j, word >>= 16) elements[j] = table[word & 0xFFFF];
  }
}

template <typename Element>
std::span<Element> elements_of(std::span<std::byte> bytes) {
  return {reinterpret_cast<Element*>(bytes.data()), bytes.size() / sizeof(Element)};
}

void fill_dense(Storage storage, std::uint64_t key, double deviation, std::span<std::byte> bytes) {
  if (storage == Storage::f16) return fill_dense(key, deviation, elements_of<Half>(bytes), to_half);
  if (storage == Storage::bf16) return fill_dense(key, deviation, elements_of<Bfloat16>(bytes), to_bfloat16);
  fill_dense(key, deviation, elements_of<float>(bytes), [](float value) { return value; });
}

/// Norms near 1 (0 where they are held as gamma - 1), biases small, decays of DeltaNet from a few tokens to hundreds,
/// convolutions that keep about the length of what goes in.
void fill_vector(const ModelSpec& spec, const TensorRow& row, std::uint64_t key, std::span<float> values) {
  float mean = 0.0F, reach = 0.1F;
  if (row.name.ends_with("norm.weight")) mean = spec.zero_centred_norms && row.part != Part::delta_norm ? 0.0F : 1.0F;
  if (row.part == Part::delta_convolution) reach = 0.8F;
  if (row.part == Part::delta_decay_log) mean = -2.0F, reach = 2.0F;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = mean + reach * random_unit(key, i);
}

void fill_blocks(const WeightTensor& tensor, std::uint64_t key, std::span<std::byte> region) {
  const MatrixLayout layout = layout_of(tensor.row.rows, tensor.row.columns, tensor.storage);
  const Storage storage = tensor.storage.storage;
  const std::span<std::byte> codes = region.first(layout.data_bytes);
  fill_random(key, codes);
  if (storage == Storage::int8) std::replace(codes.begin(), codes.end(), std::byte{0x80}, std::byte{0x81});
  const auto mean = static_cast<float>(deviation_of(tensor.row) / rms_of_codes(storage));
  const std::uint64_t scale_key = random_word(key, ~std::uint64_t{0});
  const std::span<std::byte> scales = region.subspan(layout.scales_offset, layout.scales_bytes);
  if (!tensor.storage.nested) {
    const std::span<float> floats = elements_of<float>(scales);
    for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = mean * (1.0F + 0.25F * random_unit(scale_key, i));
    return;
  }
  fill_random(scale_key, scales);
  for (float& scale : elements_of<float>(region.subspan(layout.nested_scales_offset, layout.nested_scales_bytes)))
    scale = 0.25F * mean;
  const std::span<float> map = elements_of<float>(region.subspan(layout.nested_map_offset, 257 * sizeof(float)));
  std::copy(dynamic_map().begin(), dynamic_map().end(), map.begin());
  map[256] = mean;
}

class RandomWeights final : public WeightSource {
 public:
  RandomWeights(const ModelSpec& spec, std::string name, const WeightOptions& options, std::uint64_t seed)
      : spec_(spec), name_(std::move(name)), seed_(seed) {
    check_options(options);
    for (const TensorRow& row : tensors_of(spec_)) {
      const StorageSpec storage = chosen_storage(row, {Storage::bf16, 0, false}, options, name_);
      tensors_.push_back({row, storage, layout_of(row.rows, row.columns, storage).bytes});
    }
    report_.push_back("Random weights: answers are noise");
    note_ignored_options(options, spec_.tied_head, report_);
    const std::string text = describe_weights(spec_, tensors_);
    identity_ = fmt::format("{}#{}", name_, hex_of(checksum_of(std::as_bytes(std::span(text)))));
  }

  const ModelSpec& spec() const override { return spec_; }
  const std::string& name() const override { return name_; }
  const std::string& identity() const override { return identity_; }
  const std::vector<WeightTensor>& tensors() const override { return tensors_; }
  const std::vector<std::string>& report() const override { return report_; }

  void read(std::size_t index, std::span<std::byte> region) const override {
    const WeightTensor& tensor = tensors_.at(index);
    if (region.size() != tensor.bytes)
      throw Error(Code::internal, "A synthetic tensor was given a region of another size");
    const std::uint64_t key = key_of(seed_, tensor.row.name);
    if (tensor.row.role == TensorRole::vector) return fill_vector(spec_, tensor.row, key, elements_of<float>(region));
    if (!is_quantised(tensor.storage.storage))
      return fill_dense(tensor.storage.storage, key, deviation_of(tensor.row), region);
    std::fill(region.begin(), region.end(), std::byte{0});
    fill_blocks(tensor, key, region);
  }

 private:
  ModelSpec spec_;
  std::string name_;
  std::uint64_t seed_;
  std::vector<WeightTensor> tensors_;
  std::vector<std::string> report_;
  std::string identity_;
};

}  // namespace

std::shared_ptr<const WeightSource> random_weights(const ModelSpec& spec, const std::string& name,
                                                   const WeightOptions& options, std::uint64_t seed) {
  return std::make_shared<RandomWeights>(spec, name, options, seed);
}

// ---- adapters ----

void write_random_adapter(const std::filesystem::path& folder, const ModelSpec& spec, std::string_view base_name,
                          int rank, std::uint64_t seed) {
  int largest = std::min({spec.hidden, spec.mlp, spec.query_width(), spec.kv_width()});
  if (spec.delta_layers() > 0) largest = std::min(largest, spec.delta.value_heads);
  if (rank < 1 || rank > largest)
    throw Error(Code::invalid_argument, fmt::format("An adapter of rank {} was asked for", rank),
                fmt::format("Take a rank from 1 to {}", largest));
  std::vector<TensorToWrite> tensors;
  std::set<std::string> targets;
  for (const TensorRow& row : tensors_of(spec)) {
    const bool small = row.part == Part::delta_decay || row.part == Part::delta_rate;
    if (row.role != TensorRole::linear && !small) continue;
    const std::string module = "base_model.model." + row.name.substr(0, row.name.rfind('.'));
    targets.insert(module.substr(module.rfind('.') + 1));
    tensors.push_back({module + ".lora_A.weight", "F16", {rank, row.columns}, 2});
    tensors.push_back({module + ".lora_B.weight", "F16", {row.rows, rank}, 2});
  }
  std::filesystem::create_directories(folder);
  write_safetensors(folder / "adapter_model.safetensors", tensors, [&](const TensorToWrite& tensor) {
    std::vector<std::byte> bytes(tensor.bytes());
    fill_dense(Storage::f16, key_of(seed, tensor.name), 0.02, bytes);
    return bytes;
  });
  const Json config = {{"peft_type", "LORA"},
                       {"task_type", "CAUSAL_LM"},
                       {"base_model_name_or_path", base_name},
                       {"inference_mode", true},
                       {"r", rank},
                       {"lora_alpha", 2 * rank},
                       {"lora_dropout", 0.0},
                       {"target_modules", targets},
                       {"bias", "none"},
                       {"fan_in_fan_out", false},
                       {"use_rslora", false},
                       {"use_dora", false},
                       {"modules_to_save", nullptr}};
  const std::string text = config.dump(2) + '\n';
  FileWriter file(folder / "adapter_config.json");
  file.write(0, std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace duet::loaders
