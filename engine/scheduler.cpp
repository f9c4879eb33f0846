// Who starts next.
#include "engine/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace duet {

namespace {

constexpr std::size_t kReservedRequests = 256;

bool goes_before(const Waiting& a, const Waiting& b) {
  return a.priority != b.priority ? a.priority > b.priority : a.arrival < b.arrival;
}

}  // namespace

Scheduler::Scheduler(int models, int max_passed_over)
    : queues_(static_cast<std::size_t>(models)), max_passed_over_(max_passed_over) {
  for (Queue& queue : queues_) queue.reserve(kReservedRequests);
}

void Scheduler::push(const Waiting& request) {
  Queue& queue = queues_[static_cast<std::size_t>(request.model)];
  queue.insert(std::upper_bound(queue.begin(), queue.end(), request, goes_before), request);
}

bool Scheduler::remove(Ticket ticket) {
  for (Queue& queue : queues_) {
    const auto found =
        std::find_if(queue.begin(), queue.end(), [&](const Waiting& request) { return request.ticket == ticket; });
    if (found == queue.end()) continue;
    queue.erase(found);
    return true;
  }
  return false;
}

std::optional<Waiting> Scheduler::pick(const Room& room) {
  const std::uint64_t last_arrival = barrier();
  Queue* best_queue = nullptr;
  Queue::iterator best;
  for (std::size_t model = 0; model < queues_.size(); ++model) {
    const bool is_current = static_cast<int>(model) == room.current_model;
    if (room.only_current && !is_current) continue;
    Queue& queue = queues_[model];
    const auto first = std::find_if(queue.begin(), queue.end(), [&](const Waiting& request) {
      return request.arrival <= last_arrival && request.pages <= room.pages;
    });
    if (first == queue.end()) continue;
    const bool better = best_queue == nullptr ||
                        (is_current ? first->priority >= best->priority
                                    : goes_before(*first, *best) &&
                                          !(best->model == room.current_model && best->priority == first->priority));
    if (better) {
      best_queue = &queue;
      best = first;
    }
  }
  if (best_queue == nullptr) return std::nullopt;
  count_passing(best->arrival);
  return take_out(*best_queue, best);
}

std::optional<Waiting> Scheduler::take_expired(double now) {
  for (Queue& queue : queues_) {
    const auto found = std::find_if(queue.begin(), queue.end(), [&](const Waiting& request) {
      return request.deadline > 0 && request.deadline <= now;
    });
    if (found != queue.end()) return take_out(queue, found);
  }
  return std::nullopt;
}

int Scheduler::size() const {
  std::size_t sum = 0;
  for (const Queue& queue : queues_) sum += queue.size();
  return static_cast<int>(sum);
}

std::uint64_t Scheduler::barrier() const {
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (const Queue& queue : queues_)
    for (const Waiting& request : queue)
      if (request.passed_over >= max_passed_over_) oldest = std::min(oldest, request.arrival);
  return oldest;
}

void Scheduler::count_passing(std::uint64_t started_arrival) {
  for (Queue& queue : queues_)
    for (Waiting& request : queue)
      if (request.arrival < started_arrival) most_passed_over_ = std::max(most_passed_over_, ++request.passed_over);
}

Waiting Scheduler::take_out(Queue& queue, Queue::iterator at) {
  const Waiting request = *at;
  queue.erase(at);
  return request;
}

}  // namespace duet
