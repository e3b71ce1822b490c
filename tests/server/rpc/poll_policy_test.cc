// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/poll_policy.h"

#include <gtest/gtest.h>

#include <chrono>
#include <tuple>
#include <utility>

namespace deeppcr {
namespace {

using std::chrono::microseconds;

// Calls that come one by one, at these times after one another where the thread sleeps and where it
// looks. Returns for how many of them it looked.
int Looked(PollPolicy& policy, int calls, microseconds sleeping, microseconds looking) {
  int looked = 0;
  for (int i = 0; i < calls; ++i) {
    const bool looks = policy.Looks();
    looked += looks ? 1 : 0;
    policy.Came(/*alone=*/true, looks ? looking : sleeping);
  }
  return looked;
}

constexpr int kRound = 2 * PollPolicy::kTrial + PollPolicy::kKept;

TEST(PollPolicyTest, LooksWhereCallsComeSooner) {
  PollPolicy policy(/*always=*/false);
  EXPECT_EQ(Looked(policy, PollPolicy::kLoneCalls, microseconds(200), microseconds(150)), 0);
  EXPECT_EQ(Looked(policy, kRound, microseconds(200), microseconds(150)),
            PollPolicy::kTrial + PollPolicy::kKept);
}

TEST(PollPolicyTest, SleepsWhereCallsComeNoSooner) {
  // Later, as soon, too little sooner to pay for a core, and by a clock of a second.
  for (const auto& [sleeping, looking] : {std::pair(200, 230), std::pair(200, 200),
                                          std::pair(200, 190), std::pair(1'000'000, 999'000)}) {
    PollPolicy policy(false);
    Looked(policy, PollPolicy::kLoneCalls, microseconds(sleeping), microseconds(looking));
    EXPECT_EQ(Looked(policy, kRound, microseconds(sleeping), microseconds(looking)),
              PollPolicy::kTrial)
        << sleeping << " " << looking;
  }
}

// What else the cores do changes.
TEST(PollPolicyTest, TriesAgain) {
  PollPolicy policy(false);
  Looked(policy, PollPolicy::kLoneCalls + kRound, microseconds(200), microseconds(150));
  EXPECT_EQ(Looked(policy, kRound, microseconds(200), microseconds(220)), PollPolicy::kTrial);
  EXPECT_EQ(Looked(policy, kRound, microseconds(200), microseconds(150)),
            PollPolicy::kTrial + PollPolicy::kKept);
}

// One pause of a client decides nothing, whichever half of a trial it is in.
TEST(PollPolicyTest, CountsLongPausesForLittle) {
  for (const bool looking : {false, true}) {
    // What one client gains at the least, and calls so short that a pause is many of them.
    for (const auto& [sleeping, busy, pays] :
         {std::tuple(200, 160, true), std::tuple(95, 109, false), std::tuple(150, 157, false)}) {
      PollPolicy policy(false);
      const int before = PollPolicy::kLoneCalls + (looking ? PollPolicy::kTrial : 0);
      Looked(policy, before, microseconds(sleeping), microseconds(busy));
      EXPECT_EQ(policy.Looks(), looking);
      policy.Came(true, std::chrono::hours(1));
      const int rest = (looking ? 1 : 2) * PollPolicy::kTrial - 1;
      Looked(policy, rest, microseconds(sleeping), microseconds(busy));
      EXPECT_EQ(policy.Looks(), pays) << looking << " " << sleeping << " " << busy;
    }
  }
}

TEST(PollPolicyTest, LeavesTheCoreToClientsWhoseCallsComeTogether) {
  for (const bool always : {false, true}) {
    PollPolicy policy(always);
    Looked(policy, PollPolicy::kLoneCalls + 2 * PollPolicy::kTrial, microseconds(200),
           microseconds(100));
    EXPECT_TRUE(policy.Looks());
    policy.Came(/*alone=*/false, microseconds(10));
    EXPECT_EQ(Looked(policy, PollPolicy::kLoneCalls, microseconds(200), microseconds(100)), 0);
    EXPECT_TRUE(policy.Looks());
  }
}

TEST(PollPolicyTest, LooksAlwaysWhereItIsToldTo) {
  PollPolicy policy(/*always=*/true);
  EXPECT_EQ(Looked(policy, PollPolicy::kLoneCalls, microseconds(200), microseconds(300)), 0);
  EXPECT_EQ(Looked(policy, 2 * kRound, microseconds(200), microseconds(300)), 2 * kRound);
}

}  // namespace
}  // namespace deeppcr
