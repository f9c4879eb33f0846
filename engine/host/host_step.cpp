#include "engine/host/host_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/host/host_kernels.h"
#include "engine/quant_blocks.h"

namespace duet::host {
namespace {

constexpr int kNoBadLayer = std::numeric_limits<int>::max();
constexpr std::int64_t kLoraRowsPerItem = 8;
constexpr std::int64_t kFewestRowsPerItem = 16;  // Of a matrix: below this, sharing out costs more than it brings.
constexpr std::int64_t kMostRowsPerItem = 512;

/// y = (W x, adapted) + bias for one matrix; with `residual`, y is then added to it.
struct Projection {
  Part part;
  Part bias;                  ///< Its own part when there is none of the kind.
  float* y;                   ///< [rows, y_stride]
  std::int64_t out;           ///< Rows of the matrix; columns of y.
  float* residual = nullptr;  ///< [rows, out]
};

class Step {
 public:
  Step(const DecoderView& decoder, ThreadPool& threads, const StepScratch& scratch, std::span<const RowGroup> groups,
       int max_adapter_rank)
      : spec_(decoder.spec),
        base_(decoder.base),
        inverse_frequencies_(decoder.inverse_frequencies),
        threads_(threads),
        scratch_(scratch),
        groups_(groups),
        rows_(groups.back().first + groups.back().rows),
        max_adapter_rank_(max_adapter_rank) {}

  void run_layers() {
    embed();
    int attends = 0, recurs = 0;  // Layers of each kind so far: what pages and states count.
    for (int layer = 0; layer < spec_.layers; ++layer) {
      if (spec_.is_delta(layer))
        delta_block(layer, recurs++);
      else
        attention_block(layer, attends++);
      mlp_block(layer);
    }
  }

  /// Logits of the rows of `head_groups` (numbered afresh, `head_rows` in all), whose residual rows are given by
  /// `source_row`; to `logits` [head_rows, vocabulary].
  void head(std::span<const RowGroup> head_groups, std::span<const RowGroup> source, std::int64_t head_rows,
            float* logits) {
    for (std::size_t g = 0; g < head_groups.size(); ++g) {
      const RowGroup& to = head_groups[g];
      const std::int64_t from = source[g].first + source[g].rows - to.rows;
      const Matrix& gamma = vector_of(to, Part::final_norm, -1);
      threads_.run(to.rows, 8, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          normalise(from + i, gamma, spec_.layers - 1, scratch_.head_input.data() + (to.first + i) * spec_.hidden);
        }
      });
    }
    const Projection projection{Part::head, Part::head, logits, spec_.vocabulary};
    project(-1, {&projection, 1}, head_groups, head_rows, scratch_.head_input.data(), spec_.hidden);
  }

