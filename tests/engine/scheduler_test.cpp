#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace duet {
namespace {

constexpr int kLaya = 0, kKev = 1;
constexpr std::int64_t kManyPages = 1000;

Waiting request(Ticket ticket, int model, int priority = 0, std::int64_t pages = 1) {
  return {.ticket = ticket,
          .model = model,
          .priority = priority,
          .arrival = ticket,
          .deadline = 0,
          .pages = pages,
          .passed_over = 0};
}

Ticket pick(Scheduler& scheduler, int current = -1, std::int64_t pages = kManyPages, bool only_current = false) {
  const auto picked = scheduler.pick({.current_model = current, .only_current = only_current, .pages = pages});
  return picked ? picked->ticket : 0;
}

TEST(Scheduler, PriorityThenArrival) {
  Scheduler scheduler(2, 100);
  scheduler.push(request(1, kLaya));
  scheduler.push(request(2, kKev, 5));
  scheduler.push(request(3, kLaya, 5));
  scheduler.push(request(4, kKev));
  EXPECT_EQ(pick(scheduler), 2U);
  EXPECT_EQ(pick(scheduler), 3U);
  EXPECT_EQ(pick(scheduler), 1U);
  EXPECT_EQ(pick(scheduler), 4U);
  EXPECT_EQ(pick(scheduler), 0U);
}

TEST(Scheduler, GroupsNeighboursOfTheCurrentModelWithinAPriority) {
  Scheduler scheduler(2, 100);
  scheduler.push(request(1, kKev));
  scheduler.push(request(2, kLaya));
  scheduler.push(request(3, kKev, 1));
  scheduler.push(request(4, kLaya));
  EXPECT_EQ(pick(scheduler, kLaya), 3U) << "grouping does not overrule priority";
  EXPECT_EQ(pick(scheduler, kLaya), 2U);
  EXPECT_EQ(pick(scheduler, kLaya), 4U);
  EXPECT_EQ(pick(scheduler, kLaya), 1U);
  EXPECT_EQ(scheduler.most_passed_over(), 3) << "kev's first request, by all that came later";
}

/// Four clients in a loop on one model, one request of the other: it starts after at most `bound` that came later.
void starts_within_the_bound(int busy, int lonely, int priority_of_busy) {
  constexpr int kBound = 8;
  Scheduler scheduler(2, kBound);
  Ticket next = 0;
  for (int client = 0; client < 4; ++client) scheduler.push(request(++next, busy, priority_of_busy));
  const Ticket lonely_ticket = ++next;
  scheduler.push(request(lonely_ticket, lonely));
  int later = 0;
  for (int i = 0; i < 100; ++i) {
    const Ticket picked = pick(scheduler, busy);
    ASSERT_NE(picked, 0U);
    if (picked == lonely_ticket) {
      EXPECT_LE(later, kBound);
      EXPECT_EQ(scheduler.most_passed_over(), kBound);
      return;
    }
    later += picked > lonely_ticket ? 1 : 0;
    scheduler.push(request(++next, busy, priority_of_busy));
  }
  FAIL() << "the lonely request never started";
}

TEST(Scheduler, ALonelyRequestOfTheOtherModelStartsWithinTheBound) {
  starts_within_the_bound(kLaya, kKev, 0);
  starts_within_the_bound(kKev, kLaya, 0);
}

TEST(Scheduler, LowPriorityUnderAStreamOfHighStartsWithinTheBound) {
  starts_within_the_bound(kLaya, kKev, 9);
  starts_within_the_bound(kLaya, kLaya, 9);
}

TEST(Scheduler, ABigRequestNeitherBlocksNorStarves) {
  constexpr int kBound = 3;
  Scheduler scheduler(1, kBound);
  scheduler.push(request(1, kLaya, 0, 100));
  for (Ticket small = 2; small < 10; ++small) scheduler.push(request(small, kLaya, 0, 1));
  EXPECT_EQ(pick(scheduler, kLaya, 10), 2U) << "it does not block";
  EXPECT_EQ(pick(scheduler, kLaya, 10), 3U);
  EXPECT_EQ(pick(scheduler, kLaya, 10), 4U);
  EXPECT_EQ(pick(scheduler, kLaya, 10), 0U) << "room must become free for it now";
  EXPECT_EQ(pick(scheduler, kLaya, 99), 0U);
  EXPECT_EQ(pick(scheduler, kLaya, 100), 1U) << "it does not starve";
  EXPECT_EQ(pick(scheduler, kLaya, 10), 5U);
}

TEST(Scheduler, OtherModelsWaitWhereOnlyTheCurrentOneMayStart) {
  Scheduler scheduler(2, 1);
  scheduler.push(request(1, kKev));
  scheduler.push(request(2, kLaya));
  scheduler.push(request(3, kLaya));
  EXPECT_EQ(pick(scheduler, kLaya, kManyPages, true), 2U);
  EXPECT_EQ(pick(scheduler, kLaya, kManyPages, true), 0U) << "kev's may not be passed over again";
  EXPECT_EQ(pick(scheduler, kLaya, kManyPages, false), 1U);
}

TEST(Scheduler, ARequestThatWaitsAgainGoesFirst) {
  Scheduler scheduler(1, 8);
  scheduler.push(request(1, kLaya));
  scheduler.push(request(2, kLaya));
  auto picked = scheduler.pick({.current_model = kLaya, .only_current = false, .pages = kManyPages});
  ASSERT_TRUE(picked);
  scheduler.push(request(3, kLaya));
  scheduler.push(*picked);
  EXPECT_EQ(pick(scheduler, kLaya), 1U);
}

TEST(Scheduler, TwoHundredCancelsInTheMiddleKeepTheOrder) {
  Scheduler scheduler(2, 1000);
  for (Ticket ticket = 1; ticket <= 600; ++ticket) scheduler.push(request(ticket, static_cast<int>(ticket % 2)));
  for (Ticket ticket = 201; ticket <= 400; ++ticket) EXPECT_TRUE(scheduler.remove(ticket));
  EXPECT_FALSE(scheduler.remove(300));
  EXPECT_FALSE(scheduler.remove(601));
  EXPECT_EQ(scheduler.size(), 400);
  Ticket last = 0;
  for (int i = 0; i < 400; ++i) {
    const Ticket ticket = pick(scheduler);
    EXPECT_GT(ticket, last);
    last = ticket;
  }
}

TEST(Scheduler, TakesOutWhatExpired) {
  Scheduler scheduler(2, 8);
  Waiting first = request(1, kLaya);
  first.deadline = 5;
  Waiting second = request(2, kKev);
  second.deadline = 3;
  scheduler.push(first);
  scheduler.push(second);
  scheduler.push(request(3, kKev));
  EXPECT_FALSE(scheduler.take_expired(2.9));
  EXPECT_EQ(scheduler.take_expired(3)->ticket, 2U);
  EXPECT_FALSE(scheduler.take_expired(4));
  EXPECT_EQ(scheduler.take_expired(100)->ticket, 1U);
  EXPECT_FALSE(scheduler.take_expired(1e9));
}

TEST(Scheduler, RandomStreamsKeepTheBoundAndTheOrderInsideAQueue) {
  for (const int bound : {0, 1, 8}) {
    std::mt19937_64 random(30);
    Scheduler scheduler(3, bound);
    std::map<Ticket, std::pair<Waiting, int>> waiting;  // With the passes counted here.
    Ticket next = 0;
    for (int round = 0; round < 20000; ++round) {
      if (waiting.size() < 30 && random() % 2 == 0) {
        const Waiting added = request(++next, static_cast<int>(random() % 3), static_cast<int>(random() % 3),
                                      1 + static_cast<std::int64_t>(random() % 20));
        waiting.emplace(next, std::pair(added, 0));
        scheduler.push(added);
      } else if (random() % 10 == 0 && !waiting.empty()) {
        const Ticket gone = waiting.begin()->first;
        ASSERT_TRUE(scheduler.remove(gone));
        waiting.erase(gone);
      } else {
        const auto free_pages = static_cast<std::int64_t>(random() % 24);
        const Ticket picked = pick(scheduler, static_cast<int>(random() % 3), free_pages);
        if (picked == 0) continue;
        const Waiting started = waiting.at(picked).first;
        ASSERT_LE(started.pages, free_pages);
        waiting.erase(picked);
        for (auto& [ticket, entry] : waiting) {
          if (ticket >= picked) continue;
          ASSERT_LE(++entry.second, bound);
          const Waiting& other = entry.first;
          ASSERT_FALSE(other.model == started.model && other.priority == started.priority && other.pages <= free_pages)
              << "order of arrival inside a model and priority";
        }
      }
    }
    EXPECT_LE(scheduler.most_passed_over(), bound);
  }
}

}  // namespace
}  // namespace duet
