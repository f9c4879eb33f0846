// The CUDA backend: owns the arena, the stream, the pinned mirrors and the graphs; its steps are decoder_step.
#include "cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/adapters.h"
#include "cuda/card.h"
#include "cuda/check.h"
#include "cuda/decoder_step.h"
#include "cuda/device.h"
#include "cuda/step_graphs.h"
#include "cuda/weights.h"
#include "duet/error.h"
#include "engine/step_checks.h"

namespace duet::cuda {
namespace {

KvType kv_type_of(KvStorage storage) {
  switch (storage) {
    case KvStorage::f16:
      return KvType::f16;
    case KvStorage::bf16:
      return KvType::bf16;
    case KvStorage::int8:
      return KvType::int8;
    case KvStorage::f32:
      break;
  }
  throw Error(Code::unsupported, "A card holds keys and values in f16, bf16 or int8 and was asked for f32",
              "Leave the KV type at auto");
}

/// Taken before loading, so that a card that is too full is said with numbers.
DeviceMemory take_arena(const Plan& plan) {
  const CardMemory memory = card_memory();
  if (plan.arena_bytes > memory.free)
    throw Error(Code::no_room,
                fmt::format("The plan needs {} of the card beside its context, and {} are free ({} in use)",
                            human_bytes(plan.arena_bytes), human_bytes(memory.free), human_bytes(memory.used)),
                "Close other programs that use the card (nvidia-smi lists them), or lower --kv-tokens");
  return allocate_device(plan.arena_bytes);
}

bool all_finite(const float* values, std::int64_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const Plan& plan);

  std::string description() const override {
    const Card& card = the_card();
    return fmt::format("cuda ({}, sm_{}{}, {} multiprocessors)", card.name, card.major, card.minor,
                       card.multiprocessors);
  }
  void load_weights(int base, const WeightSource& source, const LoadProgress& progress) override;
  void start() override;
  void load_adapter(int model, int slot, const AdapterSource& source, float scale) override;
  void drop_adapter(int model, int slot) override { slot_at(model, slot).loaded = false; }
  StepOutcome prefill(int model, const StepSequence& sequence) override;
  std::optional<double> idle_before_last_step() const override { return idle_; }
  void decode(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes) override;

 private:
  struct ModelParts {
    StepScratch scratch;
    ModelState state;
    std::vector<AdapterSlot> slots;
    StepGraphs graphs;
    KvPool kv;
  };

  const PlannedModel& planned(int model) const { return plan_.models.at(static_cast<std::size_t>(model)); }
  const ModelSpec& spec_of(const PlannedModel& model) const {
    return plan_.bases[static_cast<std::size_t>(model.base)].spec;
  }
  AdapterSlot& slot_at(int model, int slot) {
    return models_.at(static_cast<std::size_t>(model)).slots.at(static_cast<std::size_t>(slot));
  }
  DecoderView view_of(int model) const;

  void check_wishes(int model, const StepSequence& sequence);
  void write_row(StepRow& row, const StepSequence& sequence, std::size_t index, std::int32_t first_page) const;
  void write_pages(const StepSequence& sequence);
  void write_sampling(SampleRow& row, const StepSequence& sequence);
  void upload();
  void download(int rows, int sampled_rows);
  void read_logits(const StepSequence& sequence, const float* device, std::int64_t rows, std::int64_t vocabulary) const;
  StepOutcome conclude(int model, const StepSequence& sequence, int first_row, int rows, int sampled_row) const;

  Plan plan_;
  DeviceMemory arena_;
  StreamHandle stream_;
  PinnedMemory input_memory_, output_memory_;
  StepInput input_;    // In pinned memory, at the offsets of every model's scratch.input.
  StepOutput output_;  // Likewise.
  std::vector<PinnedMemory> host_embeddings_;
  std::vector<BaseWeights> bases_;
  std::vector<ModelParts> models_;

