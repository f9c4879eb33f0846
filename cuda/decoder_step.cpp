#include "cuda/decoder_step.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace duet::cuda {
namespace {

/// y = W x of one matrix of a layer.
struct Output {
  Part part;
  Part bias;  ///< Its own part when there is none of the kind.
  float* y;
  std::int64_t width;
};

class Step {
 public:
  Step(const DecoderView& decoder, const StepScratch& scratch, const StepShape& shape, Stream stream)
      : decoder_(decoder), spec_(decoder.spec), scratch_(scratch), shape_(shape), stream_(stream) {}

  void layers() {
    embed(decoder_.base.at(Part::embedding, -1), rows(), shape_.rows, adapters(), place(Part::embedding, -1),
          scratch_.residual.data(), scratch_.output.bad_layer.data(), stream_);
    for (int layer = 0; layer < spec_.layers; ++layer) {
      attention_block(layer);
      mlp_block(layer);
    }
  }

  void head(int first_row, int count) {
    const Output logits{Part::head, Part::head, scratch_.logits.data(), spec_.vocabulary};
    const Projection to_logits = projection_of({&logits, 1}, -1, spec_.hidden, false, first_row, count);
    normalise(Part::final_norm, -1, spec_.layers - 1, spec_.layers, first_row, to_logits);
    project(to_logits);
  }

 private:
  const StepRow* rows() const { return scratch_.input.rows.data(); }
  AdapterTable adapters() const { return shape_.lora ? decoder_.adapters : AdapterTable{}; }
  static int place(Part part, int layer) { return static_cast<int>(place_of(part, layer)); }
  Marks marks(int layer) const { return {scratch_.output.bad_layer.data(), layer, layer}; }

  /// RMSNorm of residual rows to the rows of `next`. A row that is not finite is marked with `last_writer`, one that
  /// the norm itself spoils with `own_layer`.
  void normalise(Part norm, int layer, int last_writer, int own_layer, int first_row, const Projection& next) {
    cuda::normalise(scratch_.residual.data() + std::int64_t{first_row} * spec_.hidden,
                    decoder_.base.vector(norm, layer), spec_.norm_epsilon, false, rows() + first_row, next.row_count,
                    spec_.hidden, adapters(), place(norm, layer), next.x,
                    {scratch_.output.bad_layer.data() + first_row, last_writer, own_layer}, stream_, beside(next));
  }

  void attention_block(int layer) {
    const std::array<Output, 3> inputs{{
        {Part::query, Part::query_bias, scratch_.query.data(), spec_.query_width()},
        {Part::key, Part::key_bias, scratch_.key.data(), spec_.kv_width()},
        {Part::value, Part::value_bias, scratch_.value.data(), spec_.kv_width()},
    }};
    const Projection to_heads = projection_of(inputs, layer, spec_.hidden, false, 0, shape_.rows);
    normalise(Part::input_norm, layer, layer - 1, layer, 0, to_heads);  // Layer -1 is kLayerEmbedding.
    project(to_heads);
    append_to_pages(layer);
    attend(layer);
    const Output output{Part::output, Part::output_bias, scratch_.residual.data(), spec_.hidden};
    const Projection from_heads = projection_of({&output, 1}, layer, spec_.query_width(), true, 0, shape_.rows);
    prepare(scratch_.attended.data(), shape_.rows, spec_.query_width(), from_heads.x, marks(layer), stream_,
            beside(from_heads));
    project(from_heads);
  }

  void mlp_block(int layer) {
    const std::array<Output, 2> inputs{{
        {Part::gate, Part::gate_bias, scratch_.gate.data(), spec_.mlp},
        {Part::up, Part::up_bias, scratch_.up.data(), spec_.mlp},
    }};
    const Projection to_mlp = projection_of(inputs, layer, spec_.hidden, false, 0, shape_.rows);
    normalise(Part::post_attention_norm, layer, layer, layer, 0, to_mlp);
    project(to_mlp);
    const Output down{Part::down, Part::down_bias, scratch_.residual.data(), spec_.hidden};
    const Projection from_mlp = projection_of({&down, 1}, layer, spec_.mlp, true, 0, shape_.rows);
    swiglu(scratch_.gate.data(), scratch_.up.data(), shape_.rows, spec_.mlp, from_mlp.x, marks(layer), stream_,
           beside(from_mlp));
    project(from_mlp);
  }

