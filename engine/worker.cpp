// Who runs, and with which pages.
#include "engine/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <numeric>
#include <utility>

#include "duet/error.h"

namespace duet {

namespace {

std::int64_t most_tokens_per_page(const Plan& plan) {
  std::int64_t most = 1;
  for (const PlannedModel& model : plan.models) most = std::max(most, model.tokens_per_page);
  return most;
}

bool more_important(const Sequence* a, const Sequence* b) {
  return a->request.priority != b->request.priority ? a->request.priority > b->request.priority
                                                    : a->arrival < b->arrival;
}

constexpr std::size_t kSwitchesKept = 1024;
constexpr std::size_t kSwitchesBetweenRanks = 32;  // Percentiles are looked up again so often.

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Worker::Worker(Backend& backend, const Plan& plan, const std::vector<RuntimeModel>& models,
               const RuntimeOptions& options, Finished finished)
    : backend_(backend),
      plan_(plan),
      models_(models),
      options_(options),
      finished_(std::move(finished)),
      pages_(plan.page_count),
      cache_(pages_, most_tokens_per_page(plan)),
      scheduler_(static_cast<int>(plan.models.size()), options.max_passed_over),
      running_of_model_(plan.models.size(), 0) {
  const auto most = static_cast<std::size_t>(plan.limits.max_batch_sequences);
  for (const PlannedModel& model : plan.models) {
    free_states_.emplace_back(model.state_slots.size());
    std::iota(free_states_.back().rbegin(), free_states_.back().rend(), 0);
  }
  running_.reserve(most);
  batch_.reserve(most);
  batch_steps_.reserve(most);
  outcomes_.reserve(most);
  switch_idle_.reserve(kSwitchesKept);
  switch_ranks_.reserve(kSwitchesKept);
}

double Worker::now() const { return clock_seconds(); }

const PlannedModel& Worker::planned(const Sequence& sequence) const {
  return plan_.models[static_cast<std::size_t>(sequence.request.model)];
}

std::int64_t Worker::pages_for(const Sequence& sequence, std::int64_t tokens) const {
  if (sequence.request.batch != nullptr) return 0;  // An encoder keeps nothing.
  const std::int64_t size = planned(sequence).tokens_per_page;
  return (tokens + size - 1) / size;
}

/// A hybrid's pages hold only what its attention layers need. What its other layers know of a prefix is a state that
/// nobody keeps yet, so a prefix is computed again, however much of it lies in pages.
bool Worker::reuses_prefixes(const Sequence& sequence) const { return planned(sequence).state_slots.empty(); }

// ---- in and out ----

void Worker::add(std::unique_ptr<Sequence> sequence) {
  Sequence& added = *sequence;
  sequences_.emplace(added.ticket, std::move(sequence));
  wait_in_queue(added);
}

void Worker::cancel(Ticket ticket) {
  const auto found = sequences_.find(ticket);
  if (found == sequences_.end()) return;
  fail(*found->second, Code::cancelled, Finish::cancelled, "The request was cancelled.");
}

void Worker::cancel_all() {
  while (!sequences_.empty()) cancel(sequences_.begin()->first);
}

void Worker::wait_in_queue(Sequence& sequence) {
  scheduler_.push({.ticket = sequence.ticket,
                   .model = sequence.request.model,
                   .priority = sequence.request.priority,
                   .arrival = sequence.arrival,
                   .deadline = sequence.deadline,
                   .pages = pages_for(sequence, static_cast<std::int64_t>(sequence.tokens.size())),
                   .passed_over = sequence.passed_over});
}

/// Takes a sequence out of progress; its pages and its state go.
void Worker::leave(Sequence& sequence) {
  give_up_pages(sequence);
  if (sequence.state_slot >= 0)
    free_states_[static_cast<std::size_t>(sequence.request.model)].push_back(std::exchange(sequence.state_slot, -1));
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  --running_of_model_[static_cast<std::size_t>(sequence.request.model)];
  sequence.in_progress = false;
}

/// Hands the finished answer out and forgets the sequence.
void Worker::end(Sequence& sequence) {
  if (sequence.in_progress)
    leave(sequence);
  else
    scheduler_.remove(sequence.ticket);
  if (sequence.identity >= 0) cache_.drop_identity(sequence.identity);
  Answer& answer = sequence.answer;
  answer.prompt_ids = std::move(sequence.request.prompt_ids);
  const double ended = now();
  answer.timings.total = ended - sequence.submitted;
  if (sequence.started < 0) answer.timings.queued = answer.timings.total;
  if (sequence.first_token >= 0) answer.timings.decode = ended - sequence.first_token;
  if (answer.code == Code::ok)
    ++counters_.finished;
  else if (answer.code == Code::cancelled)
    ++counters_.cancelled;
  else
    ++counters_.failed;
  const auto node = sequences_.extract(sequence.ticket);
  finished_(*node.mapped());
}

void Worker::fail(Sequence& sequence, Code code, Finish finish, std::string message) {
  sequence.answer.code = code;
  sequence.answer.finish = finish;
  sequence.answer.message = std::move(message);
  try {
    release_text(sequence);
  } catch (...) {
    sequence.sink = nullptr;  // The request has failed already; a sink that throws too adds nothing.
  }
  end(sequence);
}

void Worker::end_expired() {
  const double time = now();
  const auto expire = [this](Sequence& sequence) {
    fail(sequence, Code::deadline, Finish::deadline,
         fmt::format("The deadline of {} s passed after {} tokens of the answer.", sequence.request.deadline,
                     sequence.answer.tokens.size()));
  };
  while (const auto waiting = scheduler_.take_expired(time)) expire(*sequences_.at(waiting->ticket));
  for (std::size_t i = running_.size(); i-- > 0;)
    if (running_[i]->deadline > 0 && running_[i]->deadline <= time) expire(*running_[i]);
}

// ---- who starts ----

void Worker::admit() {
  while (running_.size() < static_cast<std::size_t>(plan_.limits.max_batch_sequences)) {
    const bool only_current = options_.kv_policy == KvPolicy::clear && !running_.empty();
    const auto picked =
        scheduler_.pick({.current_model = turn_model_, .only_current = only_current, .pages = cache_.available()});
    if (!picked) return;
    Sequence& sequence = *sequences_.at(picked->ticket);
    sequence.passed_over = picked->passed_over;
    start(sequence);
  }
}

void Worker::start(Sequence& sequence) {
  if (running_.empty()) {
    turn_model_ = sequence.request.model;
    turn_steps_ = 0;
  }
  if (sequence.request.batch == nullptr) hold_pages(sequence);
  if (sequence.started < 0) {
    sequence.started = now();
    sequence.answer.timings.queued = sequence.started - sequence.submitted;
  }
  sequence.in_progress = true;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, more_important), &sequence);
  ++running_of_model_[static_cast<std::size_t>(sequence.request.model)];
}

