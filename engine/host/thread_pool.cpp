#include "engine/host/thread_pool.h"

#include <algorithm>

#if defined(__linux__)
#include <sched.h>
#endif

namespace duet::host {
namespace {

constexpr int kSpinsBeforeSleep = 2000;  // Some 30-100 microseconds: longer than the serial parts between two jobs.

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

std::uint64_t job_of(std::uint64_t state) { return state >> 32; }
std::int64_t next_of(std::uint64_t state) { return static_cast<std::int64_t>(state & 0xFFFFFFFFU); }
bool being_set_up(std::uint64_t state) { return (job_of(state) & 1U) != 0; }

}  // namespace

int available_cores() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  state_.fetch_add(std::uint64_t{2} << 32);  // A new number, so that sleepers see a change.
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::start(std::int64_t count, std::int64_t grain, Call call, void* context) {
  grain = std::max<std::int64_t>(grain, 1);
  const std::uint64_t set_up = (job_of(state_.load(std::memory_order_relaxed)) + 1) << 32;
  state_.store(set_up);
  call_.store(call, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  count_.store(count, std::memory_order_release);
  grain_.store(grain, std::memory_order_release);
  finished_items_.store(0, std::memory_order_relaxed);
  const std::uint64_t ready = set_up + (std::uint64_t{1} << 32);
  state_.store(ready);
  state_.notify_all();

  take_ranges(ready);
  for (int spins = 0; finished_items_.load(std::memory_order_acquire) != count; ++spins) {
    if (spins < kSpinsBeforeSleep) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
}

/// Takes and computes ranges of the job that `state` names until none is left; says whether it got any.
bool ThreadPool::take_ranges(std::uint64_t state) {
  const std::uint64_t job = job_of(state);
  const Call call = call_.load(std::memory_order_acquire);
  void* const context = context_.load(std::memory_order_acquire);
  const std::int64_t count = count_.load(std::memory_order_acquire);
  const std::int64_t grain = grain_.load(std::memory_order_acquire);
  bool took_any = false;
  while (job_of(state) == job && next_of(state) < count) {
    const std::int64_t first = next_of(state);
    const std::int64_t last = std::min(first + grain, count);
    const std::uint64_t taken = (job << 32) | static_cast<std::uint64_t>(last);
    if (!state_.compare_exchange_weak(state, taken)) continue;
    call(context, first, last);
    finished_items_.fetch_add(last - first, std::memory_order_release);
    took_any = true;
    state = state_.load();
  }
  return took_any;
}

void ThreadPool::work() {
  std::uint64_t seen = state_.load();
  int spins = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const std::uint64_t state = state_.load();
    if (job_of(state) != job_of(seen) && !being_set_up(state)) {
      seen = state;
      if (take_ranges(state)) spins = 0;
      continue;
    }
    if (++spins < kSpinsBeforeSleep) {
      pause_briefly();
    } else {
      state_.wait(state);  // Returns at the next change, or at once when it has changed already.
    }
  }
}

}  // namespace duet::host
