#include "cuda/adapters.h"

#include <fmt/format.h>

#include "cuda/check.h"
#include "duet/error.h"

namespace duet::cuda {
namespace {

/// The slot's part of the table as the card will see it, and what the host keeps.
class Binding {
 public:
  Binding(const AdapterSource& source, const ModelSpec& model, std::byte* region)
      : source_(source), model_(model), region_(region), parts_(places_of(model)) {}

  void bind() {
    const AdapterSpec& spec = source_.spec();
    for (const AdapterTensor& tensor : spec.tensors) {
      if (tensor.kind == AdapterTensorKind::replacement) bind_replacement(tensor);
    }
    for (const AdapterModule& module : spec.modules) bind_module(module);
  }

  std::span<const AdapterPart> parts() const { return parts_; }
  const AdapterPart& at(Part part, int layer) const { return parts_[place_of(part, layer)]; }

 private:
  AdapterPart& place(Part part, int layer) {
    if (layer < -1 || layer >= model_.layers)
      throw Error(
          Code::bad_file,
          fmt::format("Adapter {} changes layer {}; the model has {} layers", source_.name(), layer, model_.layers),
          "Use the base this adapter was trained on");
    return parts_[place_of(part, layer)];
  }

  void bind_replacement(const AdapterTensor& tensor) {
    AdapterPart& part = place(tensor.part, tensor.layer);
    part.replacement = region_ + tensor.offset;
    part.replacement_storage = static_cast<std::uint8_t>(tensor.storage);
  }

  void bind_module(const AdapterModule& module) {
    AdapterPart& part = place(module.part, module.layer);
    const AdapterTensor& a = tensor(module.lora_a);
    const AdapterTensor& b = tensor(module.lora_b);
    part.a = region_ + a.offset;
    part.b = region_ + b.offset;
    part.a_storage = static_cast<std::uint8_t>(a.storage);
    part.b_storage = static_cast<std::uint8_t>(b.storage);
    part.lora_bias = floats(module.lora_bias);
    part.row_scale = floats(module.magnitude);
    part.rank = module.rank;
    part.scale = module.scale;
  }

  const AdapterTensor& tensor(int index) const { return source_.spec().tensors.at(static_cast<std::size_t>(index)); }
  const float* floats(int index) const {
    return index < 0 ? nullptr : reinterpret_cast<const float*>(region_ + tensor(index).offset);
  }

  const AdapterSource& source_;
  const ModelSpec& model_;
  std::byte* region_;
  std::vector<AdapterPart> parts_;
};

}  // namespace

ModelState carve_state(const ModelSpec& spec, const StepLimits& limits, int adapter_slots, Carver& carver) {
  ModelState state;
  state.table =
      carver.take_array<AdapterPart>("adapter table", places_of(spec) * static_cast<std::size_t>(adapter_slots));
  state.inverse_frequencies =
      carver.take_array<float>("rotary frequencies", static_cast<std::size_t>(spec.head_size / 2));
  const SplitSums sums = split_sums_of(spec, limits);
  state.counters = carver.take_array<std::uint32_t>("counters", sums.counters);
  state.sample_counters =
      carver.take_array<std::byte>("sample counters", sample_counter_bytes(limits.max_batch_sequences));
  state.attention_counters = carver.take_array<std::uint32_t>("attention counters", sums.attention_counters);
  return state;
}

std::size_t state_bytes(const ModelSpec& spec, const StepLimits& limits, int adapter_slots) {
  Carver counting;
  (void)carve_state(spec, limits, adapter_slots, counting);
  return counting.used();
}

AdapterSlot load_adapter(const AdapterSource& source, float scale, const ModelSpec& model, const BaseWeights& base,
                         std::byte* region, std::span<AdapterPart> slot_table, Stream stream) {
  const AdapterSpec& spec = source.spec();
  AdapterSlot slot;
  Binding binding(source, model, region);
  binding.bind();
  slot.has_dora = spec.has_dora();
  slot.load_scale = scale;

  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
    bytes.resize(spec.tensors[i].bytes);
    source.read(i, bytes);
    DUET_CUDA(
        cudaMemcpyAsync(region + spec.tensors[i].offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream));
    DUET_CUDA(cudaStreamSynchronize(stream));
  }
  for (const AdapterModule& module : spec.modules) {
    if (module.magnitude < 0) continue;
    auto* const magnitude =
        reinterpret_cast<float*>(region + spec.tensors[static_cast<std::size_t>(module.magnitude)].offset);
    dora_row_scales(base.at(module.part, module.layer), binding.at(module.part, module.layer), module.scale * scale,
                    module.part == Part::embedding, magnitude, stream);
  }
  DUET_CUDA(cudaMemcpyAsync(slot_table.data(), binding.parts().data(), slot_table.size_bytes(), cudaMemcpyHostToDevice,
                            stream));
  DUET_CUDA(cudaStreamSynchronize(stream));
  slot.loaded = true;
  return slot;
}

}  // namespace duet::cuda
