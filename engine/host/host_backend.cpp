// The host backend: owns the arena, the threads and the views into the arena; its steps are host_step.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <vector>

#include "duet/error.h"
#include "engine/backend.h"
#include "engine/host/encoder_step.h"
#include "engine/host/host_arena.h"
#include "engine/host/host_kernels.h"
#include "engine/host/host_step.h"
#include "engine/host/host_weights.h"
#include "engine/host/thread_pool.h"
#include "engine/step_checks.h"

namespace duet {
namespace host {
namespace {

constexpr int kMostThreads = 256;
constexpr std::int64_t kNoState = -1;

std::size_t scratch_bytes(const ModelSpec& spec, const StepLimits& limits) {
  Carver counting;
  if (spec.kind == ModelKind::encoder)
    (void)carve_encoder_scratch(spec, counting);
  else
    (void)carve_scratch(spec, limits, counting);
  return counting.used();
}

class HostBackend final : public Backend {
 public:
  HostBackend(const Plan& plan, const HostOptions& options)
      : plan_(plan),
        threads_(std::clamp(options.threads > 0 ? options.threads : available_cores(), 1, kMostThreads)),
        arena_(plan.arena_bytes) {
    for (const PlannedBase& base : plan_.bases) {
      const bool encodes = base.spec.kind == ModelKind::encoder;
      bases_.push_back({{std::vector<Matrix>(places_of(base.spec))},
                        inverse_frequencies(base.spec.rope, base.spec.rotated_size()),
                        encodes ? rotary_tables(base.spec) : RotaryTables{}});
      bind_weights(base, bases_.back().weights);
    }
    for (const PlannedModel& model : plan_.models) {
      const ModelSpec& spec = spec_of(model);
      Carver carver(plan_.scratch.bytes, arena_.data() + plan_.scratch.offset);
      models_.emplace_back();
      models_.back().adapters.resize(model.adapter_slots.size());
      models_.back().state_ends.resize(model.state_slots.size(), kNoState);
      if (spec.kind == ModelKind::encoder)
        models_.back().encoder_scratch = carve_encoder_scratch(spec, carver);
      else
        models_.back().scratch = carve_scratch(spec, plan_.limits, carver);
      for (HostAdapter& adapter : models_.back().adapters) adapter.places.resize(places_of(spec));
    }
    groups_.resize(static_cast<std::size_t>(std::max(plan_.limits.max_batch_sequences, 1)));
    head_groups_.resize(groups_.size());
  }

  std::string description() const override {
    return fmt::format("host ({} thread{}, {})", threads_.threads(), threads_.threads() == 1 ? "" : "s",
                       instruction_set_name());
  }

  void load_weights(int base, const WeightSource& source, const LoadProgress& progress) override;
  void load_adapter(int model, int slot, const AdapterSource& source, float scale) override;
  void drop_adapter(int model, int slot) override { adapter_at(model, slot).loaded = false; }

  StepOutcome prefill(int model, const StepSequence& sequence) override {
    check_prefill(plan_, model, sequence);
    StepOutcome outcome;
    run(model, {&sequence, 1}, {&outcome, 1});
    return outcome;
  }

  void decode(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes) override {
    check_decode(plan_, model, sequences, outcomes);
    if (!sequences.empty()) run(model, sequences, outcomes);
  }

  void encode(int model, std::span<const EncoderRow> rows, std::span<StepOutcome> outcomes) override {
    check_encode(plan_, model, rows, outcomes);
    const PlannedModel& planned = plan_.models[static_cast<std::size_t>(model)];
    const BaseState& base = bases_[static_cast<std::size_t>(planned.base)];
    const EncoderView encoder{spec_of(planned), base.weights, base.rotary};
    for (std::size_t i = 0; i < rows.size(); ++i)
      run_encoder_row(encoder, threads_, models_[static_cast<std::size_t>(model)].encoder_scratch, rows[i],
                      outcomes[i]);
  }

 private:
  struct BaseState {
    BaseWeights weights;
    std::vector<float> inverse_frequencies;
    RotaryTables rotary;  // Of encoders.
  };
  struct ModelState {
    StepScratch scratch;                   // Of a decoder,
    EncoderScratch encoder_scratch;        // or of an encoder.
    std::vector<HostAdapter> adapters;     // By slot.
    std::vector<std::int64_t> state_ends;  // By state slot: the position behind the last token it took in.
  };

  const ModelSpec& spec_of(const PlannedModel& model) const {
    return plan_.bases[static_cast<std::size_t>(model.base)].spec;
  }

  void bind_weights(const PlannedBase& base, BaseWeights& weights) const {
    for (std::size_t i = 0; i < base.tensors.size(); ++i) {
      const TensorRow& row = base.tensors[i].row;
      weights.places[place_of(row.part, row.layer)] =
          view_of(row.rows, row.columns, base.tensors[i].storage, arena_.data() + base.regions[i].offset);
    }
    if (base.spec.tied_head) weights.places[place_of(Part::head, -1)] = weights.at(Part::embedding, -1);
  }

  HostAdapter& adapter_at(int model, int slot) {
    auto& adapters = models_.at(static_cast<std::size_t>(model)).adapters;
    if (slot < 0 || static_cast<std::size_t>(slot) >= adapters.size())
      throw Error(Code::internal, fmt::format("Model \"{}\" has no adapter slot {}",
                                              plan_.models[static_cast<std::size_t>(model)].name, slot));
    return adapters[static_cast<std::size_t>(slot)];
  }

  void bind_state(int model, const StepSequence& sequence, RowGroup& group);
  RowGroup group_of(int model, const StepSequence& sequence, std::int64_t first_row);
  void run(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes);

