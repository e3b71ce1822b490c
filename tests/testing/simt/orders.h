// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_ORDERS_H_
#define DEEPPCR_TESTS_TESTING_SIMT_ORDERS_H_

// Tests of a kernel's barriers: a barrier is needed if without it some order of warps gives another
// answer. That says something only where no order does with all of them, which is tested first.

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/simt/executor.h"

namespace deeppcr::testing::simt {

template <class Differs>
class OrdersOfWarps {
 public:
  // `differs(schedule)`: whether a kernel under that schedule gives another answer than the right
  // one. `shuffles`: the number of orders drawn by lot.
  explicit OrdersOfWarps(Differs differs, int shuffles = 1)
      : differs_(std::move(differs)), shuffles_(shuffles) {
    EXPECT_FALSE(AnyDiffers(-1)) << "with every barrier, an order of warps gives another answer";
  }

  // Whether an order notices that the barrier of `site` does nothing.
  bool Notice(int site) const { return AnyDiffers(site); }

 private:
  bool AnyDiffers(int disabled_site) const {
    for (const Order order : {Order::kAscending, Order::kDescending}) {
      if (differs_({.order = order, .disabled_site = disabled_site})) return true;
    }
    for (int i = 0; i < shuffles_; ++i) {
      const uint64_t seed = 3 + i;
      if (differs_({.order = Order::kShuffled, .seed = seed, .disabled_site = disabled_site}))
        return true;
    }
    return false;
  }

  const Differs differs_;
  const int shuffles_;
};

// Expects that of the barriers `sites` of a kernel each is reached and needed in one of the
// launches. `run(launch, schedule)` gives an answer with the launch's Outcome as `launch`; `same`
// compares two.
template <class Launches, class Run, class Same>
void ExpectBarriersAreNeeded(const std::vector<int>& sites, const Launches& launches,
                             const Run& run, const Same& same) {
  std::map<int, int64_t> passes;
  std::set<int> noticed;
  for (const auto& launch : launches) {
    const auto right = run(launch, Schedule{});
    const OrdersOfWarps orders(
        [&](const Schedule& schedule) {
          const auto other = run(launch, schedule);
          return !other.launch.trouble.empty() || !same(other, right);
        },
        4);
    for (const int site : sites) {
      passes[site] += site < std::ssize(right.launch.passes) ? right.launch.passes[site] : 0;
      if (!noticed.contains(site) && orders.Notice(site)) noticed.insert(site);
    }
  }
  for (const int site : sites) {
    EXPECT_GT(passes[site], 0) << "site " << site << " is never reached";
    EXPECT_TRUE(noticed.contains(site)) << "site " << site;
  }
}
// The same of the barriers 0, ..., num_sites - 1.
template <class Launches, class Run, class Same>
void ExpectEveryBarrierIsNeeded(int num_sites, const Launches& launches, const Run& run,
                                const Same& same) {
  std::vector<int> sites(num_sites);
  std::iota(sites.begin(), sites.end(), 0);
  ExpectBarriersAreNeeded(sites, launches, run, same);
}

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_ORDERS_H_
