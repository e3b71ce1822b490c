// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/simt/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace deeppcr::testing::simt {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsNan;

constexpr Order kOrders[] = {Order::kAscending, Order::kDescending, Order::kShuffled};

TEST(ExecutorTest, EveryThreadRunsOnceWithIndicesOfItsOwn) {
  const LaunchShape shape{.num_clusters = 2, .num_blocks = 3, .num_threads = 64};
  std::vector<int> runs(2 * 3 * 64);
  const Outcome outcome = Execute(shape, {}, [&](Thread& t) {
    EXPECT_EQ(t.thread(), 32 * t.warp() + t.lane());
    EXPECT_EQ(t.num_clusters() * t.num_blocks() * t.num_threads(), 2 * 3 * 64);
    ++runs[(t.cluster() * 3 + t.block()) * 64 + t.thread()];
  });
  EXPECT_THAT(outcome.trouble, IsEmpty());
  EXPECT_THAT(runs, Each(1));
}

// Each thread reads what the thread behind it wrote: across lanes, warps or blocks.
void ShiftThroughShared(Thread& t, std::vector<float>* answer) {
  auto* mine = reinterpret_cast<float*>(t.shared());
  mine[t.thread()] = static_cast<float>(100 * t.block() + t.thread());
  t.SyncCluster(0);
  const bool last = t.thread() + 1 == t.num_threads();
  const int block = last ? (t.block() + 1) % t.num_blocks() : t.block();
  const float* from = t.Remote(mine, block);
  (*answer)[t.block() * t.num_threads() + t.thread()] = from[last ? 0 : t.thread() + 1];
  t.SyncCluster(1);
}

TEST(ExecutorTest, ABarrierOrdersWritesAndReads) {
  const LaunchShape shape{.num_blocks = 2, .num_threads = 64, .shared_bytes = 64 * sizeof(float)};
  for (const Order order : kOrders) {
    std::vector<float> answer(128);
    const Outcome outcome =
        Execute(shape, {.order = order}, [&](Thread& t) { ShiftThroughShared(t, &answer); });
    EXPECT_THAT(outcome.trouble, IsEmpty());
    EXPECT_THAT(outcome.passes, ElementsAre(128, 128));
    for (int i = 0; i < 127; ++i)
      EXPECT_EQ(answer[i], static_cast<float>((i + 1) / 64 * 100 + (i + 1) % 64)) << i;
    EXPECT_EQ(answer[127], 0);
  }
}

// Without its barrier the body reads shared memory that no thread has written.
TEST(ExecutorTest, AMissingBarrierShowsInEveryOrder) {
  const LaunchShape shape{.num_blocks = 2, .num_threads = 64, .shared_bytes = 64 * sizeof(float)};
  for (const Order order : kOrders) {
    std::vector<float> answer(128);
    Execute(shape, {.order = order, .disabled_site = 0},
            [&](Thread& t) { ShiftThroughShared(t, &answer); });
    EXPECT_TRUE(std::isnan(std::accumulate(answer.begin(), answer.end(), 0.0F)));
  }
}

TEST(ExecutorTest, SharedMemoryGoesWithItsBlock) {
  float answer[2] = {};
  Execute({.num_blocks = 2, .shared_bytes = 4}, {}, [&](Thread& t) {
    auto* mine = reinterpret_cast<float*>(t.shared());
    if (t.lane() == 0) *mine = 1;
    t.SyncCluster(0);
    if (t.block() == 0) return;  // block 0 runs first, in this order
    answer[0] = *t.Remote(mine, 0);
    answer[1] = *t.Remote(mine, 1);
  });
  EXPECT_TRUE(std::isnan(answer[0]));
  EXPECT_EQ(answer[1], 1);
}

TEST(ExecutorTest, ShufflesSeeTheValuesOfTheSameCall) {
  std::vector<int> sums(64);
  const Outcome outcome = Execute({.num_threads = 64}, {}, [&](Thread& t) {
    int sum = t.thread();
    for (int mask = 1; mask < kWarpSize; mask *= 2) sum += t.ShuffleXor(sum, mask);
    const double first = t.Shuffle(0.5 + sum, 0);
    sums[t.thread()] = first == 0.5 + sum ? sum : -1;
  });
  EXPECT_THAT(outcome.trouble, IsEmpty());
  EXPECT_THAT(std::vector<int>(sums.begin(), sums.begin() + 32), Each(31 * 16));
  EXPECT_THAT(std::vector<int>(sums.begin() + 32, sums.end()), Each(31 * 16 + 32 * 32));
}