  /// The rows that a sequence wants behind the final norm.
  void hidden_rows(const RowGroup& group) {
    const Matrix& gamma = vector_of(group, Part::final_norm, -1);
    const std::span<const int> rows = group.sequence->hidden_rows;
    if (rows.empty()) return;
    threads_.run(static_cast<std::int64_t>(rows.size()), 8, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        normalise(group.first + rows[static_cast<std::size_t>(i)], gamma, spec_.layers - 1,
                  group.sequence->hidden + i * spec_.hidden);
      }
    });
  }

 private:
  // ---- weights as a group sees them ----

  const Matrix& matrix_of(const RowGroup& group, Part part, int layer) const {
    return weight_of(base_, group.adapter, part, layer);
  }
  const Matrix& vector_of(const RowGroup& group, Part part, int layer) const { return matrix_of(group, part, layer); }
  static const float* floats(const Matrix& vector) { return reinterpret_cast<const float*>(vector.data); }

  static bool has_lora(const RowGroup& group, Part part, int layer) {
    return group.adapter != nullptr && group.adapter->at(part, layer).b;
  }
  static float scale_of_module(const RowGroup& group, const PartAdapter& part) {
    return part.scale * group.sequence->adapter_scale;
  }

  /// Calls body(group, row) for every row, rows shared out among threads.
  template <class Body>
  void for_each_row(std::int64_t grain, Body&& body) {
    threads_.run(rows_, grain, [&](std::int64_t first, std::int64_t last) {
      for (const RowGroup& group : groups_) {
        const std::int64_t end = std::min(last, group.first + group.rows);
        for (std::int64_t row = std::max(first, group.first); row < end; ++row) body(group, row);
      }
    });
  }

  // ---- the layers ----

  void embed() {
    const std::int64_t half = spec_.rotated_size() / 2;
    for_each_row(8, [&](const RowGroup& group, std::int64_t row) {
      scratch_.bad_layer[static_cast<std::size_t>(row)] = kNoBadLayer;
      const std::int64_t offset = row - group.first;
      embed_token(group, group.sequence->tokens[static_cast<std::size_t>(offset)], row);

      const auto position = static_cast<float>(group.sequence->first_position + offset);
      const auto factor = static_cast<float>(spec_.rope.attention_factor);
      for (std::int64_t i = 0; i < half; ++i) {
        const float angle = position * inverse_frequencies_[static_cast<std::size_t>(i)];
        scratch_.cosine[static_cast<std::size_t>(row * half + i)] = std::cos(angle) * factor;
        scratch_.sine[static_cast<std::size_t>(row * half + i)] = std::sin(angle) * factor;
      }
    });
  }

  void embed_token(const RowGroup& group, std::int64_t token, std::int64_t row) {
    float* x = scratch_.residual.data() + row * spec_.hidden;
    dequantise(matrix_of(group, Part::embedding, -1), token * spec_.hidden,
               {x, static_cast<std::size_t>(spec_.hidden)});
    if (!has_lora(group, Part::embedding, -1)) return;
    const PartAdapter& part = group.adapter->at(Part::embedding, -1);
    float* u = scratch_.lora.data() + row * lora_stride();
    for (std::int64_t r = 0; r < part.a.rows; ++r) dequantise(part.a, r * part.a.columns + token, {u + r, 1});
    add_lora(part.b, u, part.bias, scale_of_module(group, part), 0, spec_.hidden, x);
    if (part.row_scale == nullptr) return;
    for (std::int64_t i = 0; i < spec_.hidden; ++i) x[i] *= part.row_scale[i];
  }

  /// RMSNorm of one row of the residual stream. A row that is not finite is marked with `layer`, the last one that
  /// wrote to it.
  void normalise(std::int64_t row, const Matrix& gamma, int layer, float* y) {
    const float* x = scratch_.residual.data() + row * spec_.hidden;
    if (rms_norm(x, floats(gamma), spec_.hidden, static_cast<float>(spec_.norm_epsilon), y, norm_offset())) return;
    int& bad_layer = scratch_.bad_layer[static_cast<std::size_t>(row)];
    bad_layer = std::min(bad_layer, layer);
  }

  float norm_offset() const { return spec_.zero_centred_norms ? 1.0F : 0.0F; }

  void normalise_all(Part norm, int layer, int last_writer) {
    for_each_row(8, [&](const RowGroup& group, std::int64_t row) {
      normalise(row, vector_of(group, norm, layer), last_writer, scratch_.normed.data() + row * spec_.hidden);
    });
  }

  void attention_block(int layer, int kv_layer) {
    normalise_all(Part::input_norm, layer, layer - 1);  // Layer -1 is kLayerEmbedding.
    float* const query = spec_.output_gate ? scratch_.query_gate.data() : scratch_.query.data();
    const std::array<Projection, 3> inputs{{
        {Part::query, Part::query_bias, query, spec_.query_rows()},
        {Part::key, Part::key_bias, scratch_.key.data(), spec_.kv_width()},
        {Part::value, Part::value_bias, scratch_.value.data(), spec_.kv_width()},
    }};
    project(layer, inputs, groups_, rows_, scratch_.normed.data(), spec_.hidden);
    append_to_pages(layer, kv_layer);
    attend_all(layer, kv_layer);
    if (spec_.output_gate) gate_attention();
    const Projection output{Part::output, Part::output_bias, scratch_.projected.data(), spec_.hidden,
                            scratch_.residual.data()};
    project(layer, {&output, 1}, groups_, rows_, scratch_.attended.data(), spec_.query_width());
  }

  void delta_block(int layer, int delta_layer) {
    normalise_all(Part::input_norm, layer, layer - 1);
    const DeltaSpec& d = spec_.delta;
    const DeltaScratch& scratch = scratch_.delta;
    const std::array<Projection, 4> inputs{{
        {Part::delta_query_key_value, Part::delta_query_key_value, scratch.input.data(), d.channels()},
        {Part::delta_gate, Part::delta_gate, scratch.gate.data(), d.value_width()},
        {Part::delta_decay, Part::delta_decay, scratch.decay.data(), d.value_heads},
        {Part::delta_rate, Part::delta_rate, scratch.rate.data(), d.value_heads},
    }};
    project(layer, inputs, groups_, rows_, scratch_.normed.data(), spec_.hidden);
    run_delta(spec_, base_, layer, delta_layer, threads_, scratch, groups_);
    const Projection output{Part::delta_output, Part::delta_output, scratch_.projected.data(), spec_.hidden,
                            scratch_.residual.data()};
    project(layer, {&output, 1}, groups_, rows_, scratch.gate.data(), d.value_width());
  }

  void mlp_block(int layer) {
    normalise_all(Part::post_attention_norm, layer, layer);
    const std::array<Projection, 2> inputs{{
        {Part::gate, Part::gate_bias, scratch_.gate.data(), spec_.mlp},
        {Part::up, Part::up_bias, scratch_.up.data(), spec_.mlp},
    }};
    project(layer, inputs, groups_, rows_, scratch_.normed.data(), spec_.hidden);
    for_each_row(4, [&](const RowGroup&, std::int64_t row) {
      swiglu(scratch_.gate.data() + row * spec_.mlp, scratch_.up.data() + row * spec_.mlp, spec_.mlp);
    });
    const Projection down{Part::down, Part::down_bias, scratch_.projected.data(), spec_.hidden,
                          scratch_.residual.data()};
    project(layer, {&down, 1}, groups_, rows_, scratch_.gate.data(), spec_.mlp);
  }

  /// Head norms, rotation, and the new keys and values to their pages.
  void append_to_pages(int layer, int kv_layer) {
    const std::int64_t size = spec_.head_size;
    const std::int64_t rotated = spec_.rotated_size();
    const auto epsilon = static_cast<float>(spec_.norm_epsilon);
    for_each_row(8, [&](const RowGroup& group, std::int64_t row) {
      const float* cosine = scratch_.cosine.data() + row * (rotated / 2);
      const float* sine = scratch_.sine.data() + row * (rotated / 2);
      const auto finish = [&](float* x, Part norm) {
        if (spec_.query_key_norm)
          (void)rms_norm(x, floats(vector_of(group, norm, layer)), size, epsilon, x, norm_offset());
        rotate(x, cosine, sine, rotated);
      };
      float* query = scratch_.query.data() + row * spec_.query_width();
      if (spec_.output_gate) {
        const float* both = scratch_.query_gate.data() + row * spec_.query_rows();
        for (int head = 0; head < spec_.query_heads; ++head)
          std::copy_n(both + 2 * head * size, size, query + head * size);
      }
      for (int head = 0; head < spec_.query_heads; ++head) finish(query + head * size, Part::query_norm);

      const std::int64_t position = group.sequence->first_position + row - group.first;
      float* key = scratch_.key.data() + row * spec_.kv_width();
      const float* value = scratch_.value.data() + row * spec_.kv_width();
      for (int head = 0; head < spec_.kv_heads; ++head) {
        finish(key + head * size, Part::key_norm);
        std::copy_n(key + head * size, size, group.kv.key(kv_layer, head, position));
        std::copy_n(value + head * size, size, group.kv.value(kv_layer, head, position));
      }
    });
  }

  void attend_all(int layer, int kv_layer) {
    const int sharing = spec_.query_heads / spec_.kv_heads;  // Query heads of one KV head.
    const int parts = (sharing + kMostHeadsPerAttention - 1) / kMostHeadsPerAttention;
    const std::int64_t items_per_row = std::int64_t{spec_.kv_heads} * parts;
    const bool slides = spec_.sliding_window_tokens > 0 && spec_.layer_slides[static_cast<std::size_t>(layer)];
    const float scale = 1.0F / std::sqrt(static_cast<float>(spec_.head_size));
    threads_.run(rows_ * items_per_row, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t item = first; item < last; ++item) {
        const std::int64_t row = item / items_per_row;
        const auto kv_head = static_cast<int>(item % items_per_row / parts);
        const auto part = static_cast<int>(item % parts);
        const int first_head = kv_head * sharing + part * kMostHeadsPerAttention;
        const int heads = std::min(kMostHeadsPerAttention, sharing - part * kMostHeadsPerAttention);
        const RowGroup& group = group_of(row);
        const std::int64_t end = group.sequence->first_position + (row - group.first) + 1;
        const std::int64_t begin = slides ? std::max<std::int64_t>(0, end - spec_.sliding_window_tokens) : 0;
        const std::int64_t offset = row * spec_.query_width() + std::int64_t{first_head} * spec_.head_size;
        attend(scratch_.query.data() + offset, heads, group.kv, kv_layer, kv_head, begin, end, scale,
               scratch_.attended.data() + offset);
      }
    });
  }

  void gate_attention() {
    const std::int64_t size = spec_.head_size;
    for_each_row(8, [&](const RowGroup&, std::int64_t row) {
      float* attended = scratch_.attended.data() + row * spec_.query_width();
      const float* gates = scratch_.query_gate.data() + row * spec_.query_rows() + size;
      for (int head = 0; head < spec_.query_heads; ++head)
        gate_by_sigmoid(attended + head * size, gates + 2 * head * size, size);
    });
  }

  const RowGroup& group_of(std::int64_t row) const {
    std::size_t g = 0;
    while (row >= groups_[g].first + groups_[g].rows) ++g;
    return groups_[g];
  }

  // ---- projections ----

  std::int64_t lora_stride() const { return std::int64_t{kMostProjections} * max_adapter_rank_; }

  /// All projections of one input x [rows, columns].
  void project(int layer, std::span<const Projection> projections, std::span<const RowGroup> groups, std::int64_t rows,
               const float* x, std::int64_t columns) {
    bool any_lora = false;
    bool natural = false;
    bool nibbles = false;
    for (const RowGroup& group : groups) {
      for (const Projection& projection : projections) {
        any_lora = any_lora || has_lora(group, projection.part, layer);
        const bool by_nibbles = packing_of(matrix_of(group, projection.part, layer)) == Packing::nibbles;
        (by_nibbles ? nibbles : natural) = true;
      }
    }
    const std::int64_t stride = packed_columns(columns);
    threads_.run(rows, 4, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const float* from = x + row * columns;
        if (natural || any_lora) pack(Packing::natural, from, columns, scratch_.packed.data() + row * stride);
        if (nibbles) pack(Packing::nibbles, from, columns, scratch_.packed_nibbles.data() + row * stride);
      }
    });
    if (any_lora) apply_lora_a(layer, projections, groups, stride);
    multiply(layer, projections, groups, stride);
  }

  /// lora[row, projection * max_rank + r] = A[r] . x_row
  void apply_lora_a(int layer, std::span<const Projection> projections, std::span<const RowGroup> groups,
                    std::int64_t stride) {
    const auto count = static_cast<std::int64_t>(projections.size());
    const std::int64_t pieces = (max_adapter_rank_ + kLoraRowsPerItem - 1) / kLoraRowsPerItem;
    for (const RowGroup& group : groups) {
      if (group.adapter == nullptr) continue;
      threads_.run(group.rows * count * pieces, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t item = first; item < last; ++item) {
          const std::int64_t row = group.first + item / (count * pieces);
          const std::int64_t p = item / pieces % count;
          const Matrix& a = group.adapter->at(projections[static_cast<std::size_t>(p)].part, layer).a;
          if (!a) continue;
          const std::int64_t begin = std::min(item % pieces * kLoraRowsPerItem, a.rows);
          const std::int64_t end = std::min(begin + kLoraRowsPerItem, a.rows);
          float* u = scratch_.lora.data() + row * lora_stride() + p * max_adapter_rank_;
          matmul(a, scratch_.packed.data() + row * stride, 1, begin, end, u, 0);
        }
      });
    }
  }

  void multiply(int layer, std::span<const Projection> projections, std::span<const RowGroup> groups,
                std::int64_t stride) {
    std::int64_t all_rows = 0;
    for (const Projection& projection : projections) all_rows += projection.out;
    const std::int64_t share = all_rows / (4 * threads_.threads()) / 4 * 4;
    const std::int64_t per_item = std::clamp(share, kFewestRowsPerItem, kMostRowsPerItem);
    std::int64_t items = 0;
    for (const Projection& projection : projections) items += (projection.out + per_item - 1) / per_item;

    threads_.run(items, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t item = first; item < last; ++item) {
        std::size_t p = 0;
        std::int64_t piece = item;
        while (piece >= (projections[p].out + per_item - 1) / per_item) {
          piece -= (projections[p].out + per_item - 1) / per_item;
          ++p;
        }
        const std::int64_t begin = piece * per_item;
        const std::int64_t end = std::min(begin + per_item, projections[p].out);
        multiply_rows(layer, projections[p], groups, stride, begin, end);
        for (const RowGroup& group : groups) {
          finish_rows(layer, projections[p], group, static_cast<std::int64_t>(p) * max_adapter_rank_, begin, end);
        }
      }
    });
  }

  /// W x for some rows of W and all tokens: neighbouring groups that use the same matrix in one go.
  void multiply_rows(int layer, const Projection& projection, std::span<const RowGroup> groups, std::int64_t stride,
                     std::int64_t begin, std::int64_t end) {
    for (std::size_t g = 0; g < groups.size();) {
      const Matrix& weight = matrix_of(groups[g], projection.part, layer);
      std::int64_t tokens = groups[g].rows;
      std::size_t next = g + 1;
      for (; next < groups.size() && matrix_of(groups[next], projection.part, layer).data == weight.data; ++next) {
        tokens += groups[next].rows;
      }
      const std::span<const float> packed =
          packing_of(weight) == Packing::nibbles ? scratch_.packed_nibbles : scratch_.packed;
      matmul(weight, packed.data() + groups[g].first * stride, tokens, begin, end,
             projection.y + groups[g].first * projection.out, projection.out);
      g = next;
    }
  }

  /// Adapter, bias and residual for some columns of y.
  void finish_rows(int layer, const Projection& projection, const RowGroup& group, std::int64_t lora_offset,
                   std::int64_t begin, std::int64_t end) {
    const Matrix no_bias;
    const Matrix& bias = projection.bias == projection.part ? no_bias : vector_of(group, projection.bias, layer);
    const PartAdapter* part = group.adapter == nullptr ? nullptr : &group.adapter->at(projection.part, layer);
    for (std::int64_t row = group.first; row < group.first + group.rows; ++row) {
      float* y = projection.y + row * projection.out;
      if (part != nullptr && part->b) {
        const float* u = scratch_.lora.data() + row * lora_stride() + lora_offset;
        add_lora(part->b, u, part->bias, scale_of_module(group, *part), begin, end, y);
        if (part->row_scale != nullptr) {
          for (std::int64_t i = begin; i < end; ++i) y[i] *= part->row_scale[i];
        }
      }
      if (bias) {
        for (std::int64_t i = begin; i < end; ++i) y[i] += floats(bias)[i];
      }
      if (projection.residual != nullptr) {
        float* residual = projection.residual + row * projection.out;
        for (std::int64_t i = begin; i < end; ++i) residual[i] += y[i];
      }
    }
  }

  const ModelSpec& spec_;
  const BaseWeights& base_;
  std::span<const float> inverse_frequencies_;
  ThreadPool& threads_;
  const StepScratch& scratch_;
  std::span<const RowGroup> groups_;
  std::int64_t rows_;
  std::int64_t max_adapter_rank_;
};

