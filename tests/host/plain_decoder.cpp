#include "tests/host/plain_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "engine/host/host_math.h"
#include "engine/quant_blocks.h"

namespace duet::test {
namespace {

using Place = std::pair<Part, int>;

struct Module {
  Matrix a, b;
  std::vector<float> bias;
  std::vector<float> magnitude;
  double scale = 0;
};

/// Every tensor in memory of its own; an adapter's replacements stand in for the base's.
struct Weights {
  std::vector<std::vector<std::byte>> memory;
  std::map<Place, Matrix> base, replaced;
  std::map<Place, Module> modules;

  const Matrix* find(Part part, int layer) const {
    if (const auto found = replaced.find({part, layer}); found != replaced.end()) return &found->second;
    if (const auto found = base.find({part, layer}); found != base.end()) return &found->second;
    return nullptr;
  }
  std::vector<float> vector(Part part, int layer) const {
    const Matrix* m = find(part, layer);
    if (m == nullptr) return {};
    std::vector<float> values(static_cast<std::size_t>(m->rows * m->columns));
    dequantise(*m, 0, values);
    return values;
  }
};

Weights load(const WeightSource& source, const AdapterSource* adapter, double adapter_scale) {
  Weights w;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const WeightTensor& tensor = source.tensors()[i];
    w.memory.emplace_back(tensor.bytes + 64);
    source.read(i, {w.memory.back().data(), tensor.bytes});
    w.base[{tensor.row.part, tensor.row.layer}] =
        view_of(tensor.row.rows, tensor.row.columns, tensor.storage, w.memory.back().data());
  }
  if (source.spec().tied_head) w.base[{Part::head, -1}] = w.base.at({Part::embedding, -1});
  if (adapter == nullptr) return w;

  std::vector<Matrix> tensors;
  for (std::size_t i = 0; i < adapter->spec().tensors.size(); ++i) {
    const AdapterTensor& tensor = adapter->spec().tensors[i];
    w.memory.emplace_back(tensor.bytes);
    adapter->read(i, w.memory.back());
    tensors.push_back(view_of(tensor.rows, tensor.columns, {.storage = tensor.storage}, w.memory.back().data()));
    if (tensor.kind == AdapterTensorKind::replacement) w.replaced[{tensor.part, tensor.layer}] = tensors.back();
  }
  const auto floats = [&](int index) {
    std::vector<float> values;
    if (index < 0) return values;
    const Matrix& m = tensors[static_cast<std::size_t>(index)];
    values.resize(static_cast<std::size_t>(m.rows * m.columns));
    std::memcpy(values.data(), m.data, values.size() * sizeof(float));
    return values;
  };
  for (const AdapterModule& module : adapter->spec().modules) {
    w.modules[{module.part, module.layer}] = {
        tensors[static_cast<std::size_t>(module.lora_a)], tensors[static_cast<std::size_t>(module.lora_b)],
        floats(module.lora_bias), floats(module.magnitude), double{module.scale} * adapter_scale};
  }
  return w;
}

std::vector<float> project(const Weights& w, Part part, std::optional<Part> bias, int layer, std::span<const float> x) {
  const Matrix& matrix = *w.find(part, layer);
  std::vector<float> y(static_cast<std::size_t>(matrix.rows));
  plain::matvec(matrix, x, y);
  if (const auto found = w.modules.find({part, layer}); found != w.modules.end()) {
    const Module& m = found->second;
    plain::add_lora(m.a, m.b, m.bias, m.scale, x, y);
    if (!m.magnitude.empty()) {
      std::vector<float> row_scales(y.size());
      plain::dora_row_scales(matrix, m.a, m.b, m.scale, m.magnitude, row_scales);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] *= row_scales[i];
    }
  }
  if (!bias) return y;
  const std::vector<float> b = w.vector(*bias, layer);
  for (std::size_t i = 0; i < b.size(); ++i) y[i] += b[i];
  return y;
}

std::vector<float> normed(const Weights& w, const ModelSpec& spec, Part norm, int layer, std::span<const float> x) {
  std::vector<float> y(x.size());
  std::vector<float> gamma = w.vector(norm, layer);
  if (spec.zero_centred_norms)
    for (float& value : gamma) value += 1.0F;
  plain::rms_norm(x, gamma, spec.norm_epsilon, y);
  return y;
}

std::vector<float> embedded(const Weights& w, const ModelSpec& spec, std::int32_t token) {
  std::vector<float> x(static_cast<std::size_t>(spec.hidden));
  plain::embed(*w.find(Part::embedding, -1), token, x);
  if (const auto found = w.modules.find({Part::embedding, -1}); found != w.modules.end()) {
    plain::add_embedding_lora(found->second.a, found->second.b, found->second.scale, token, x);
  }
  return x;
}

