#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

/// The host backend's threads.
namespace duet::host {

/// A fixed set of threads that share out the items of one job at a time. Starting a job allocates nothing. Between
/// jobs the threads spin for some tens of microseconds, then sleep.
///
/// The caller works too, and waits only for ranges that a thread has taken: on a busy machine a thread that wakes late
/// finds nothing left instead of holding the job up. Which thread gets which range is a matter of chance, so a body
/// must compute each item the same way whoever computes it; then results do not depend on the number of threads.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  ///< The caller's included: threads - 1 are started.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(first, last) for disjoint ranges that cover [0, count), each at most `grain` long (or once for all of
  /// it when nobody can help). `body` must not throw and must not start a job. One caller at a time.
  template <class Body>
  void run(std::int64_t count, std::int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    if (count <= 0) return;
    if (workers_.empty() || count <= grain || count > kLargestSharedJob) {
      body(std::int64_t{0}, count);
      return;
    }
    start(
        count, grain,
        [](void* context, std::int64_t first, std::int64_t last) noexcept {
          (*static_cast<Plain*>(context))(first, last);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  static constexpr std::int64_t kLargestSharedJob = std::int64_t{1} << 31;  // Items are counted in 32 bits.
  using Call = void (*)(void* context, std::int64_t first, std::int64_t last) noexcept;

  void start(std::int64_t count, std::int64_t grain, Call call, void* context);
  bool take_ranges(std::uint64_t state);
  void work();

  // The job's number in the upper half (odd: being set up, nothing to take), its first untaken item in the lower. A
  // range is taken by exchanging the whole word, so success proves that the fields below belong to that job.
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::atomic<std::int64_t> finished_items_{0};
  alignas(64) std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<std::int64_t> count_{0};
  std::atomic<std::int64_t> grain_{1};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

/// Cores this process may use, at least 1.
int available_cores();

}  // namespace duet::host
