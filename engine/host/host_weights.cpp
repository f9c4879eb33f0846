#include "engine/host/host_weights.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <vector>

#include "duet/error.h"
#include "engine/quant_blocks.h"

namespace duet::host {
namespace {

Matrix view_of_tensor(const AdapterTensor& tensor, const std::byte* slot) {
  return view_of(tensor.rows, tensor.columns, {.storage = tensor.storage}, slot + tensor.offset);
}

const float* floats_of(const AdapterSpec& spec, int tensor, const std::byte* slot) {
  if (tensor < 0) return nullptr;
  return reinterpret_cast<const float*>(slot + spec.tensors[static_cast<std::size_t>(tensor)].offset);
}

std::vector<float> unpacked(const Matrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.columns));
  dequantise(matrix, 0, values);
  return values;
}

/// [out]: |W[o] + scale * sum_r b[o, r] a[r]|, W [out, in], a [rank, in], b [out, rank].
std::vector<double> row_lengths(const Matrix& w, const std::vector<float>& a, const std::vector<float>& b,
                                std::int64_t rank, float scale) {
  const auto columns = static_cast<std::size_t>(w.columns);
  std::vector<float> row(columns);
  std::vector<double> lengths;
  for (std::int64_t o = 0; o < w.rows; ++o) {
    dequantise(w, o * w.columns, row);
    for (std::int64_t r = 0; r < rank; ++r) {
      const float factor = scale * b[static_cast<std::size_t>(o * rank + r)];
      const float* direction = a.data() + static_cast<std::size_t>(r) * columns;
      for (std::size_t i = 0; i < columns; ++i) row[i] += factor * direction[i];
    }
    double squares = 0;
    for (const float value : row) squares += double{value} * value;
    lengths.push_back(std::sqrt(squares));
  }
  return lengths;
}

/// [hidden]: |W[:, h] + scale * sum_r b[h, r] a[r]|, W [vocabulary, hidden], a [rank, vocabulary], b [hidden, rank].
std::vector<double> embedding_lengths(const Matrix& w, const std::vector<float>& a, const std::vector<float>& b,
                                      std::int64_t rank, float scale) {
  const auto hidden = static_cast<std::size_t>(w.columns);
  std::vector<float> row(hidden);
  std::vector<double> squares(hidden, 0.0);
  for (std::int64_t token = 0; token < w.rows; ++token) {
    dequantise(w, token * w.columns, row);
    for (std::size_t h = 0; h < hidden; ++h) {
      float value = row[h];
      for (std::int64_t r = 0; r < rank; ++r) {
        value += scale * b[h * static_cast<std::size_t>(rank) + static_cast<std::size_t>(r)] *
                 a[static_cast<std::size_t>(r * w.rows + token)];
      }
      squares[h] += double{value} * value;
    }
  }
  for (double& value : squares) value = std::sqrt(value);
  return squares;
}

}  // namespace

const Matrix& weight_of(const BaseWeights& base, const HostAdapter* adapter, Part part, int layer) {
  if (adapter != nullptr) {
    const Matrix& replacement = adapter->at(part, layer).replacement;
    if (replacement) return replacement;
  }
  return base.at(part, layer);
}

void bind_adapter(const AdapterSpec& spec, const ModelSpec& model, std::string_view name, std::byte* slot,
                  HostAdapter& adapter) {
  const auto place = [&](Part part, int layer) -> PartAdapter& {
    if (layer < -1 || layer >= model.layers)
      throw Error(Code::bad_file,
                  fmt::format("Adapter {} changes layer {}; the model has {} layers", name, layer, model.layers),
                  "Use the base this adapter was trained on");
    return adapter.places[place_of(part, layer)];
  };
  adapter.places.assign(adapter.places.size(), PartAdapter{});
  for (const AdapterTensor& tensor : spec.tensors) {
    if (tensor.kind == AdapterTensorKind::replacement)
      place(tensor.part, tensor.layer).replacement = view_of_tensor(tensor, slot);
  }
  for (const AdapterModule& module : spec.modules) {
    PartAdapter& part = place(module.part, module.layer);
    part.a = view_of_tensor(spec.tensors.at(static_cast<std::size_t>(module.lora_a)), slot);
    part.b = view_of_tensor(spec.tensors.at(static_cast<std::size_t>(module.lora_b)), slot);
    part.bias = floats_of(spec, module.lora_bias, slot);
    part.row_scale = floats_of(spec, module.magnitude, slot);
    part.scale = module.scale;
  }
  adapter.has_dora = spec.has_dora();
}

void compute_dora_scales(const AdapterSpec& spec, const BaseWeights& base, std::byte* slot, HostAdapter& adapter) {
  for (const AdapterModule& module : spec.modules) {
    if (module.magnitude < 0) continue;
    const PartAdapter& part = adapter.at(module.part, module.layer);
    const Matrix& w = base.at(module.part, module.layer);
    const std::vector<float> a = unpacked(part.a);
    const std::vector<float> b = unpacked(part.b);
    const float scale = part.scale * adapter.load_scale;
    const std::vector<double> lengths = module.part == Part::embedding ? embedding_lengths(w, a, b, part.a.rows, scale)
                                                                       : row_lengths(w, a, b, part.a.rows, scale);
    auto* magnitude = reinterpret_cast<float*>(slot + spec.tensors[static_cast<std::size_t>(module.magnitude)].offset);
    for (std::size_t o = 0; o < lengths.size(); ++o) magnitude[o] = static_cast<float>(magnitude[o] / lengths[o]);
  }
}

}  // namespace duet::host