/// Pages for all tokens the sequence has: remembered ones first, the rest empty.
void Worker::hold_pages(Sequence& sequence) {
  const PlannedModel& model = planned(sequence);
  if (sequence.identity < 0)
    sequence.identity = cache_.hold_identity(model.base, sequence.adapter.content_hash, sequence.adapter.scale);
  const std::int64_t pages = pages_for(sequence, static_cast<std::int64_t>(sequence.tokens.size()));
  sequence.pages.reserve(static_cast<std::size_t>(
      pages_for(sequence, sequence.prompt_tokens + std::int64_t{sequence.request.max_tokens})));

  if (auto& states = free_states_[static_cast<std::size_t>(sequence.request.model)]; !model.state_slots.empty()) {
    assert(!states.empty());  // There are as many as sequences in progress, of all models together.
    sequence.state_slot = states.back();
    states.pop_back();
  }
  // What is read of the prompt is always computed: the last token, whose logits choose the next one, or rows.
  const HiddenRows* readout = sequence.request.readout.get();
  const std::size_t reusable =
      readout == nullptr ? sequence.tokens.size() - 1 : static_cast<std::size_t>(readout->positions.front());
  if (reuses_prefixes(sequence))
    cache_.match(sequence.identity, std::span(sequence.tokens).first(reusable), model.tokens_per_page, sequence.pages);
  sequence.remembered_pages = static_cast<std::int64_t>(sequence.pages.size());
  sequence.computed_tokens = sequence.remembered_pages * model.tokens_per_page;
  while (static_cast<std::int64_t>(sequence.pages.size()) < pages) sequence.pages.push_back(cache_.take());

  if (sequence.preempted) {
    counters_.recomputed_tokens +=
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, sequence.lost_tokens - sequence.computed_tokens));
  } else {
    sequence.answer.cached_tokens += static_cast<int>(sequence.computed_tokens);
    counters_.cached_tokens += static_cast<std::uint64_t>(sequence.computed_tokens);
    counters_.prompt_tokens += static_cast<std::uint64_t>(sequence.prompt_tokens);
  }
}