// What is waited for is there, and nothing else: neither a later group nor what was there before.
TEST(ExecutorTest, CopiesAreMadeWhenTheyAreWaitedFor) {
  alignas(16) const float from[] = {1, 2, 3, 4, 5};
  std::vector<float> seen;
  const Outcome outcome = Execute({.shared_bytes = 32}, {}, [&](Thread& t) {
    if (t.lane() != 0) return;
    auto* const to = reinterpret_cast<float*>(t.shared());
    to[0] = 7;
    t.CopyAsync<4>(from, to);
    t.CommitCopies();
    t.CopyAsync<1>(from + 4, to + 4);
    seen = {to[0]};
    t.CommitCopies();
    t.WaitForCopies<1>();
    seen.insert(seen.end(), {to[0], to[3], to[4]});
    t.WaitForCopies<0>();
    seen.push_back(to[4]);
  });
  EXPECT_THAT(outcome.trouble, IsEmpty());
  EXPECT_THAT(seen, ElementsAre(IsNan(), 1, 4, IsNan(), 5));
}

TEST(ExecutorTest, TellsOfCopiesFromAddressesThatDoNotFit) {
  const auto body = [](Thread& t) {
    alignas(16) const float from[8] = {};
    t.CopyAsync<4>(from + 1, reinterpret_cast<float*>(t.shared()));
  };
  EXPECT_THAT(Execute({.shared_bytes = 32}, {}, body).trouble, HasSubstr("no multiple"));
}

TEST(ExecutorTest, TellsOfBarriersThatNotAllThreadsReach) {
  EXPECT_THAT(Execute({.num_threads = 64}, {},
                      [](Thread& t) {
                        if (t.thread() != 40) t.SyncBlock(3);
                      })
                  .trouble,
              HasSubstr("deadlock: thread 0 waits for its block at site 3"));
  EXPECT_THAT(Execute({.num_threads = 64}, {}, [](Thread& t) { t.SyncBlock(t.warp()); }).trouble,
              HasSubstr("threads of a block wait at sites 0 and 1"));
  EXPECT_THAT(Execute({.num_blocks = 2}, {},
                      [](Thread& t) { t.block() == 0 ? t.SyncCluster(0) : t.SyncBlock(1); })
                  .trouble,
              HasSubstr("deadlock"));
}

// Block 1 stores in the memory of block 0, which is still there or not.
std::string TroubleOfStore(bool waits) {
  const LaunchShape shape{.num_blocks = 2, .shared_bytes = 4};
  return Execute(shape, {},
                 [&](Thread& t) {
                   auto* const mine = reinterpret_cast<float*>(t.shared());
                   if (t.block() == 1 && t.lane() == 0) *t.Remote(mine, 0) = 1;
                   if (waits) t.SyncCluster(0);
                 })
      .trouble;
}

TEST(ExecutorTest, TellsOfStoresInTheMemoryOfABlockThatHasEnded) {
  EXPECT_THAT(TroubleOfStore(/*waits=*/true), IsEmpty());
  EXPECT_THAT(TroubleOfStore(/*waits=*/false), HasSubstr("a block that has ended"));
}

// What block 0 stores in the memory of block 1 before this one has begun is lost.
TEST(ExecutorTest, ABlockThatBeginsLateHasNewMemory) {
  const LaunchShape shape{.num_blocks = 2, .shared_bytes = 4};
  for (const bool awaits : {true, false}) {
    bool lost = false;
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const Schedule schedule{Order::kShuffled, seed, awaits ? -1 : 0};
      const Outcome outcome = Execute(shape, schedule, [&](Thread& t) {
        auto* const mine = reinterpret_cast<float*>(t.shared());
        t.AnnounceBlock();
        t.AwaitBlocks(0);
        if (t.block() == 0 && t.lane() == 0) *t.Remote(mine, 1) = 1;
        t.SyncCluster(1);
        if (t.block() == 1) lost = lost || *mine != 1;
      });
      EXPECT_THAT(outcome.trouble, IsEmpty());
    }
    EXPECT_EQ(lost, !awaits);
  }
}

TEST(ExecutorTest, TellsOfAnnouncementsThatDoNotFitTheirWaits) {
  const LaunchShape shape{.num_blocks = 2};
  const auto trouble = [&](const auto& body) { return Execute(shape, {}, body).trouble; };
  EXPECT_THAT(trouble([](Thread& t) {
                t.AnnounceBlock();
                t.AnnounceBlock();
                t.AwaitBlocks(0);
              }),
              HasSubstr("a second AnnounceBlock"));
  EXPECT_THAT(trouble([](Thread& t) { t.AwaitBlocks(0); }), HasSubstr("without its AnnounceBlock"));
  EXPECT_THAT(trouble([](Thread& t) {
                t.AnnounceBlock();
                t.SyncCluster(0);
                t.AwaitBlocks(1);
              }),
              HasSubstr("between AnnounceBlock and AwaitBlocks"));
}

#if defined(__SANITIZE_ADDRESS__)
TEST(ExecutorDeathTest, SharedMemoryEndsWhereItWasAskedToEnd) {
  const auto body = [](Thread& t) { t.shared()[16 * t.num_threads()] = std::byte{1}; };
  EXPECT_DEATH(Execute({.shared_bytes = 512}, {}, body), "heap-buffer-overflow");
}
#endif

}  // namespace
}  // namespace deeppcr::testing::simt
