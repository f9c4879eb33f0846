// The host backend: owns the arena, the threads and the views into the arena; its steps are host_step.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <vector>

#include "duet/error.h"
#include "engine/backend.h"
#include "engine/host/host_arena.h"
#include "engine/host/host_kernels.h"
#include "engine/host/host_step.h"
#include "engine/host/host_weights.h"
#include "engine/host/thread_pool.h"

namespace duet {
namespace host {
namespace {

constexpr int kMostThreads = 256;

std::size_t scratch_bytes(const ModelSpec& spec, const StepLimits& limits) {
  Carver counting;
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
      bases_.push_back(
          {{std::vector<Matrix>(places_of(base.spec))}, inverse_frequencies(base.spec.rope, base.spec.head_size)});
      bind_weights(base, bases_.back().weights);
    }
    for (const PlannedModel& model : plan_.models) {
      const ModelSpec& spec = spec_of(model);
      Carver carver(plan_.scratch.bytes, arena_.data() + plan_.scratch.offset);
      models_.push_back(
          {carve_scratch(spec, plan_.limits, carver), std::vector<HostAdapter>(model.adapter_slots.size())});
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
    if (sequence.tokens.size() > static_cast<std::size_t>(plan_.limits.prefill_chunk_tokens))
      throw Error(Code::internal, fmt::format("A prefill of {} tokens is longer than the chunk of {}",
                                              sequence.tokens.size(), plan_.limits.prefill_chunk_tokens));
    StepOutcome outcome;
    run(model, {&sequence, 1}, {&outcome, 1});
    return outcome;
  }

  void decode(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes) override {
    if (sequences.size() > static_cast<std::size_t>(plan_.limits.max_batch_sequences) ||
        outcomes.size() != sequences.size())
      throw Error(Code::internal, fmt::format("A decode of {} sequences with {} outcomes; the limit is {}",
                                              sequences.size(), outcomes.size(), plan_.limits.max_batch_sequences));
    for (const StepSequence& sequence : sequences) {
      if (sequence.tokens.size() != 1)
        throw Error(Code::internal,
                    fmt::format("A decode step got {} tokens for one sequence", sequence.tokens.size()));
    }
    if (!sequences.empty()) run(model, sequences, outcomes);
  }

 private:
  struct BaseState {
    BaseWeights weights;
    std::vector<float> inverse_frequencies;
  };
  struct ModelState {
    StepScratch scratch;
    std::vector<HostAdapter> adapters;  // By slot.
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
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < planned.tensors.size(); ++i) {
    if (tensors.size() != planned.tensors.size() || tensors[i].bytes != planned.regions[i].bytes ||
        tensors[i].row.name != planned.tensors[i].row.name)
      throw Error(Code::internal, fmt::format("{} does not hold the tensors it was planned with", source.name()));
    total += tensors[i].bytes;
  }

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
  HostAdapter& adapter = adapter_at(model, slot);
  const PlannedModel& planned = plan_.models[static_cast<std::size_t>(model)];
  const Region& region = planned.adapter_slots[static_cast<std::size_t>(slot)];
  const AdapterSpec& spec = source.spec();
  if (spec.bytes > region.bytes || spec.largest_rank > plan_.limits.max_adapter_rank)
    throw Error(Code::no_room,
                fmt::format("Adapter {} needs {} at rank {}; the slot holds {} and rank {}", source.name(),
                            human_bytes(spec.bytes), spec.largest_rank, human_bytes(region.bytes),
                            plan_.limits.max_adapter_rank),
                "Raise the model's adapter_rank, or name this adapter when the engine opens");
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

/// Checks what the engine core promises: a wrong page or token id here would be a read out of range.
RowGroup HostBackend::group_of(int model, const StepSequence& sequence, std::int64_t first_row) {
  const PlannedModel& planned = plan_.models[static_cast<std::size_t>(model)];
  const ModelSpec& spec = spec_of(planned);
  const auto tokens = static_cast<std::int64_t>(sequence.tokens.size());
  const std::int64_t end = sequence.first_position + tokens;
  const std::int64_t held = static_cast<std::int64_t>(sequence.pages.size()) * planned.tokens_per_page;
  if (tokens < 1 || sequence.first_position < 0 || end > held)
    throw Error(Code::internal, fmt::format("A step of {} tokens from position {} has pages for {} tokens", tokens,
                                            sequence.first_position, held));
  for (const std::int32_t page : sequence.pages) {
    if (page < 0 || page >= plan_.page_count)
      throw Error(Code::internal, fmt::format("Page {} is not in the pool of {}", page, plan_.page_count));
  }
  for (const std::int32_t token : sequence.tokens) {
    if (token < 0 || token >= spec.vocabulary)
      throw Error(Code::invalid_argument,
                  fmt::format("Token id {} is not below the vocabulary of {}", token, spec.vocabulary));
  }

  RowGroup group{.first = first_row, .rows = tokens, .sequence = &sequence};
  group.kv = {.pool = arena_.data() + plan_.pages.offset,
              .page_bytes = plan_.page_bytes,
              .tokens_per_page = planned.tokens_per_page,
              .kv_heads = spec.kv_heads,
              .head_size = spec.head_size,
              .pages = sequence.pages};
  if (sequence.adapter_slot < 0) return group;
  const HostAdapter& adapter = adapter_at(model, sequence.adapter_slot);
  if (!adapter.loaded)
    throw Error(Code::internal,
                fmt::format("Adapter slot {} of model \"{}\" is empty", sequence.adapter_slot, planned.name));
  if (adapter.has_dora && sequence.adapter_scale != adapter.load_scale)
    throw Error(
        Code::unsupported,
        fmt::format("A DoRA adapter loaded with scale {} was asked for with scale {}; its row norms belong to the "
                    "scale it was loaded with",
                    adapter.load_scale, sequence.adapter_scale),
        "Load the adapter a second time under another name with the scale wanted");
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
  const DecoderView decoder{spec_of(planned), base.weights, base.inverse_frequencies};
  run_step(decoder, threads_, models_[static_cast<std::size_t>(model)].scratch,
           std::span<const RowGroup>(groups_).first(sequences.size()), head_groups_, plan_.limits.max_adapter_rank,
           outcomes);
}

}  // namespace
}  // namespace host

BackendFacts host_facts() {
  return {.name = "host", .kv_storage = KvStorage::f32, .context_bytes = 0, .scratch_bytes = &host::scratch_bytes};
}

std::unique_ptr<Backend> make_host_backend(const Plan& plan, const HostOptions& options) {
  return std::make_unique<host::HostBackend>(plan, options);
}

}  // namespace duet
