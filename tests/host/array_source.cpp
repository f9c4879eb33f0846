#include "tests/host/array_source.h"

#include <cstring>
#include <stdexcept>

#include "loaders/quantise.h"

namespace duet::test {

std::vector<float> random_floats(std::size_t count, float deviation, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<std::int32_t> random_tokens(std::size_t count, int vocabulary, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<std::int32_t> uniform(0, vocabulary - 1);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = uniform(generator);
  return tokens;
}

ModelSpec small_spec() {
  ModelSpec spec;
  spec.architecture = "Qwen2ForCausalLM";
  spec.layers = 3;
  spec.hidden = 64;
  spec.query_heads = 4;
  spec.kv_heads = 2;
  spec.head_size = 16;
  spec.mlp = 96;
  spec.vocabulary = 128;
  spec.max_position_tokens = 1024;
  spec.query_key_value_bias = true;
  spec.tied_head = true;
  return spec;
}

ModelSpec small_hybrid() {
  ModelSpec spec = small_spec();
  spec.architecture = "Qwen3_5ForCausalLM";
  spec.head_size = 24;
  spec.query_key_value_bias = false;
  spec.query_key_norm = spec.output_gate = spec.zero_centred_norms = true;
  spec.rotary_size = 12;
  spec.delta = {.key_heads = 2,
                .value_heads = 6,
                .key_size = 12,
                .value_size = 20,
                .convolution = 4,
                .layers = {true, false, true}};
  return spec;
}

StorageChoice all_in(StorageSpec spec) {
  return [spec](const TensorRow&) { return spec; };
}

ArraySource::ArraySource(ModelSpec spec, StorageChoice storage, std::uint32_t seed, float deviation)
    : spec_(std::move(spec)), name_("arrays of seed " + std::to_string(seed)) {
  for (const TensorRow& row : tensors_of(spec_)) {
    StorageSpec chosen = row.role == TensorRole::vector ? StorageSpec{} : storage(row);
    if (row.role == TensorRole::decision && is_quantised(chosen.storage)) chosen = {.storage = Storage::bf16};
    tensors_.push_back({row, chosen, layout_of(row.rows, row.columns, chosen).bytes});
    std::vector<float> values = random_floats(static_cast<std::size_t>(row.rows * row.columns), deviation, seed++);
    const bool is_norm = row.part == Part::final_norm || row.part == Part::input_norm ||
                         row.part == Part::post_attention_norm || row.part == Part::query_norm ||
                         row.part == Part::key_norm;
    const bool near_one = row.part == Part::delta_norm || (is_norm && !spec_.zero_centred_norms);
    // DeltaNet: convolutions that do not shrink what they mix, memories that fade within tens of tokens.
    const float factor = row.part == Part::delta_convolution || row.part == Part::delta_decay_log ? 4.0F : 1.0F;
    const float mean = near_one ? 1.0F : row.part == Part::delta_decay_log ? -2.5F : 0.0F;
    for (float& value : values) value = mean + factor * value;
    arrays_.push_back(std::move(values));
  }
}

std::vector<float>& ArraySource::array(Part part, int layer) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].row.part == part && tensors_[i].row.layer == layer) return arrays_[i];
  }
  throw std::runtime_error("the model has no such tensor");
}

void ArraySource::read(std::size_t index, std::span<std::byte> region) const {
  const WeightTensor& tensor = tensors_[index];
  const std::vector<float>& values = arrays_[index];
  if (tensor.storage.storage == Storage::f32) {  // As it is, so that a test can plant NaN.
    std::memcpy(region.data(), values.data(), region.size());
    return;
  }
  loaders::store_matrix(
      [&](std::int64_t first, std::span<float> destination) {
        std::copy_n(values.begin() + first, destination.size(), destination.begin());
      },
      tensor.row.rows, tensor.row.columns, tensor.storage, region, tensor.row.name, 1);
}

