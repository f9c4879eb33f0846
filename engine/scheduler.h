#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "duet/engine.h"

namespace duet {

/// A request that waits.
struct Waiting {
  Ticket ticket = 0;
  int model = 0;
  int priority = 0;           ///< Higher first.
  std::uint64_t arrival = 0;  ///< Unique; smaller came first. A request that waits again keeps it.
  double deadline = 0;        ///< Seconds on the caller's clock; 0: none.
  std::int64_t pages = 0;     ///< It cannot start with fewer.
  int passed_over = 0;
};

/// What could start now.
struct Room {
  int current_model = -1;     ///< Its requests are preferred over those of equal priority; -1: none.
  bool only_current = false;  ///< Requests of other models cannot start now.
  std::int64_t pages = 0;     ///< Requests that need more cannot start now.
};

/// Who starts next: a queue per model, ordered by priority, then arrival. Among equal priorities requests of the model
/// that computes now go first, to save switches. A request that cannot start now lets others go before it.
///
/// A request is *passed over* whenever one that arrived after it starts. That happens at most `max_passed_over` times:
/// then nothing that arrived later starts before it has, even if room must first become free. So neither low priority,
/// grouping nor a large need starves anybody.
///
/// A pure data structure, not thread-safe.
class Scheduler {
 public:
  Scheduler(int models, int max_passed_over);

  void push(const Waiting& request);
  bool remove(Ticket ticket);  ///< False when it does not wait.

  /// Takes out the request that starts now, if one may.
  std::optional<Waiting> pick(const Room& room);

  /// Takes out one request whose deadline is at or before `now`, if there is one.
  std::optional<Waiting> take_expired(double now);

  int size() const;
  int most_passed_over() const { return most_passed_over_; }  ///< Of any request, ever.

 private:
  using Queue = std::vector<Waiting>;

  /// Arrival of the oldest request that must not be passed over again; the largest number when there is none.
  std::uint64_t barrier() const;
  void count_passing(std::uint64_t started_arrival);
  static Waiting take_out(Queue& queue, Queue::iterator at);

  std::vector<Queue> queues_;  ///< [models]
  int max_passed_over_;
  int most_passed_over_ = 0;
};

}  // namespace duet
