#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/adapter.h"
#include "engine/plan.h"
#include "engine/sequence.h"

namespace duet {

/// Which adapter lies in which slot of which model, and how many requests use it. Slots change in two steps, because
/// the device takes its time between them: reserve, then confirm or abandon. Not thread-safe.
class AdapterTable {
 public:
  /// `plan` must outlive the table.
  explicit AdapterTable(const Plan& plan);

  /// The adapter of a request: `name`, "none" for the base alone. Throws Error: not_found, or unsupported when
  /// `request_scale` is not 1 and the adapter has DoRA modules.
  AdapterChoice choose(int model, const std::string& name, double request_scale) const;

  /// A request starts or ends using its choice.
  void add_user(int model, const AdapterChoice& choice);
  void drop_user(int model, const AdapterChoice& choice);

  /// An empty slot, kept for this adapter, which nobody can choose yet. Throws Error: invalid_argument for a name that
  /// is taken or impossible, no_room when no slot is free or the adapter is larger than one.
  int reserve(int model, const std::string& name, const AdapterSpec& spec, double scale);
  /// The slot of an adapter nobody uses, which nobody can choose from now on. Throws Error: not_found, or
  /// invalid_argument while requests use it.
  int retire(int model, const std::string& name);
  void make_ready(int model, int slot);  ///< The adapter lies in it.
  void make_empty(int model, int slot);  ///< Nothing lies in it.

 private:
  struct Slot {
    enum class State { empty, changing, ready };
    State state = State::empty;
    std::string name;
    std::string content_hash;
    double scale = 1.0;
    bool has_dora = false;
    int users = 0;  ///< Requests, waiting or in progress.
  };

  const std::string& model_name(int model) const { return plan_.models[static_cast<std::size_t>(model)].name; }
  std::vector<Slot>& slots_of(int model) { return slots_[static_cast<std::size_t>(model)]; }
  Slot& slot_at(int model, int slot) { return slots_of(model)[static_cast<std::size_t>(slot)]; }
  int find(int model, std::string_view name) const;  ///< -1: none.

  const Plan& plan_;
  std::vector<std::vector<Slot>> slots_;  ///< [models][slots]
};

}  // namespace duet