  void append_to_pages(int layer) {
    RopeAppend append;
    append.query = scratch_.query.data();
    append.key = scratch_.key.data();
    append.value = scratch_.value.data();
    append.row_count = shape_.rows;
    append.query_heads = spec_.query_heads;
    append.rows = rows();
    append.inverse_frequencies = decoder_.inverse_frequencies;
    append.attention_factor = static_cast<float>(spec_.rope.attention_factor);
    if (spec_.query_key_norm) {
      append.query_norm = decoder_.base.vector(Part::query_norm, layer);
      append.key_norm = decoder_.base.vector(Part::key_norm, layer);
      append.query_norm_place = place(Part::query_norm, layer);
      append.key_norm_place = place(Part::key_norm, layer);
      append.norm_epsilon = spec_.norm_epsilon;
    }
    append.adapters = adapters();
    append.kv = decoder_.kv;
    append.pages = scratch_.input.pages.data();
    append.layer = layer;
    append.marks = marks(layer);
    rope_append(append, stream_);
  }

  void attend(int layer) {
    Attention attention;
    attention.query = scratch_.query.data();
    attention.out = scratch_.attended.data();
    attention.row_count = shape_.rows;
    attention.query_heads = spec_.query_heads;
    attention.rows = rows();
    attention.kv = decoder_.kv;
    attention.pages = scratch_.input.pages.data();
    attention.layer = layer;
    const bool slides = spec_.sliding_window_tokens > 0 && spec_.layer_slides[static_cast<std::size_t>(layer)];
    attention.window_tokens = slides ? spec_.sliding_window_tokens : 0;
    attention.scale = 1.0F / std::sqrt(static_cast<float>(spec_.head_size));
    attention.max_context_tokens = decoder_.max_context_tokens;
    attention.scratch_rows = decoder_.max_batch_sequences;
    attention.partial = scratch_.attention_partial.data();
    attention.counters = decoder_.attention_counters;
    if (shape_.prefill)
      attend_prefill(attention, shape_.first_position, stream_);
    else
      attend_decode(attention, stream_);
  }

  /// All outputs of one input: prepared row i and row i of every y belong to row `first_row` + i of the step.
  Projection projection_of(std::span<const Output> outputs, int layer, std::int64_t columns, bool add, int first_row,
                           int count) const {
    Projection projection;
    projection.part_count = static_cast<int>(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Output& output = outputs[i];
      ProjectionPart& part = projection.parts[i];
      part.weight = decoder_.base.at(output.part, layer);
      part.place = place(output.part, layer);
      if (output.bias != output.part) {
        part.bias = decoder_.base.vector(output.bias, layer);
        part.bias_place = place(output.bias, layer);
      }
      part.y = output.y;
    }
    projection.x = scratch_.prepared_rows();
    projection.row_count = count;
    projection.columns = columns;
    projection.rows = rows() + first_row;
    projection.adapters = adapters();
    projection.lora = scratch_.lora.data();
    projection.max_rank = decoder_.max_adapter_rank;
    projection.add = add;
    projection.partial_sums = scratch_.partial_sums.data();
    projection.counters = decoder_.counters;
    return projection;
  }

  /// What the preparation of few rows also shrinks; many rows are shrunk on their own.
  static const Projection* beside(const Projection& projection) {
    return projection.row_count <= kMostRowsBesideShrink ? &projection : nullptr;
  }

  void project(const Projection& projection) const {
    if (beside(projection) == nullptr) lora_shrink(projection, stream_);
    cuda::project(projection, stream_);
  }

  const DecoderView& decoder_;
  const ModelSpec& spec_;
  const StepScratch& scratch_;
  const StepShape& shape_;
  Stream stream_;
};

}  // namespace

void launch_layers(const DecoderView& decoder, const StepScratch& scratch, const StepShape& shape, Stream stream) {
  Step(decoder, scratch, shape, stream).layers();
}

void launch_head(const DecoderView& decoder, const StepScratch& scratch, const StepShape& shape, int first_row,
                 int rows, Stream stream) {
  Step(decoder, scratch, shape, stream).head(first_row, rows);
}

void launch_sampling(const DecoderView& decoder, const StepScratch& scratch, int rows, Stream stream) {
  sample(scratch.logits.data(), decoder.spec.vocabulary, rows, scratch.input.sample_rows.data(),
         {scratch.input.history.data(), scratch.input.biases.data()}, decoder.sample_counters, scratch.sampling.data(),
         scratch.output.sampled.data(), stream);
}

}  // namespace duet::cuda
