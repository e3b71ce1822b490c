// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/memory_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/never_fits.h"
#include "kernels/base/status_context.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

// Holds pieces of ten bytes, some of which are in use.
class Pieces final : public MemoryBudget::Cache {
 public:
  Pieces(std::shared_ptr<MemoryBudget> budget, int pieces) : budget_(std::move(budget)) {
    for (int i = 0; i < pieces; ++i) {
      EXPECT_TRUE(shares_.emplace_back(budget_).Set(10).ok());
    }
    budget_->Add(this);
  }
  ~Pieces() override { budget_->Remove(this); }
  int64_t UnusedBytes() const override { return 10 * (std::ssize(shares_) - in_use); }
  void Drop(int64_t bytes) override {
    for (; bytes > 0 && UnusedBytes() > 0; bytes -= 10) shares_.pop_back();
  }

  int64_t in_use = 0;

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::vector<MemoryShare> shares_;
};

TEST(MemoryBudgetTest, WhatIsTakenComesBack) {
  const auto budget = std::make_shared<MemoryBudget>(100);
  MemoryShare first(budget);
  ASSERT_TRUE(first.Set(60).ok());
  {
    MemoryShare second(budget);
    ASSERT_TRUE(second.Set(40).ok());
    EXPECT_EQ(budget->free(), 0);
    ExpectError(second.Set(41), absl::StatusCode::kResourceExhausted,
                "takes 41 bytes beside 60 that are in use; the memory of this process "
                "leaves 100 to models");
    EXPECT_EQ(second.bytes(), 40);
    ASSERT_TRUE(second.Set(5).ok());
    EXPECT_EQ(budget->used(), 65);
  }
  EXPECT_EQ(budget->used(), 60);
  MemoryShare moved = std::move(first);
  first = MemoryShare();
  EXPECT_EQ(budget->used(), 60);
  moved = MemoryShare();
  EXPECT_EQ(budget->used(), 0);
}

TEST(MemoryBudgetTest, WhatNeverFitsSaysSo) {
  const auto budget = std::make_shared<MemoryBudget>(100);
  MemoryShare share(budget);
  ASSERT_TRUE(share.Set(99).ok());
  for (const int64_t bytes : {int64_t{101}, INT64_MAX - 1}) {
    const absl::Status status = share.Set(bytes);
    ExpectError(status, absl::StatusCode::kResourceExhausted, "leaves 100 to models");
    EXPECT_TRUE(IsNeverFits(status));
  }
  MemoryShare other(budget);
  EXPECT_FALSE(IsNeverFits(other.Set(2)));
  const auto none = std::make_shared<MemoryBudget>(-5);
  EXPECT_FALSE(none->Take(0).ok());
}

TEST(MemoryBudgetTest, WithoutOneAnythingFits) {
  MemoryShare share;
  EXPECT_TRUE(share.Set(INT64_MAX).ok());
}

TEST(MemoryBudgetTest, CachesGiveUpWhatNobodyUsesTheLargestFirst) {
  const auto budget = std::make_shared<MemoryBudget>(100);
  Pieces small(budget, 3), large(budget, 6);
  EXPECT_EQ(budget->free(), 10);
  ASSERT_TRUE(budget->Take(25).ok());
  EXPECT_EQ(large.UnusedBytes(), 40);
  EXPECT_EQ(small.UnusedBytes(), 30);
  small.in_use = large.in_use = 2;
  ExpectError(budget->Take(36), absl::StatusCode::kResourceExhausted, "takes 36 bytes beside 95");
  EXPECT_EQ(small.UnusedBytes() + large.UnusedBytes(), 30);
  ASSERT_TRUE(budget->Take(35).ok());
  EXPECT_EQ(budget->free(), 0);
  EXPECT_EQ(small.UnusedBytes() + large.UnusedBytes(), 0);
}

TEST(MemoryBudgetTest, ErrorsTellHowMuchIsMissing) {
  const auto budget = std::make_shared<MemoryBudget>(100);
  Pieces pieces(budget, 3);
  pieces.in_use = 2;
  MemoryShare share(budget);
  ASSERT_TRUE(share.Set(40).ok());
  EXPECT_EQ(budget->Available(), 40);
  const absl::Status refused = share.Add(45);
  EXPECT_EQ(MissingBytes(refused), 5);
  EXPECT_EQ(MissingBytes(WithContext(refused, "a file")), 5);
  EXPECT_EQ(MissingBytes(share.Add(61)), 0) << "no wait helps";
  EXPECT_EQ(MissingBytes(absl::OkStatus()), 0);
  EXPECT_EQ(pieces.UnusedBytes(), 10);
}

TEST(MemoryBudgetTest, RaisingNeverGivesBack) {
  const auto budget = std::make_shared<MemoryBudget>(100);
  MemoryShare share(budget);
  ASSERT_TRUE(share.Raise(60).ok());
  ASSERT_TRUE(share.Raise(50).ok());
  EXPECT_EQ(budget->used(), 60);
  EXPECT_FALSE(share.Raise(101).ok());
  EXPECT_EQ(share.bytes(), 60);
}

// Holds one piece, which is in use every other time that it is asked.
class Restless final : public MemoryBudget::Cache {
 public:
  int64_t UnusedBytes() const override { return ++times_ % 2; }
  void Drop(int64_t) override {}

 private:
  mutable int64_t times_ = 0;
};

// Order must not be sought among numbers that change under the search.
TEST(MemoryBudgetTest, CachesMayChangeTheirMindsMeanwhile) {
  const auto budget = std::make_shared<MemoryBudget>(100);
  std::vector<Restless> caches(200);
  for (Restless& cache : caches) budget->Add(&cache);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(budget->Take(100).ok());
    EXPECT_FALSE(budget->Take(1).ok());
    budget->Return(100);
  }
}

TEST(MemoryBudgetTest, ThreadsTakeNoMoreThanThereIs) {
  const auto budget = std::make_shared<MemoryBudget>(1000);
  std::atomic<int64_t> taken{0}, most{0}, refused{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int64_t round = 0; round < 20'000; ++round) {
        const int64_t bytes = 200 + (round * 37 + i) % 200;
        MemoryShare share(budget);
        if (!share.Set(bytes).ok()) {
          ++refused;
          continue;
        }
        int64_t seen = most.load();
        const int64_t now = taken.fetch_add(bytes) + bytes;
        while (seen < now && !most.compare_exchange_weak(seen, now)) {
        }
        taken.fetch_sub(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most.load(), 1000);
  EXPECT_EQ(budget->used(), 0);
}

}  // namespace
}  // namespace deeppcr::testing