  // Begin and end of the step and of the one before it, on the card's clock.
  EventHandle begun_, ended_[2];
  int turn_ = 0;
  bool stepped_ = false;
  std::optional<double> idle_;

  // Only until `start`.
  PinnedMemory load_memory_[2];
  EventHandle copied_[2];
  std::size_t load_bytes_ = 0;

  // Of the step being written.
  std::size_t pages_used_ = 0, history_used_ = 0, biases_used_ = 0;
};

// ---- start ----

CudaBackend::CudaBackend(const Plan& plan) : plan_(plan), arena_(take_arena(plan)), stream_(make_stream()) {
  begun_ = make_timer_event();
  for (EventHandle& event : ended_) event = make_timer_event();
  auto* const arena = static_cast<std::byte*>(arena_.get());

  Carver input_size, output_size;
  (void)carve_input(plan_.limits, input_size);
  (void)carve_output(plan_.limits, output_size);
  input_memory_ = allocate_pinned(input_size.used());
  output_memory_ = allocate_pinned(output_size.used());
  Carver input(input_size.used(), static_cast<std::byte*>(input_memory_.get()));
  Carver output(output_size.used(), static_cast<std::byte*>(output_memory_.get()));
  input_ = carve_input(plan_.limits, input);
  output_ = carve_output(plan_.limits, output);

  for (const PlannedBase& base : plan_.bases) {
    std::byte* embedding = nullptr;
    if (base.embedding_on_host) {
      host_embeddings_.push_back(allocate_pinned(base.tensors.front().bytes));
      embedding = static_cast<std::byte*>(host_embeddings_.back().get());
    }
    bases_.push_back(bind_weights(base, arena, embedding));
    Carver counting;
    load_bytes_ = std::max(load_bytes_, carve_staging(base.spec, counting).raw.size());
    Carver staging(plan_.scratch.bytes, arena + plan_.scratch.offset);
    load_bytes_ = std::max(load_bytes_, carve_staging(base.spec, staging).raw.size());
  }
  for (int turn = 0; turn < 2; ++turn) {
    load_memory_[turn] = allocate_pinned(load_bytes_);
    copied_[turn] = make_event();
  }

  for (const PlannedModel& model : plan_.models) {
    const ModelSpec& spec = spec_of(model);
    ModelParts parts;
    Carver scratch(plan_.scratch.bytes, arena + plan_.scratch.offset);
    parts.scratch = carve_scratch(spec, plan_.limits, scratch);
    Carver state(model.state.bytes, arena + model.state.offset);
    parts.state = carve_state(spec, plan_.limits, static_cast<int>(model.adapter_slots.size()), state);
    DUET_CUDA(cudaMemsetAsync(arena + model.state.offset, 0, model.state.bytes, stream_.get()));
    parts.slots.resize(model.adapter_slots.size());
    parts.kv = {.pool = arena + plan_.pages.offset,
                .page_bytes = plan_.page_bytes,
                .tokens_per_page = static_cast<std::int32_t>(model.tokens_per_page),
                .layers = spec.layers,
                .kv_heads = spec.kv_heads,
                .head_size = spec.head_size,
                .type = kv_type_of(plan_.kv_storage)};
    if (!attend_supports(parts.kv, spec.query_heads))
      throw Error(Code::unsupported,
                  fmt::format("The card has no attention for heads of size {} (model \"{}\"); it takes multiples of 8 "
                              "from 8 to 256",
                              spec.head_size, model.name),
                  "Pass --device host");
    const std::vector<float> frequencies = inverse_frequencies(spec.rope, spec.head_size);
    DUET_CUDA(cudaMemcpyAsync(parts.state.inverse_frequencies.data(), frequencies.data(),
                              frequencies.size() * sizeof(float), cudaMemcpyHostToDevice, stream_.get()));
    DUET_CUDA(cudaStreamSynchronize(stream_.get()));
    models_.push_back(std::move(parts));
  }
}

void CudaBackend::load_weights(int base, const WeightSource& source, const LoadProgress& progress) {
  check_source(plan_, base, source);
  const PlannedBase& planned_base = plan_.bases[static_cast<std::size_t>(base)];
  Carver carver(plan_.scratch.bytes, static_cast<std::byte*>(arena_.get()) + plan_.scratch.offset);
  LoadBuffers buffers;
  buffers.staging = carve_staging(planned_base.spec, carver);
  buffers.stream = stream_.get();
  for (int turn = 0; turn < 2; ++turn) {
    buffers.pinned[turn] = {static_cast<std::byte*>(load_memory_[turn].get()), buffers.staging.raw.size()};
    buffers.copied[turn] = copied_[turn].get();
  }
  cuda::load_weights(planned_base, source, buffers, bases_[static_cast<std::size_t>(base)], progress);
}

void CudaBackend::start() {
  for (int turn = 0; turn < 2; ++turn) {
    load_memory_[turn] = {};
    copied_[turn] = {};
  }
  // Rows that are not sampled are copied down too.
  const std::span<SampledRow> sampled = models_.front().scratch.output.sampled;
  DUET_CUDA(cudaMemsetAsync(sampled.data(), 0, sampled.size_bytes(), stream_.get()));
  for (std::size_t model = 0; model < models_.size(); ++model)
    models_[model].graphs = StepGraphs(view_of(static_cast<int>(model)), models_[model].scratch,
                                       plan_.limits.max_batch_sequences, !models_[model].slots.empty(), stream_.get());
  const auto used = process_bytes();
  if (used && *used > plan_.budget)
    throw Error(
        Code::no_room,
        fmt::format("The card shows {} in use by this program, over the budget of {}: the plan's {} and {} that "
                    "the driver added",
                    human_bytes(*used), human_bytes(plan_.budget), human_bytes(plan_.total_bytes()),
                    human_bytes(*used - std::min(*used, plan_.total_bytes()))),
        fmt::format("Lower --kv-tokens, or raise --budget to {}MiB", (*used >> 20U) + 1));
}

DecoderView CudaBackend::view_of(int model) const {
  const PlannedModel& planned_model = planned(model);
  const ModelSpec& spec = spec_of(planned_model);
  const ModelParts& parts = models_[static_cast<std::size_t>(model)];
  return {.spec = spec,
          .base = bases_[static_cast<std::size_t>(planned_model.base)],
          .adapters = {parts.state.table.data(), static_cast<int>(places_of(spec))},
          .inverse_frequencies = parts.state.inverse_frequencies.data(),
          .kv = parts.kv,
          .counters = parts.state.counters.data(),
          .attention_counters = parts.state.attention_counters.data(),
          .sample_counters = parts.state.sample_counters.data(),
          .max_context_tokens = plan_.limits.max_context_tokens,
          .max_adapter_rank = plan_.limits.max_adapter_rank,
          .max_batch_sequences = plan_.limits.max_batch_sequences};
}

// ---- adapters ----

void CudaBackend::load_adapter(int model, int slot, const AdapterSource& source, float scale) {
  check_adapter_fits(plan_, model, slot, source);
  const PlannedModel& planned_model = planned(model);
  const ModelSpec& spec = spec_of(planned_model);
  ModelParts& parts = models_[static_cast<std::size_t>(model)];
  slot_at(model, slot).loaded = false;
  std::byte* const region =
      static_cast<std::byte*>(arena_.get()) + planned_model.adapter_slots[static_cast<std::size_t>(slot)].offset;
  const std::size_t places = places_of(spec);
  slot_at(model, slot) =
      cuda::load_adapter(source, scale, spec, bases_[static_cast<std::size_t>(planned_model.base)], region,
                         parts.state.table.subspan(static_cast<std::size_t>(slot) * places, places), stream_.get());
}

void CudaBackend::check_wishes(int model, const StepSequence& sequence) {
  if (!sequence.hidden_rows.empty())
    throw Error(Code::unsupported, "The CUDA backend gives no hidden rows yet, which Kev's head reads",
                "Use the host backend");
  if (sequence.adapter_slot < 0) return;
  const AdapterSlot& slot = slot_at(model, sequence.adapter_slot);
  if (!slot.loaded)
    throw Error(Code::internal,
                fmt::format("Adapter slot {} of model \"{}\" is empty", sequence.adapter_slot, planned(model).name));
  if (slot.has_dora) check_dora_scale(slot.load_scale, sequence.adapter_scale);
}

// ---- a step's input ----

void CudaBackend::write_row(StepRow& row, const StepSequence& sequence, std::size_t index,
                            std::int32_t first_page) const {
  row = {.active = 1,
         .token = sequence.tokens[index],
         .position = static_cast<std::int32_t>(sequence.first_position + static_cast<std::int64_t>(index)),
         .first_page = first_page,
         .adapter_slot = sequence.adapter_slot,
         .adapter_scale = sequence.adapter_scale};
}

void CudaBackend::write_pages(const StepSequence& sequence) {
  const std::size_t count = std::min(sequence.pages.size(), input_.pages.size() - pages_used_);
  std::copy_n(sequence.pages.begin(), count, input_.pages.begin() + static_cast<std::ptrdiff_t>(pages_used_));
  pages_used_ += count;
}

void CudaBackend::write_sampling(SampleRow& row, const StepSequence& sequence) {
  row = {};
  if (!sequence.sample) return;
  const SampleRules& rules = sequence.rules;
  const Sampling& sampling = *rules.sampling;
  row.active = 1;
  row.temperature = sampling.temperature;
  row.top_p = sampling.top_p;
  row.min_p = sampling.min_p;
  row.repetition_penalty = sampling.repetition_penalty;
  row.uniform = uniform_of(sampling.seed, rules.draw);
  row.usable_vocabulary = rules.usable_vocabulary;
  row.top_k = sampling.top_k;
  row.logprobs = std::clamp(rules.logprobs, 0, kMaxLogprobs);
  if (sampling.repetition_penalty != 1) {
    const std::size_t count = std::min(rules.history.size(), input_.history.size() - history_used_);
    row.first_history = static_cast<std::int32_t>(history_used_);
    row.history_count = static_cast<std::int32_t>(count);
    std::copy_n(rules.history.begin(), count, input_.history.begin() + static_cast<std::ptrdiff_t>(history_used_));
    history_used_ += count;
  }
  if (sampling.logit_bias.size() > kMostBiases)
    throw Error(Code::unsupported,
                fmt::format("A request has {} logit biases; a step on the card takes {}", sampling.logit_bias.size(),
                            kMostBiases),
                "Name fewer ids");
  row.first_bias = static_cast<std::int32_t>(biases_used_);
  row.bias_count = static_cast<std::int32_t>(sampling.logit_bias.size());
  for (const LogitBias& bias : sampling.logit_bias) input_.biases[biases_used_++] = {bias.id, bias.bias};
}

void CudaBackend::upload() {
  const StepInput& device = models_.front().scratch.input;  // The same place for every model.
  const auto* const begin = reinterpret_cast<const std::byte*>(input_.rows.data());
  const auto* const end = reinterpret_cast<const std::byte*>(input_.pages.data() + pages_used_);
  DUET_CUDA(cudaMemcpyAsync(device.rows.data(), begin, static_cast<std::size_t>(end - begin), cudaMemcpyHostToDevice,
                            stream_.get()));
  if (history_used_ > 0)
    DUET_CUDA(cudaMemcpyAsync(device.history.data(), input_.history.data(), history_used_ * sizeof(std::int32_t),
                              cudaMemcpyHostToDevice, stream_.get()));
  if (biases_used_ > 0)
    DUET_CUDA(cudaMemcpyAsync(device.biases.data(), input_.biases.data(), biases_used_ * sizeof(SampleBias),
                              cudaMemcpyHostToDevice, stream_.get()));
  pages_used_ = history_used_ = biases_used_ = 0;
  DUET_CUDA(cudaEventRecord(begun_.get(), stream_.get()));
}

/// Waits for the step: the only synchronisation in it.
void CudaBackend::download(int rows, int sampled_rows) {
  const StepOutput& device = models_.front().scratch.output;
  DUET_CUDA(cudaEventRecord(ended_[turn_].get(), stream_.get()));
  DUET_CUDA(cudaMemcpyAsync(output_.bad_layer.data(), device.bad_layer.data(),
                            static_cast<std::size_t>(rows) * sizeof(std::int32_t), cudaMemcpyDeviceToHost,
                            stream_.get()));
  if (sampled_rows > 0)
    DUET_CUDA(cudaMemcpyAsync(output_.sampled.data(), device.sampled.data(),
                              static_cast<std::size_t>(sampled_rows) * sizeof(SampledRow), cudaMemcpyDeviceToHost,
                              stream_.get()));
  DUET_CUDA(cudaStreamSynchronize(stream_.get()));
  float milliseconds = 0;
  if (stepped_) DUET_CUDA(cudaEventElapsedTime(&milliseconds, ended_[turn_ ^ 1].get(), begun_.get()));
  idle_ = stepped_ ? std::optional(double{milliseconds} * 1e-3) : std::nullopt;
  stepped_ = true;
  turn_ ^= 1;
}

void CudaBackend::read_logits(const StepSequence& sequence, const float* device, std::int64_t rows,
                              std::int64_t vocabulary) const {
  DUET_CUDA(cudaMemcpyAsync(sequence.logits, device, static_cast<std::size_t>(rows * vocabulary) * sizeof(float),
                            cudaMemcpyDeviceToHost, stream_.get()));
}

StepOutcome CudaBackend::conclude(int model, const StepSequence& sequence, int first_row, int rows,
                                  int sampled_row) const {
  const ModelSpec& spec = spec_of(planned(model));
  StepOutcome outcome;
  std::int32_t bad_layer = kNoBadLayer;
  for (int row = first_row; row < first_row + rows; ++row)
    bad_layer = std::min(bad_layer, output_.bad_layer[static_cast<std::size_t>(row)]);
  if (bad_layer == kNoBadLayer && sequence.logits != nullptr &&
      !all_finite(sequence.logits, static_cast<std::int64_t>(rows) * spec.vocabulary))
    bad_layer = spec.layers;
  if (bad_layer == kNoBadLayer && sequence.sample) {
    const SampledRow& from = output_.sampled[static_cast<std::size_t>(sampled_row)];
    if (from.finite == 0) bad_layer = spec.layers;
    outcome.sampled.finite = from.finite != 0;
    outcome.sampled.id = from.id;
    outcome.sampled.logprob = from.logprob;
    outcome.sampled.best_count = std::clamp(from.best_count, 0, kMaxLogprobs);
    for (int i = 0; i < outcome.sampled.best_count; ++i)
      outcome.sampled.best[static_cast<std::size_t>(i)] = {from.best_ids[i], from.best_logprobs[i]};
  }
  outcome.finite = bad_layer == kNoBadLayer;
  outcome.bad_layer = outcome.finite ? 0 : bad_layer;
  return outcome;
}

// ---- steps ----

StepOutcome CudaBackend::prefill(int model, const StepSequence& sequence) {
  check_prefill(plan_, model, sequence);
  check_wishes(model, sequence);
  const auto rows = static_cast<int>(sequence.tokens.size());
  pages_used_ = history_used_ = biases_used_ = 0;
  for (std::size_t i = 0; i < sequence.tokens.size(); ++i) write_row(input_.rows[i], sequence, i, 0);
  write_pages(sequence);
  write_sampling(input_.sample_rows[0], sequence);
  upload();

  const DecoderView decoder = view_of(model);
  const StepScratch& scratch = models_[static_cast<std::size_t>(model)].scratch;
  const StepShape shape{
      .rows = rows, .lora = sequence.adapter_slot >= 0, .prefill = true, .first_position = sequence.first_position};
  launch_layers(decoder, scratch, shape, stream_.get());
  if (sequence.logits != nullptr) {
    const std::int64_t vocabulary = decoder.spec.vocabulary;
    for (int first = 0; first < rows; first += plan_.limits.max_batch_sequences) {
      const int count = std::min(plan_.limits.max_batch_sequences, rows - first);
      launch_head(decoder, scratch, shape, first, count, stream_.get());
      StepSequence part = sequence;
      part.logits += first * vocabulary;
      read_logits(part, scratch.logits.data(), count, vocabulary);
    }
  }
  if (sequence.sample) {
    launch_head(decoder, scratch, shape, rows - 1, 1, stream_.get());
    launch_sampling(decoder, scratch, 1, stream_.get());
  }
  download(rows, sequence.sample ? 1 : 0);
  return conclude(model, sequence, 0, rows, 0);
}

void CudaBackend::decode(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes) {
  if (sequences.empty()) return;
  check_decode(plan_, model, sequences, outcomes);
  bool lora = false;
  bool logits = false;  // Then there is no graph: they are copied out on the way.
  for (const StepSequence& sequence : sequences) {
    check_wishes(model, sequence);
    lora = lora || sequence.adapter_slot >= 0;
    logits = logits || sequence.logits != nullptr;
  }
  const ModelParts& parts = models_[static_cast<std::size_t>(model)];
  const auto count = static_cast<int>(sequences.size());
  const int rows = logits ? count : parts.graphs.rows_for(count);

  pages_used_ = history_used_ = biases_used_ = 0;
  for (int i = 0; i < rows; ++i) {
    const auto index = static_cast<std::size_t>(i);
    input_.rows[index] = {
        .active = 0, .token = 0, .position = 0, .first_page = 0, .adapter_slot = -1, .adapter_scale = 0};
    input_.sample_rows[index] = {};
    if (i >= count) continue;
    write_row(input_.rows[index], sequences[index], 0, static_cast<std::int32_t>(pages_used_));
    write_pages(sequences[index]);
    write_sampling(input_.sample_rows[index], sequences[index]);
  }
  upload();

  if (logits) {
    const DecoderView decoder = view_of(model);
    const StepShape shape{.rows = rows, .lora = lora, .prefill = false, .first_position = 0};
    launch_layers(decoder, parts.scratch, shape, stream_.get());
    launch_head(decoder, parts.scratch, shape, 0, rows, stream_.get());
    launch_sampling(decoder, parts.scratch, rows, stream_.get());
    const std::int64_t vocabulary = decoder.spec.vocabulary;
    for (int i = 0; i < count; ++i) {
      const StepSequence& sequence = sequences[static_cast<std::size_t>(i)];
      if (sequence.logits != nullptr)
        read_logits(sequence, parts.scratch.logits.data() + i * vocabulary, 1, vocabulary);
    }
  } else {
    parts.graphs.launch(rows, lora, stream_.get());
  }
  download(rows, rows);
  for (int i = 0; i < count; ++i)
    outcomes[static_cast<std::size_t>(i)] = conclude(model, sequences[static_cast<std::size_t>(i)], i, 1, i);
}

}  // namespace

std::optional<std::string> why_unavailable() { return why_no_card(); }

BackendFacts cuda_facts(KvStorage kv_storage) {
  return {.name = "cuda",
          .kv_storage = kv_storage,
          .own_memory = true,
          .context_bytes = the_card().context_bytes,
          .model_context_bytes = &graph_bytes,
          .model_state_bytes = &state_bytes,
          .scratch_bytes = &scratch_bytes};
}

std::unique_ptr<Backend> make_cuda_backend(const Plan& plan) { return std::make_unique<CudaBackend>(plan); }

}  // namespace duet::cuda
