// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

namespace deeppcr {
namespace {

// Counts how often a loop runs each index.
class Counts {
 public:
  explicit Counts(int64_t count) : counts_(count) {}
  void operator()(int64_t i) { counts_.at(static_cast<size_t>(i)).fetch_add(1); }
  bool AllOnce() const {
    for (const std::atomic<int>& count : counts_)
      if (count.load() != 1) return false;
    return true;
  }

 private:
  std::vector<std::atomic<int>> counts_;
};

TEST(ThreadPoolTest, EveryIndexComesOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t count : {0, 1, 2, 3, 7, 8, 9, 64, 1000}) {
      for (int repetition = 0; repetition < 20; ++repetition) {
        Counts counts(count);
        pool.ParallelFor(count, counts);
        ASSERT_TRUE(counts.AllOnce()) << threads << " threads, " << count << " indices";
      }
    }
  }
}

TEST(ThreadPoolTest, OneIndexRunsOnTheCaller) {
  ThreadPool pool(4);
  std::thread::id ran_on;
  auto body = [&](int64_t) { ran_on = std::this_thread::get_id(); };
  pool.ParallelFor(1, body);
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

// Bodies that wait for one another finish only if as many threads run them at the same time.
void RunAtOnce(ThreadPool& pool, int count, int64_t most_threads) {
  std::atomic<int> arrived{0};
  auto body = [&](int64_t) {
    arrived.fetch_add(1);
    while (arrived.load() < count) std::this_thread::yield();
  };
  pool.ParallelFor(count, body, most_threads);
  EXPECT_EQ(arrived.load(), count);
}

TEST(ThreadPoolTest, HelpersRunBesideTheCaller) {
  ThreadPool pool(2);
  RunAtOnce(pool, 2, INT64_MAX);
}

TEST(ThreadPoolTest, NoMoreThreadsThanAllowed) {
  ThreadPool pool(8);
  for (const int64_t most : {1, 2, 3}) {
    std::atomic<int64_t> inside{0}, at_once{0};
    auto body = [&](int64_t) {
      const int64_t now = inside.fetch_add(1) + 1;
      for (int64_t seen = at_once.load();
           now > seen && !at_once.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      inside.fetch_sub(1);
    };
    for (int repetition = 0; repetition < 5; ++repetition) pool.ParallelFor(40, body, most);
    EXPECT_LE(at_once.load(), most);
  }
}

TEST(ThreadPoolTest, AsManyThreadsAsAllowedAreWoken) {
  ThreadPool pool(4);
  RunAtOnce(pool, 3, 3);
}

TEST(ThreadPoolTest, ResultsAreVisibleAfterTheLoop) {
  ThreadPool pool(4);
  for (int repetition = 0; repetition < 200; ++repetition) {
    std::vector<int64_t> squares(50);  // plain memory: a race shows under the thread sanitizer
    auto body = [&](int64_t i) { squares[i] = i * i; };
    pool.ParallelFor(50, body);
    for (int64_t i = 0; i < 50; ++i) ASSERT_EQ(squares[i], i * i);
  }
}

TEST(ThreadPoolTest, CallersMayHaveLoopsAtTheSameTime) {
  ThreadPool pool(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 5; ++caller)
    callers.emplace_back([&, caller] {
      for (int repetition = 0; repetition < 200; ++repetition) {
        const int64_t count = 1 + (caller * 7 + repetition) % 23;
        Counts counts(count);
        pool.ParallelFor(count, counts);
        wrong += !counts.AllOnce();
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPoolTest, ABodyMayUseAnotherPoolOrTheSame) {
  ThreadPool outer(3), inner(2);
  std::atomic<int> wrong{0}, loops{0};
  for (ThreadPool* nested : {&inner, &outer}) {
    auto body = [&](int64_t i) {
      Counts counts(i + 1);
      nested->ParallelFor(i + 1, counts);
      wrong += !counts.AllOnce();
      ++loops;
    };
    outer.ParallelFor(12, body);
  }
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(loops.load(), 24);
}

TEST(ThreadPoolTest, EndsWithItsHelpersIdle) {
  for (int repetition = 0; repetition < 50; ++repetition) {
    const ThreadPool never_used(4);
    auto used = std::make_unique<ThreadPool>(4);
    Counts counts(8);
    used->ParallelFor(8, counts);
    used.reset();  // right after the loop: helpers may be on their way back to sleep
    EXPECT_TRUE(counts.AllOnce());
  }
}

}  // namespace
}  // namespace deeppcr
