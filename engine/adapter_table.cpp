// Adapters and their slots.
#include "engine/adapter_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "duet/error.h"

namespace duet {

AdapterTable::AdapterTable(const Plan& plan) : plan_(plan) {
  for (const PlannedModel& model : plan.models) slots_.emplace_back(model.adapter_slots.size());
}

int AdapterTable::find(int model, std::string_view name) const {
  const std::vector<Slot>& slots = slots_[static_cast<std::size_t>(model)];
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& slot) {
    return slot.state != Slot::State::empty && slot.name == name;
  });
  return found == slots.end() ? -1 : static_cast<int>(found - slots.begin());
}

// ---- requests ----

AdapterChoice AdapterTable::choose(int model, const std::string& name, double request_scale) const {
  if (name == "none") return {};
  const std::vector<Slot>& slots = slots_[static_cast<std::size_t>(model)];
  const int index = find(model, name);
  if (index < 0 || slots[static_cast<std::size_t>(index)].state != Slot::State::ready) {
    std::string loaded;
    for (const Slot& other : slots)
      if (other.state == Slot::State::ready) loaded += fmt::format("\"{}\", ", other.name);
    throw Error(Code::not_found, fmt::format("Model \"{}\" has no adapter \"{}\" loaded", model_name(model), name),
                fmt::format("Choose one of {}\"none\", or load it first", loaded));
  }
  const Slot& slot = slots[static_cast<std::size_t>(index)];
  if (slot.has_dora && request_scale != 1.0)
    throw Error(Code::unsupported,
                fmt::format("Adapter \"{}\" has DoRA modules, whose norms hold for the scale it was loaded with; "
                            "adapter_scale is {}",
                            name, request_scale),
                "Leave adapter_scale at 1, or load the adapter again with another scale");
  return {.slot = index,
          .name = name,
          .content_hash = slot.content_hash,
          .scale = static_cast<float>(slot.scale * request_scale)};
}

void AdapterTable::add_user(int model, const AdapterChoice& choice) {
  if (choice.slot >= 0) ++slot_at(model, choice.slot).users;
}

void AdapterTable::drop_user(int model, const AdapterChoice& choice) {
  if (choice.slot >= 0) --slot_at(model, choice.slot).users;
}

// ---- slots ----

int AdapterTable::reserve(int model, const std::string& name, const AdapterSpec& spec, double scale) {
  if (name.empty() || name == "none")
    throw Error(Code::invalid_argument, fmt::format("An adapter cannot be called \"{}\"", name));
  if (!std::isfinite(scale))
    throw Error(Code::invalid_argument, fmt::format("Adapter \"{}\" has scale {}", name, scale));
  if (find(model, name) >= 0)
    throw Error(Code::invalid_argument,
                fmt::format("Model \"{}\" already has an adapter \"{}\"", model_name(model), name),
                "Drop it first, or choose another name");
  std::vector<Slot>& slots = slots_of(model);
  const auto slot =
      std::find_if(slots.begin(), slots.end(), [](const Slot& each) { return each.state == Slot::State::empty; });
  if (slot == slots.end())
    throw Error(Code::no_room,
                fmt::format("Adapter \"{}\" finds no free slot: model \"{}\" has {}, all taken", name,
                            model_name(model), slots.size()),
                "Drop another adapter, or open the engine with more adapter slots");
  const auto index = static_cast<std::size_t>(slot - slots.begin());
  const std::size_t slot_bytes = plan_.models[static_cast<std::size_t>(model)].adapter_slots[index].bytes;
  const std::string larger = fmt::format("Open the engine with adapter_rank {} or more", spec.largest_rank);
  if (spec.bytes > slot_bytes)
    throw Error(Code::no_room,
                fmt::format("Adapter \"{}\" takes {} bytes and a slot of model \"{}\" has {}", name, spec.bytes,
                            model_name(model), slot_bytes),
                larger);
  if (spec.largest_rank > plan_.limits.max_adapter_rank)
    throw Error(Code::no_room,
                fmt::format("Adapter \"{}\" has rank {} and the plan keeps scratch for rank {}", name,
                            spec.largest_rank, plan_.limits.max_adapter_rank),
                larger);
  *slot = {.state = Slot::State::changing,
           .name = name,
           .content_hash = spec.content_hash,
           .scale = scale,
           .has_dora = spec.has_dora(),
           .users = 0};
  return static_cast<int>(index);
}

int AdapterTable::retire(int model, const std::string& name) {
  const int index = find(model, name);
  if (index < 0 || slot_at(model, index).state != Slot::State::ready)
    throw Error(Code::not_found, fmt::format("Model \"{}\" has no adapter \"{}\" loaded", model_name(model), name));
  Slot& slot = slot_at(model, index);
  if (slot.users > 0)
    throw Error(Code::invalid_argument,
                fmt::format("Adapter \"{}\" of model \"{}\" is in use by {} request{}", name, model_name(model),
                            slot.users, slot.users == 1 ? "" : "s"),
                "Wait for them or cancel them first");
  slot.state = Slot::State::changing;
  return index;
}

void AdapterTable::make_ready(int model, int slot) { slot_at(model, slot).state = Slot::State::ready; }
void AdapterTable::make_empty(int model, int slot) { slot_at(model, slot) = {}; }

}  // namespace duet