  Plan plan_;
  ThreadPool threads_;
  HostArena arena_;
  std::vector<BaseState> bases_;
  std::vector<ModelState> models_;
  std::vector<RowGroup> groups_, head_groups_;  // Work space of a step.
};

void HostBackend::load_weights(int base, const WeightSource& source, const LoadProgress& progress) {
  const PlannedBase& planned = plan_.bases.at(static_cast<std::size_t>(base));
  const std::vector<WeightTensor>& tensors = source.tensors();
  check_source(plan_, base, source);
  std::uint64_t total = 0;
  for (const WeightTensor& tensor : tensors) total += tensor.bytes;

  std::mutex mutex;
  std::exception_ptr failure;
  std::uint64_t done = 0;
  std::atomic<bool> stop{false};
  threads_.run(static_cast<std::int64_t>(tensors.size()), 1, [&](std::int64_t first, std::int64_t last) {
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last) && !stop; ++i) {
      try {
        source.read(i, {arena_.data() + planned.regions[i].offset, planned.regions[i].bytes});
        const std::lock_guard lock(mutex);
        done += tensors[i].bytes;
        if (progress) progress(done, total);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

void HostBackend::load_adapter(int model, int slot, const AdapterSource& source, float scale) {
  check_adapter_fits(plan_, model, slot, source);
  HostAdapter& adapter = adapter_at(model, slot);
  const PlannedModel& planned = plan_.models[static_cast<std::size_t>(model)];
  const Region& region = planned.adapter_slots[static_cast<std::size_t>(slot)];
  const AdapterSpec& spec = source.spec();
  adapter.loaded = false;
  std::byte* memory = arena_.data() + region.offset;
  bind_adapter(spec, spec_of(planned), source.name(), memory, adapter);
  adapter.load_scale = scale;
  for (std::size_t i = 0; i < spec.tensors.size(); ++i) {
    source.read(i, {memory + spec.tensors[i].offset, spec.tensors[i].bytes});
  }
  compute_dora_scales(spec, bases_[static_cast<std::size_t>(planned.base)].weights, memory, adapter);
  adapter.loaded = true;
}

/// A state takes each token in once: a step that does not begin where the last one ended would spoil it unseen.
void HostBackend::bind_state(int model, const StepSequence& sequence, RowGroup& group) {
  const PlannedModel& planned = plan_.models[static_cast<std::size_t>(model)];
  const auto slot = static_cast<std::size_t>(sequence.state_slot);
  const std::int64_t end = models_[static_cast<std::size_t>(model)].state_ends[slot];
  group.state = {.start = reinterpret_cast<float*>(arena_.data() + planned.state_slots[slot].offset),
                 .begins = sequence.first_position == 0};
  if (!group.state.begins && sequence.first_position != end)
    throw Error(Code::internal, fmt::format("State slot {} of model \"{}\" ends at position {}; a step begins at {}",
                                            slot, planned.name, end, sequence.first_position));
}

RowGroup HostBackend::group_of(int model, const StepSequence& sequence, std::int64_t first_row) {
  const PlannedModel& planned = plan_.models[static_cast<std::size_t>(model)];
  const ModelSpec& spec = spec_of(planned);
  const auto tokens = static_cast<std::int64_t>(sequence.tokens.size());
  RowGroup group{.first = first_row, .rows = tokens, .sequence = &sequence};
  group.kv = {.pool = arena_.data() + plan_.pages.offset,
              .page_bytes = plan_.page_bytes,
              .tokens_per_page = planned.tokens_per_page,
              .kv_heads = spec.kv_heads,
              .head_size = spec.head_size,
              .pages = sequence.pages};
  if (sequence.state_slot >= 0) bind_state(model, sequence, group);
  if (sequence.adapter_slot < 0) return group;
  const HostAdapter& adapter = adapter_at(model, sequence.adapter_slot);
  if (!adapter.loaded)
    throw Error(Code::internal,
                fmt::format("Adapter slot {} of model \"{}\" is empty", sequence.adapter_slot, planned.name));
  if (adapter.has_dora) check_dora_scale(adapter.load_scale, sequence.adapter_scale);
  group.adapter = &adapter;
  return group;
}

void HostBackend::run(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes) {
  const PlannedModel& planned = plan_.models.at(static_cast<std::size_t>(model));
  const BaseState& base = bases_[static_cast<std::size_t>(planned.base)];
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    groups_[i] = group_of(model, sequences[i], rows);
    rows += groups_[i].rows;
  }
  for (const StepSequence& sequence : sequences) {
    if (sequence.state_slot < 0) continue;
    models_[static_cast<std::size_t>(model)].state_ends[static_cast<std::size_t>(sequence.state_slot)] =
        sequence.first_position + static_cast<std::int64_t>(sequence.tokens.size());
  }
  const DecoderView decoder{spec_of(planned), base.weights, base.inverse_frequencies};
  run_step(decoder, threads_, models_[static_cast<std::size_t>(model)].scratch,
           std::span<const RowGroup>(groups_).first(sequences.size()), head_groups_, plan_.limits.max_adapter_rank,
           outcomes);
}

}  // namespace
}  // namespace host

BackendFacts host_facts() {
  return {.name = "host",
          .kv_storage = KvStorage::f32,
          .encoders = true,
          .hybrids = true,
          .context_bytes = 0,
          .scratch_bytes = &host::scratch_bytes};
}

std::unique_ptr<Backend> make_host_backend(const Plan& plan, const HostOptions& options) {
  return std::make_unique<host::HostBackend>(plan, options);
}

}  // namespace duet