// ---- pages of sequences in progress ----

/// Makes room for `tokens` tokens, preempting the least important sequence for every page that is missing. False when
/// that was this one.
bool Worker::grow(Sequence& sequence, std::int64_t tokens) {
  while (static_cast<std::int64_t>(sequence.pages.size()) < pages_for(sequence, tokens)) {
    if (const std::int32_t page = cache_.take(); page >= 0) {
      sequence.pages.push_back(page);
      continue;
    }
    preempt(*running_.back());
    if (!sequence.in_progress) return false;
  }
  return true;
}

void Worker::give_up_pages(Sequence& sequence) {
  cache_.release(sequence.pages);
  sequence.pages.clear();
  sequence.remembered_pages = 0;
}

void Worker::preempt(Sequence& sequence) {
  leave(sequence);
  sequence.preempted = true;
  sequence.lost_tokens = std::exchange(sequence.computed_tokens, 0);
  wait_in_queue(sequence);
}

// ---- whose turn it is ----

int Worker::choose_model() {
  const auto count = static_cast<int>(running_of_model_.size());
  const auto in_progress = [&](int model) { return running_of_model_[static_cast<std::size_t>(model)]; };
  const bool others = in_progress(turn_model_) < static_cast<int>(running_.size());
  const bool stays = in_progress(turn_model_) > 0 && (!others || turn_steps_ < options_.steps_per_turn);
  if (!stays) {
    do turn_model_ = (turn_model_ + 1) % count;
    while (in_progress(turn_model_) == 0);
    turn_steps_ = 0;
  }
  ++turn_steps_;
  return turn_model_;
}

/// True when another model computed before.
bool Worker::switch_to(int model) {
  if (model == last_model_) return false;
  const bool switches = last_model_ >= 0;
  if (switches) {
    ++counters_.switches;
    if (options_.kv_policy == KvPolicy::clear) cache_.clear();
  }
  last_model_ = model;
  last_was_prefill_ = false;
  return switches;
}

/// After the first step behind a switch; `began`: when the backend was given it.
void Worker::count_switch(double began) {
  const double idle = backend_.idle_before_last_step().value_or(began - last_step_ended_);
  const auto place = static_cast<std::size_t>((counters_.switches - 1) % kSwitchesKept);
  if (place < switch_idle_.size())
    switch_idle_[place] = idle;
  else
    switch_idle_.push_back(idle);
  counters_.switch_seconds += idle;
  if (switch_idle_.size() >= kSwitchesBetweenRanks && counters_.switches % kSwitchesBetweenRanks != 0) return;
  switch_ranks_ = switch_idle_;
  const auto at = [&](std::size_t percent) {
    const auto ranked = switch_ranks_.begin() + static_cast<std::ptrdiff_t>((switch_ranks_.size() - 1) * percent / 100);
    std::nth_element(switch_ranks_.begin(), ranked, switch_ranks_.end());
    return *ranked;
  };
  counters_.switch_p50 = at(50);
  counters_.switch_p99 = at(99);
}

void Worker::step() {
  end_expired();
  admit();
  if (running_.empty()) return;
  const int model = choose_model();
  const bool switched = switch_to(model);
  const double began = now();
  step_model(model);
  if (switched && more_was_waiting_) count_switch(began);
  last_step_ended_ = now();
  more_was_waiting_ = !idle();
}

Counters Worker::counters() const {
  Counters counters = counters_;
  counters.total_pages = pages_.count();
  counters.free_pages = cache_.available();
  counters.cached_pages = cache_.cached();
  counters.evicted_pages = cache_.evicted();
  counters.active_sequences = static_cast<int>(running_.size());
  counters.waiting = scheduler_.size();
  counters.most_passed_over = scheduler_.most_passed_over();
  return counters;
}

}  // namespace duet