/// Fills an outcome from the marks of the group's rows, its hidden rows, and its logits [rows, vocabulary] (null: none
/// wanted).
void conclude(const ModelSpec& spec, const StepScratch& scratch, const RowGroup& group, const float* logits,
              std::int64_t logit_rows, StepOutcome& outcome) {
  outcome = StepOutcome{};
  int bad_layer = kNoBadLayer;
  for (std::int64_t row = group.first; row < group.first + group.rows; ++row) {
    bad_layer = std::min(bad_layer, scratch.bad_layer[static_cast<std::size_t>(row)]);
  }
  if (bad_layer == kNoBadLayer && !group.sequence->hidden_rows.empty()) {
    const auto count = static_cast<std::int64_t>(group.sequence->hidden_rows.size()) * spec.hidden;
    if (!all_finite(group.sequence->hidden, count)) bad_layer = spec.layers;
  }
  const std::int64_t vocabulary = spec.vocabulary;
  if (bad_layer == kNoBadLayer && logits != nullptr) {
    bool finite = true;
    if (group.sequence->logits != nullptr) finite = all_finite(logits, logit_rows * vocabulary);
    if (finite && group.sequence->sample) {
      const float* last = logits + (logit_rows - 1) * vocabulary;
      outcome.sampled = sample({last, static_cast<std::size_t>(vocabulary)}, group.sequence->rules, scratch.sampling);
      finite = outcome.sampled.finite;
    }
    if (!finite) bad_layer = spec.layers;
  }
  outcome.finite = bad_layer == kNoBadLayer;
  outcome.bad_layer = outcome.finite ? 0 : bad_layer;
}

}  // namespace

