// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

namespace deeppcr::testing {
namespace {

// A piece that says which shares were done, and by how many threads.
struct Counted {
  explicit Counted(int64_t most) : times(most + 1) {}
  static void Do(void* context, int64_t share, int64_t shares) {
    auto* self = static_cast<Counted*>(context);
    self->shares = shares;
    ++self->times[share];
  }
  std::vector<std::atomic<int>> times;
  std::atomic<int64_t> shares{0};
};

TEST(TeamTest, ALeaderAloneDoesEverything) {
  Team team;
  Counted piece(4);
  team.Do(&Counted::Do, &piece, 100);
  EXPECT_EQ(piece.shares, 1);
  EXPECT_EQ(piece.times[0], 1);
  team.Disband();
  team.Help();  // nothing to do: returns
}

TEST(TeamTest, EveryShareIsDoneOnceWhoeverComesAndGoes) {
  for (const int helpers : {1, 2, 5}) {
    Team team;
    std::vector<std::thread> threads;
    for (int h = 0; h < helpers; ++h) {
      threads.emplace_back([&team, h] {
        std::this_thread::sleep_for(std::chrono::microseconds(100 * h));
        team.Help();
      });
    }
    std::set<int64_t> seen;
    for (int i = 0; i < 2000; ++i) {
      Counted piece(helpers + 1);
      team.Do(&Counted::Do, &piece, 100);
      const int64_t shares = piece.shares;
      ASSERT_GE(shares, 1);
      ASSERT_LE(shares, helpers + 1);
      for (int64_t s = 0; s <= helpers + 1; ++s) ASSERT_EQ(piece.times[s], s < shares ? 1 : 0);
      seen.insert(shares);
    }
    // Helpers that have come stay: in the end all are there, however slow the machine is.
    while (!seen.contains(helpers + 1)) {
      Counted piece(helpers + 1);
      team.Do(&Counted::Do, &piece, 100);
      seen.insert(piece.shares);
    }
    team.Disband();
    for (std::thread& thread : threads) thread.join();
  }
}

// What the leader writes before a piece is there for the helpers, and theirs afterwards for it.
TEST(TeamTest, WritesAreSeenOnBothSides) {
  Team team;
  std::thread helper([&team] { team.Help(); });
  struct Sum {
    std::vector<int64_t> values, partial;
  } sum{std::vector<int64_t>(64), std::vector<int64_t>(8)};
  const auto piece = [](void* context, int64_t share, int64_t shares) {
    auto* of = static_cast<Sum*>(context);
    int64_t total = 0;
    for (size_t i = share; i < of->values.size(); i += shares) total += of->values[i];
    of->partial[share] = total;
  };
  for (int64_t round = 1; round <= 2000; ++round) {
    for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] = round + static_cast<int64_t>(i);
    std::fill(sum.partial.begin(), sum.partial.end(), 0);
    team.Do(piece, &sum, 100);
    ASSERT_EQ(sum.partial[0] + sum.partial[1], 64 * round + 63 * 32);
  }
  team.Disband();
  helper.join();
}

TEST(TeamTest, ThereAreNoMoreSharesThanThePieceHas) {
  Team team;
  std::thread first([&team] { team.Help(); }), second([&team] { team.Help(); });
  for (int i = 0; i < 2000; ++i) {
    Counted piece(3);
    team.Do(&Counted::Do, &piece, 2);
    ASSERT_LE(piece.shares, 2);
  }
  team.Disband();
  first.join();
  second.join();
}

TEST(TeamTest, ALateHelperIsSentAway) {
  Team team;
  team.Disband();
  std::thread helper([&team] { team.Help(); });
  helper.join();
}

}  // namespace
}  // namespace deeppcr::testing
