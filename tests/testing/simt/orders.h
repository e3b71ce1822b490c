// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_ORDERS_H_
#define DEEPPCR_TESTS_TESTING_SIMT_ORDERS_H_

// Tests of a kernel's barriers: a barrier is needed if without it some order of warps gives another
// answer. That says something only where no order does with all of them, which is tested first.

#include <gtest/gtest.h>

#include <utility>

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

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_ORDERS_H_