StepScratch carve_scratch(const ModelSpec& spec, const StepLimits& limits, Carver& carver) {
  const auto rows = static_cast<std::size_t>(std::max(limits.prefill_chunk_tokens, limits.max_batch_sequences));
  const auto take = [&](std::string_view name, std::size_t count, std::int64_t each) {
    return carver.take_array<float>(name, count * static_cast<std::size_t>(each));
  };
  const std::int64_t widest =
      packed_columns(std::max({spec.hidden, spec.query_width(), spec.mlp, spec.delta.value_width()}));
  StepScratch scratch;
  scratch.residual = take("residual", rows, spec.hidden);
  scratch.normed = take("normed", rows, spec.hidden);
  scratch.packed = take("packed", rows, widest);
  scratch.packed_nibbles = take("packed nibbles", rows, widest);
  if (spec.output_gate) scratch.query_gate = take("query and gate", rows, spec.query_rows());
  scratch.query = take("query", rows, spec.query_width());
  scratch.key = take("key", rows, spec.kv_width());
  scratch.value = take("value", rows, spec.kv_width());
  scratch.attended = take("attended", rows, spec.query_width());
  scratch.gate = take("gate", rows, spec.mlp);
  scratch.up = take("up", rows, spec.mlp);
  scratch.projected = take("projected", rows, spec.hidden);
  scratch.lora = take("lora", rows, std::int64_t{kMostProjections} * limits.max_adapter_rank);
  scratch.delta = carve_delta_scratch(spec.delta, rows, carver);
  scratch.cosine = take("cosine", rows, spec.rotated_size() / 2);
  scratch.sine = take("sine", rows, spec.rotated_size() / 2);
  scratch.head_input = take("head input", rows, spec.hidden);
  scratch.logits = take("logits", static_cast<std::size_t>(limits.max_batch_sequences), spec.vocabulary);
  scratch.sampling = take("sampling", sample_scratch_floats(spec.vocabulary), 1);
  scratch.bad_layer = carver.take_array<int>("bad layer", rows);
  return scratch;
}

