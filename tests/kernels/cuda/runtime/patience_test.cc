// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/patience.h"

#include <gtest/gtest.h>

namespace deeppcr::cuda {
namespace {

using std::chrono::milliseconds;

TEST(PatienceTest, WaitsUntilTheWorkIsDone) {
  Patience patience({});
  int looks = 0, idles = 0;
  EXPECT_TRUE(patience.Await([&] { return ++looks == 500; }, [&] { ++idles; }));
  EXPECT_EQ(looks, 500);
  EXPECT_EQ(idles, 7);
}

TEST(PatienceTest, GivesUpAtTheLimitAfterAnotherLook) {
  Patience patience({.least = milliseconds(5)});
  int64_t looks = 0;
  EXPECT_FALSE(patience.Await([&] { return ++looks < 0; }, [] {}));
  EXPECT_GE(looks, 2);
}

// As after a process was stopped for longer than the limit.
TEST(PatienceTest, WorkThatWasDoneWhileNobodyLookedIsDone) {
  Patience patience({.least = milliseconds(1)});
  bool done = false;
  EXPECT_TRUE(patience.Await(
      [&] {
        if (done) return true;
        std::this_thread::sleep_for(milliseconds(10));
        done = true;
        return false;
      },
      [] {}));
}

TEST(PatienceTest, TheLimitFollowsTheLongestWaitThatEnded) {
  Patience patience({.least = milliseconds(50), .factor = 1000});
  EXPECT_EQ(patience.limit(), milliseconds(50));
  int looks = 0;
  const auto slow = [&] {
    std::this_thread::sleep_for(milliseconds(1));
    return ++looks == 3;
  };
  EXPECT_TRUE(patience.Await(slow, [] {}));
  EXPECT_GE(patience.limit(), milliseconds(3000));
}

}  // namespace
}  // namespace deeppcr::cuda