int ArrayAdapter::add_tensor(AdapterTensorKind kind, Part part, int layer, std::int64_t rows, std::int64_t columns,
                             const std::vector<float>& values, Storage storage) {
  if (values.size() != static_cast<std::size_t>(rows * columns)) throw std::runtime_error("array of the wrong size");
  spec_.tensors.push_back({.kind = kind,
                           .part = part,
                           .layer = layer,
                           .rows = rows,
                           .columns = columns,
                           .storage = storage,
                           .offset = 0,
                           .bytes = 0});
  arrays_.push_back(values);
  return static_cast<int>(arrays_.size()) - 1;
}

void ArrayAdapter::add(const Module& m, Storage storage) {
  const auto in = static_cast<std::int64_t>(m.a.size()) / m.rank;
  const auto out = static_cast<std::int64_t>(m.b.size()) / m.rank;
  AdapterModule module{.part = m.part, .layer = m.layer, .rank = m.rank, .scale = m.scale};
  module.lora_a = add_tensor(AdapterTensorKind::lora_a, m.part, m.layer, m.rank, in, m.a, storage);
  module.lora_b = add_tensor(AdapterTensorKind::lora_b, m.part, m.layer, out, m.rank, m.b, storage);
  if (!m.bias.empty())
    module.lora_bias = add_tensor(AdapterTensorKind::lora_bias, m.part, m.layer, 1, out, m.bias, Storage::f32);
  if (!m.magnitude.empty()) {
    module.magnitude = add_tensor(AdapterTensorKind::magnitude, m.part, m.layer, 1, out, m.magnitude, Storage::f32);
    module.dora = true;
  }
  spec_.modules.push_back(module);
  spec_.largest_rank = std::max(spec_.largest_rank, m.rank);
  lay_out(spec_);
}

void ArrayAdapter::replace(Part part, int layer, std::int64_t rows, std::int64_t columns,
                           const std::vector<float>& values, Storage storage) {
  add_tensor(AdapterTensorKind::replacement, part, layer, rows, columns, values, storage);
  lay_out(spec_);
}

void ArrayAdapter::read(std::size_t tensor_index, std::span<std::byte> destination) const {
  const AdapterTensor& tensor = spec_.tensors[tensor_index];
  const std::vector<float>& values = arrays_[tensor_index];
  loaders::store_matrix(
      [&](std::int64_t first, std::span<float> elements) {
        std::copy_n(values.begin() + first, elements.size(), elements.begin());
      },
      tensor.rows, tensor.columns, {.storage = tensor.storage}, destination, name_, 1);
}

std::pair<std::int64_t, std::int64_t> shape_of(const ModelSpec& spec, Part part) {
  for (const TensorRow& row : tensors_of(spec)) {
    if (row.part == part) return {row.rows, row.columns};
  }
  return {spec.vocabulary, spec.hidden};  // A tied head.
}

ArrayAdapter random_adapter(const ModelSpec& spec, const std::vector<Part>& parts, int rank, float scale, bool dora,
                            Storage storage, std::uint32_t seed) {
  ArrayAdapter adapter("adapter of seed " + std::to_string(seed));
  const auto add = [&](Part part, int layer) {
    auto [out, in] = shape_of(spec, part);
    if (part == Part::embedding) std::swap(out, in);  // y = W^T one-hot
    ArrayAdapter::Module module{
        .part = part, .layer = layer, .rank = rank, .scale = scale, .a = {}, .b = {}, .bias = {}, .magnitude = {}};
    module.a = random_floats(static_cast<std::size_t>(rank * in), 0.2F, seed++);
    module.b = random_floats(static_cast<std::size_t>(out * rank), 0.2F, seed++);
    if (dora) {
      module.magnitude = random_floats(static_cast<std::size_t>(out), 0.1F, seed++);
      for (float& value : module.magnitude) value += 1.0F;
    }
    adapter.add(module, storage);
  };
  for (const Part part : parts) {
    if (part == Part::embedding || part == Part::head) {
      add(part, -1);
    } else {
      for (const TensorRow& row : tensors_of(spec))
        if (row.part == part) add(part, row.layer);
    }
  }
  return adapter;
}

}  // namespace duet::test
