#include "engine/step_checks.h"

#include <fmt/format.h>

#include "duet/error.h"

namespace duet {
namespace {

const PlannedModel& planned_model(const Plan& plan, int model) {
  return plan.models.at(static_cast<std::size_t>(model));
}

void check_hidden_rows(const StepSequence& sequence) {
  if (!sequence.hidden_rows.empty() && sequence.hidden == nullptr)
    throw Error(Code::internal, "A step wants hidden rows and gives no place for them");
  std::int64_t last = -1;
  for (const int row : sequence.hidden_rows) {
    if (row <= last || static_cast<std::size_t>(row) >= sequence.tokens.size())
      throw Error(Code::internal,
                  fmt::format("Hidden row {} after row {} in a step of {} tokens", row, last, sequence.tokens.size()));
    last = row;
  }
}

void check_sequence(const Plan& plan, int model, const StepSequence& sequence) {
  const PlannedModel& planned = planned_model(plan, model);
  const ModelSpec& spec = plan.bases[static_cast<std::size_t>(planned.base)].spec;
  const auto tokens = static_cast<std::int64_t>(sequence.tokens.size());
  const std::int64_t end = sequence.first_position + tokens;
  const std::int64_t held = static_cast<std::int64_t>(sequence.pages.size()) * planned.tokens_per_page;
  if (tokens < 1 || sequence.first_position < 0 || end > held)
    throw Error(Code::internal, fmt::format("A step of {} tokens from position {} has pages for {} tokens", tokens,
                                            sequence.first_position, held));
  for (const std::int32_t page : sequence.pages) {
    if (page < 0 || page >= plan.page_count)
      throw Error(Code::internal, fmt::format("Page {} is not in the pool of {}", page, plan.page_count));
  }
  const auto slots = static_cast<int>(planned.state_slots.size());
  if (slots == 0 ? sequence.state_slot != -1 : sequence.state_slot < 0 || sequence.state_slot >= slots)
    throw Error(Code::internal,
                fmt::format("Model \"{}\" has {} state slots, not one {}", planned.name, slots, sequence.state_slot));
  for (const std::int32_t token : sequence.tokens) {
    if (token < 0 || token >= spec.vocabulary)
      throw Error(Code::invalid_argument,
                  fmt::format("Token id {} is not below the vocabulary of {}", token, spec.vocabulary));
  }
  check_hidden_rows(sequence);
}

}  // namespace

void check_prefill(const Plan& plan, int model, const StepSequence& sequence) {
  if (sequence.tokens.size() > static_cast<std::size_t>(plan.limits.prefill_chunk_tokens))
    throw Error(Code::internal, fmt::format("A prefill of {} tokens is longer than the chunk of {}",
                                            sequence.tokens.size(), plan.limits.prefill_chunk_tokens));
  check_sequence(plan, model, sequence);
}

void check_decode(const Plan& plan, int model, std::span<const StepSequence> sequences,
                  std::span<const StepOutcome> outcomes) {
  if (sequences.size() > static_cast<std::size_t>(plan.limits.max_batch_sequences) ||
      outcomes.size() != sequences.size())
    throw Error(Code::internal, fmt::format("A decode of {} sequences with {} outcomes; the limit is {}",
                                            sequences.size(), outcomes.size(), plan.limits.max_batch_sequences));
  for (const StepSequence& sequence : sequences) {
    if (sequence.tokens.size() != 1)
      throw Error(Code::internal, fmt::format("A decode step got {} tokens for one sequence", sequence.tokens.size()));
    check_sequence(plan, model, sequence);
  }
  for (std::size_t i = 0; i < sequences.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (sequences[i].state_slot >= 0 && sequences[i].state_slot == sequences[j].state_slot)
        throw Error(Code::internal,
                    fmt::format("Two sequences of a step share state slot {}", sequences[i].state_slot));
}

void check_encode(const Plan& plan, int model, std::span<const EncoderRow> rows,
                  std::span<const StepOutcome> outcomes) {
  const PlannedModel& planned = planned_model(plan, model);
  const ModelSpec& spec = plan.bases[static_cast<std::size_t>(planned.base)].spec;
  const auto refuse = [](std::string what) { throw Error(Code::internal, std::move(what)); };
  if (spec.kind != ModelKind::encoder) refuse(fmt::format("Model \"{}\" is no encoder", planned.name));
  if (rows.empty() || outcomes.size() != rows.size())
    refuse(fmt::format("{} rows to encode with {} outcomes", rows.size(), outcomes.size()));
  for (const EncoderRow& row : rows) {
    if (row.tokens.empty() || row.tokens.size() > static_cast<std::size_t>(spec.max_position_tokens))
      refuse(fmt::format("A row of {} tokens; the longest has {}", row.tokens.size(), spec.max_position_tokens));
    for (const std::int32_t token : row.tokens)
      if (token < 0 || token >= spec.vocabulary)
        throw Error(Code::invalid_argument,
                    fmt::format("Token id {} is not below the vocabulary of {}", token, spec.vocabulary));
    if (row.markers.empty() || row.markers.size() > row.tokens.size() || row.option_logits == nullptr)
      refuse(fmt::format("A row with {} markers", row.markers.size()));
    for (const std::int32_t marker : row.markers)
      if (marker < 0 || static_cast<std::size_t>(marker) >= row.tokens.size())
        refuse(fmt::format("A marker at {} of a row of {} tokens", marker, row.tokens.size()));
    if (row.question_kind < 0 || row.question_kind >= kQuestionKinds)
      refuse(fmt::format("Question kind {}", row.question_kind));
  }
}

void check_adapter_fits(const Plan& plan, int model, int slot, const AdapterSource& source) {
  const PlannedModel& planned = planned_model(plan, model);
  if (slot < 0 || static_cast<std::size_t>(slot) >= planned.adapter_slots.size())
    throw Error(Code::internal, fmt::format("Model \"{}\" has no adapter slot {}", planned.name, slot));
  const Region& region = planned.adapter_slots[static_cast<std::size_t>(slot)];
  const AdapterSpec& spec = source.spec();
  if (spec.bytes > region.bytes || spec.largest_rank > plan.limits.max_adapter_rank)
    throw Error(Code::no_room,
                fmt::format("Adapter {} needs {} at rank {}; the slot holds {} and rank {}", source.name(),
                            human_bytes(spec.bytes), spec.largest_rank, human_bytes(region.bytes),
                            plan.limits.max_adapter_rank),
                "Raise the model's adapter_rank, or name this adapter when the engine opens");
}

void check_source(const Plan& plan, int base, const WeightSource& source) {
  const PlannedBase& planned = plan.bases.at(static_cast<std::size_t>(base));
  const std::vector<WeightTensor>& tensors = source.tensors();
  bool same = tensors.size() == planned.tensors.size();
  for (std::size_t i = 0; same && i < tensors.size(); ++i)
    same = tensors[i].bytes == planned.tensors[i].bytes && tensors[i].row.name == planned.tensors[i].row.name;
  if (!same)
    throw Error(Code::internal, fmt::format("{} does not hold the tensors it was planned with", source.name()));
}

void check_dora_scale(float load_scale, float asked_scale) {
  if (load_scale == asked_scale) return;
  throw Error(
      Code::unsupported,
      fmt::format("A DoRA adapter loaded with scale {} was asked for with scale {}; its row norms belong to the "
                  "scale it was loaded with",
                  load_scale, asked_scale),
      "Load the adapter a second time under another name with the scale wanted");
}

}  // namespace duet
