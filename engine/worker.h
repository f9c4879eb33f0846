#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/kv_pages.h"
#include "engine/prefix_cache.h"
#include "engine/runtime.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace duet {

/// What the runtime's thread does, without the thread: admits, steps, preempts, finishes (rules in runtime.h). One call
/// of `step` makes at most one step of the backend; between two calls requests may be added and cancelled, and the
/// backend's adapters changed. Not thread-safe.
class Worker {
 public:
  using Finished = std::function<void(Sequence&)>;

  /// `finished` receives each sequence once its answer is complete; it holds nothing any more then.
  Worker(Backend& backend, const Plan& plan, const std::vector<RuntimeModel>& models, const RuntimeOptions& options,
         Finished finished);

  void add(std::unique_ptr<Sequence> sequence);
  void cancel(Ticket ticket);  ///< Nothing happens when it has ended.
  void cancel_all();
  bool idle() const { return sequences_.empty(); }
  void step();

  double now() const;         ///< Seconds on the steady clock.
  Counters counters() const;  ///< Without `requests` and what only the runtime sees.

 private:
  using Sequences = std::vector<Sequence*>;

  const PlannedModel& planned(const Sequence& sequence) const;
  std::int64_t pages_for(const Sequence& sequence, std::int64_t tokens) const;
  bool reuses_prefixes(const Sequence& sequence) const;

  // worker.cpp: who runs, and with which pages
  void wait_in_queue(Sequence& sequence);
  void end_expired();
  void admit();
  void start(Sequence& sequence);
  void hold_pages(Sequence& sequence);
  bool grow(Sequence& sequence, std::int64_t tokens);
  void give_up_pages(Sequence& sequence);
  void preempt(Sequence& sequence);
  void leave(Sequence& sequence);
  void end(Sequence& sequence);
  void fail(Sequence& sequence, Code code, Finish finish, std::string message);
  int choose_model();
  bool switch_to(int model);
  void count_switch(double began);

  // worker_steps.cpp: what a step computes
  void step_model(int model);
  void prefill(Sequence& sequence);
  void encode(Sequence& sequence);
  void decode();
  void decode_one_by_one();
  StepSequence step_of(Sequence& sequence, std::int64_t count);
  void add_readout(Sequence& sequence, std::int64_t count, StepSequence& step);
  void take_outcome(Sequence& sequence, std::int64_t count, const StepOutcome& outcome);
  void fail_by_exception(Sequence& sequence);
  void fail_non_finite(Sequence& sequence, std::int64_t count, int layer);
  void remember_full_pages(Sequence& sequence);
  void finish_piece(Sequence& sequence);

  Backend& backend_;
  const Plan& plan_;
  const std::vector<RuntimeModel>& models_;
  RuntimeOptions options_;
  Finished finished_;

  KvPages pages_;
  PrefixCache cache_;
  Scheduler scheduler_;
  std::unordered_map<Ticket, std::unique_ptr<Sequence>> sequences_;  ///< Waiting and in progress.
  Sequences running_;                                                ///< In progress, most important first.
  std::vector<int> running_of_model_;                                ///< [models]
  std::vector<std::vector<int>> free_states_;                        ///< [models] slots nobody holds.

  int turn_model_ = -1;
  int turn_steps_ = 0;
  int last_model_ = -1;  ///< Of the last step.
  bool last_was_prefill_ = false;
  double last_step_ended_ = 0;
  bool more_was_waiting_ = false;     ///< When the last step ended: what follows did not wait for a request.
  std::vector<double> switch_idle_;   ///< Seconds of the last kSwitchesKept switches, a ring.
  std::vector<double> switch_ranks_;  ///< Scratch of their percentiles.

  // Scratch of one step, reserved at construction.
  Sequences batch_;
  std::vector<StepSequence> batch_steps_;
  std::vector<StepOutcome> outcomes_;
  std::vector<int> hidden_rows_;

  Counters counters_;
};

}  // namespace duet