void run_step(const DecoderView& decoder, ThreadPool& threads, const StepScratch& scratch,
              std::span<const RowGroup> groups, std::span<RowGroup> head_groups, int max_adapter_rank,
              std::span<StepOutcome> outcomes) {
  Step step(decoder, threads, scratch, groups, max_adapter_rank);
  step.run_layers();

  // Logits go to the caller's rows where one sequence wants them (prefill), else to scratch: then one row a sequence.
  const std::int64_t vocabulary = decoder.spec.vocabulary;
  const bool straight = groups.size() == 1 && groups[0].sequence->logits != nullptr;
  std::int64_t head_rows = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const StepSequence& sequence = *groups[g].sequence;
    head_groups[g] = groups[g];
    head_groups[g].first = head_rows;
    head_groups[g].rows = sequence.logits != nullptr ? groups[g].rows : (sequence.sample ? 1 : 0);
    head_rows += head_groups[g].rows;
  }
  float* logits = straight ? groups[0].sequence->logits : scratch.logits.data();
  if (head_rows > 0) step.head(head_groups.first(groups.size()), groups, head_rows, logits);

  for (const RowGroup& group : groups) step.hidden_rows(group);

  for (std::size_t g = 0; g < groups.size(); ++g) {
    const RowGroup& group = head_groups[g];
    const float* own = group.rows == 0 ? nullptr : logits + group.first * vocabulary;
    if (own != nullptr && !straight && group.sequence->logits != nullptr) {
      std::copy_n(own, group.rows * vocabulary, group.sequence->logits);
    }
    conclude(decoder.spec, scratch, groups[g], own, group.rows, outcomes[g]);
  }
}

}  // namespace duet::host