void add(const std::vector<float>& y, std::vector<float>& x) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

std::vector<float> mlp(const Weights& w, int layer, const std::vector<float>& x) {
  std::vector<float> gate = project(w, Part::gate, Part::gate_bias, layer, x);
  const std::vector<float> up = project(w, Part::up, Part::up_bias, layer, x);
  plain::swiglu(gate, up, gate);
  return project(w, Part::down, Part::down_bias, layer, gate);
}

/// [heads, query and gate, size] to the queries, in place, and the gates.
std::vector<float> split_gates(std::vector<float>& both, std::size_t size) {
  std::vector<float> queries, gates;
  for (std::size_t i = 0; i < both.size(); ++i) (i / size % 2 == 0 ? queries : gates).push_back(both[i]);
  both = std::move(queries);
  return gates;
}

/// Of one layer: what came before, as the layer sees it.
struct DeltaState {
  std::vector<float> inputs;   // [convolution, channels], the newest last.
  std::vector<double> memory;  // [value_heads, key_size, value_size]
};

std::vector<float> delta_layer(const Weights& w, const ModelSpec& spec, int layer, const std::vector<float>& x,
                               DeltaState& state) {
  const DeltaSpec& d = spec.delta;
  const auto channels = static_cast<std::size_t>(d.channels()), key_width = static_cast<std::size_t>(d.key_width());
  const auto key_size = static_cast<std::size_t>(d.key_size), value_size = static_cast<std::size_t>(d.value_size);
  state.inputs.resize(channels * static_cast<std::size_t>(d.convolution));
  state.memory.resize(static_cast<std::size_t>(d.value_width()) * key_size);

  const std::vector<float> input = project(w, Part::delta_query_key_value, std::nullopt, layer, x);
  state.inputs.erase(state.inputs.begin(), state.inputs.begin() + static_cast<std::ptrdiff_t>(channels));
  state.inputs.insert(state.inputs.end(), input.begin(), input.end());
  std::vector<float> mixed(channels);
  plain::convolve(w.vector(Part::delta_convolution, layer), state.inputs, mixed);
  const auto all = std::span(mixed);
  for (std::size_t head = 0; head < static_cast<std::size_t>(d.key_heads); ++head) {
    plain::normalise_length(all.subspan(head * key_size, key_size), 1e-6,
                            1.0 / std::sqrt(static_cast<double>(d.key_size)));
    plain::normalise_length(all.subspan(key_width + head * key_size, key_size), 1e-6, 1.0);
  }

  const std::vector<float> decay = project(w, Part::delta_decay, std::nullopt, layer, x);
  const std::vector<float> rate = project(w, Part::delta_rate, std::nullopt, layer, x);
  const std::vector<float> log = w.vector(Part::delta_decay_log, layer), bias = w.vector(Part::delta_decay_bias, layer);
  const std::vector<float> gamma = w.vector(Part::delta_norm, layer);  // Never less 1.
  std::vector<float> output(static_cast<std::size_t>(d.value_width()));
  for (std::size_t head = 0; head < static_cast<std::size_t>(d.value_heads); ++head) {
    const std::size_t key_head = head * static_cast<std::size_t>(d.key_heads) / static_cast<std::size_t>(d.value_heads);
    const auto y = std::span(output).subspan(head * value_size, value_size);
    plain::delta_rule(
        std::span(state.memory).subspan(head * key_size * value_size, key_size * value_size),
        all.subspan(key_head * key_size, key_size), all.subspan(key_width + key_head * key_size, key_size),
        all.subspan(2 * key_width + head * value_size, value_size), plain::decay_of(decay[head], log[head], bias[head]),
        1.0 / (1.0 + std::exp(-double{rate[head]})), y);
    plain::rms_norm(y, gamma, spec.norm_epsilon, y);
  }
  std::vector<float> gate = project(w, Part::delta_gate, std::nullopt, layer, x);
  plain::swiglu(gate, output, gate);
  return project(w, Part::delta_output, std::nullopt, layer, gate);
}

