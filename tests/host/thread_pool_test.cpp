#include "engine/host/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace duet::host {
namespace {

TEST(ThreadPool, ComputesEveryItemOnceWhateverTheGrain) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t count : {0, 1, 7, 1000}) {
      for (const std::int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
        pool.run(count, grain, [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t i = first; i < last; ++i) ++hits[static_cast<std::size_t>(i)];
        });
        for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1) << threads << " " << count << " " << grain;
      }
    }
  }
}

TEST(ThreadPool, RunsManyShortJobsInARow) {
  ThreadPool pool(3);
  std::int64_t total = 0;
  for (int job = 0; job < 20000; ++job) {
    std::atomic<std::int64_t> sum{0};
    pool.run(5, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) sum += i + job;
    });
    total += sum;
  }
  EXPECT_EQ(total, 20000 * 10 + 5 * (std::int64_t{20000} * 19999 / 2));
}

TEST(ThreadPool, WakesThreadsThatSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // Long enough for the other thread to fall asleep.
    std::atomic<bool> other_came{false};
    const std::thread::id caller = std::this_thread::get_id();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    pool.run(2, 1, [&](std::int64_t, std::int64_t) {
      if (std::this_thread::get_id() != caller) other_came = true;
      while (!other_came && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    });
    EXPECT_TRUE(other_came) << round;
  }
}

}  // namespace
}  // namespace duet::host