/// [tokens, hidden] behind the final norm.
std::vector<float> hidden_rows(const ModelSpec& spec, const Weights& w, std::span<const std::int32_t> tokens) {
  const auto size = static_cast<std::size_t>(spec.head_size);
  const std::vector<float> frequencies = inverse_frequencies(spec.rope, spec.rotated_size());

  // One page that holds the whole prompt.
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::vector<DeltaState> states(static_cast<std::size_t>(spec.layers));
  const std::size_t page_floats = 2 * static_cast<std::size_t>(spec.layers * spec.kv_heads) * size * tokens.size();
  std::vector<float> page(page_floats);
  const std::int32_t only_page = 0;
  const KvView kv{.pool = reinterpret_cast<std::byte*>(page.data()),
                  .page_bytes = page_floats * sizeof(float),
                  .tokens_per_page = count,
                  .kv_heads = spec.kv_heads,
                  .head_size = spec.head_size,
                  .pages = {&only_page, 1}};

  std::vector<float> rows;
  for (std::int64_t position = 0; position < count; ++position) {
    std::vector<float> x = embedded(w, spec, tokens[static_cast<std::size_t>(position)]);
    const auto rotated = static_cast<std::size_t>(spec.rotated_size());
    std::vector<float> cosine(rotated / 2), sine(rotated / 2);
    plain::rotary(frequencies, position, spec.rope.attention_factor, cosine, sine);
    for (int layer = 0; layer < spec.layers; ++layer) {
      const std::vector<float> h = normed(w, spec, Part::input_norm, layer, x);
      if (spec.is_delta(layer)) {
        add(delta_layer(w, spec, layer, h, states[static_cast<std::size_t>(layer)]), x);
        add(mlp(w, layer, normed(w, spec, Part::post_attention_norm, layer, x)), x);
        continue;
      }
      std::vector<float> gates;
      std::vector<float> q = project(w, Part::query, Part::query_bias, layer, h);
      if (spec.output_gate) gates = split_gates(q, size);
      std::vector<float> k = project(w, Part::key, Part::key_bias, layer, h);
      const std::vector<float> v = project(w, Part::value, Part::value_bias, layer, h);
      const auto finish = [&](std::span<float> head, Part norm) {
        if (spec.query_key_norm) {
          const std::vector<float> y = normed(w, spec, norm, layer, head);
          std::copy(y.begin(), y.end(), head.begin());
        }
        plain::rotate(head.first(rotated), cosine, sine);
      };
      for (std::size_t head = 0; head < static_cast<std::size_t>(spec.kv_heads); ++head) {
        finish(std::span(k).subspan(head * size, size), Part::key_norm);
        std::copy_n(k.begin() + static_cast<std::ptrdiff_t>(head * size), size,
                    kv.key(layer, static_cast<int>(head), position));
        std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(head * size), size,
                    kv.value(layer, static_cast<int>(head), position));
      }
      const bool slides = spec.sliding_window_tokens > 0 && spec.layer_slides[static_cast<std::size_t>(layer)];
      const std::int64_t first = slides ? std::max<std::int64_t>(0, position + 1 - spec.sliding_window_tokens) : 0;
      std::vector<float> attended(q.size());
      for (std::size_t head = 0; head < static_cast<std::size_t>(spec.query_heads); ++head) {
        const std::span<float> one = std::span(q).subspan(head * size, size);
        finish(one, Part::query_norm);
        plain::attend(one, kv, layer, static_cast<int>(head) / (spec.query_heads / spec.kv_heads), first, position + 1,
                      1.0 / std::sqrt(static_cast<double>(spec.head_size)),
                      std::span(attended).subspan(head * size, size));
      }
      if (spec.output_gate) plain::gate_by_sigmoid(attended, gates);
      add(project(w, Part::output, Part::output_bias, layer, attended), x);
      add(mlp(w, layer, normed(w, spec, Part::post_attention_norm, layer, x)), x);
    }
    const std::vector<float> h = normed(w, spec, Part::final_norm, -1, x);
    rows.insert(rows.end(), h.begin(), h.end());
  }
  return rows;
}

}  // namespace

std::vector<float> plain_hidden(const WeightSource& source, std::span<const std::int32_t> tokens,
                                const AdapterSource* adapter, float adapter_scale) {
  return hidden_rows(source.spec(), load(source, adapter, adapter_scale), tokens);
}

std::vector<float> plain_logits(const WeightSource& source, std::span<const std::int32_t> tokens,
                                const AdapterSource* adapter, float adapter_scale) {
  const auto width = static_cast<std::size_t>(source.spec().hidden);
  const Weights w = load(source, adapter, adapter_scale);
  const std::vector<float> rows = hidden_rows(source.spec(), w, tokens);
  std::vector<float> logits;
  for (std::size_t first = 0; first < rows.size(); first += width) {
    const std::vector<float> row = project(w, Part::head, std::nullopt, -1, std::span(rows).subspan(first, width));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

}  // namespace duet::test
