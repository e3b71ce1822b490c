// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

namespace deeppcr::training {
namespace {

Dataset Labelled(int64_t n) {
  Dataset data = {.num_samples = n, .input_dim = 2};
  for (int64_t i = 0; i < n; ++i) {
    data.inputs.push_back(static_cast<float>(i));
    data.inputs.push_back(static_cast<float>(-i));
    data.labels.push_back(static_cast<int32_t>(i % 3));
  }
  return data;
}

TEST(DatasetTest, OrdersAreDifferentPermutations) {
  std::set<std::vector<int64_t>> orders;
  for (const int64_t n : {1, 2, 7, 1000}) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> order = ShuffledOrder(n, 5, 2, epoch);
      EXPECT_EQ(order, ShuffledOrder(n, 5, 2, epoch));
      if (n == 1000) orders.insert(order);
      std::ranges::sort(order);
      std::vector<int64_t> all(n);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(order, all);
    }
  }
  orders.insert(ShuffledOrder(1000, 6, 2, 0));
  orders.insert(ShuffledOrder(1000, 5, 3, 0));
  EXPECT_EQ(orders.size(), 5);
}

// Every place is taken by every element about as often: six deviations of 6000 draws of 1/6.
TEST(DatasetTest, OrdersAreUniform) {
  std::array<std::array<int, 6>, 6> counts = {};
  for (uint64_t epoch = 0; epoch < 6000; ++epoch) {
    const std::vector<int64_t> order = ShuffledOrder(6, 1, 2, epoch);
    for (size_t place = 0; place < 6; ++place) ++counts[place][order[place]];
  }
  for (const auto& row : counts)
    for (const int count : row) EXPECT_NEAR(count, 1000, 6 * 29);
}

TEST(DatasetTest, SplitKeepsEverySampleOnceWithItsLabel) {
  const Dataset data = Labelled(101);
  const SplitDataset split = Split(data, 0.25, 9).value();
  EXPECT_EQ(split.validation.num_samples, 25);
  EXPECT_EQ(split.training.num_samples, 76);
  std::set<float> seen;
  for (const Dataset* part : {&split.training, &split.validation}) {
    EXPECT_TRUE(CheckDataset(*part, 2, 3, "part").ok());
    for (int64_t i = 0; i < part->num_samples; ++i) {
      const float x = part->InputsOf(i)[0];
      EXPECT_TRUE(seen.insert(x).second);
      EXPECT_EQ(part->InputsOf(i)[1], -x);
      EXPECT_EQ(part->labels[i], static_cast<int>(x) % 3);
    }
  }
  EXPECT_EQ(seen.size(), 101);
  EXPECT_EQ(Split(data, 0.25, 9)->validation.inputs, split.validation.inputs);
  EXPECT_NE(Split(data, 0.25, 8)->validation.inputs, split.validation.inputs);
}

TEST(DatasetTest, SplitLeavesSomethingInBothParts) {
  EXPECT_EQ(Split(Labelled(2), 0.001, 1)->validation.num_samples, 1);
  EXPECT_EQ(Split(Labelled(2), 0.999, 1)->training.num_samples, 1);
  for (const double share : {0.0, 1.0, -0.5, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_FALSE(Split(Labelled(9), share, 1).ok()) << share;
  EXPECT_FALSE(Split(Labelled(1), 0.5, 1).ok());
}

TEST(DatasetTest, RefusesWhatDoesNotFitNamingIt) {
  const auto message = [](auto change, int64_t output_dim = 3) {
    Dataset data = Labelled(4);
    change(data);
    return std::string(CheckDataset(data, 2, output_dim, "data").message());
  };
  EXPECT_EQ(message([](Dataset&) {}), "");
  EXPECT_EQ(message([](Dataset& d) { d.labels[2] = 3; }),
            "data: labels: sample 2: expected 0 .. 2 (output_dim - 1), got 3");
  EXPECT_EQ(message([](Dataset& d) { d.labels[1] = -1; }),
            "data: labels: sample 1: expected 0 .. 2 (output_dim - 1), got -1");
  EXPECT_EQ(message([](Dataset& d) { d.inputs[5] = std::numeric_limits<float>::infinity(); }),
            "data: inputs: sample 2, element 1: expected a finite value, got inf");
  EXPECT_EQ(message([](Dataset& d) { d.labels.pop_back(); }),
            "data: labels: expected 4 values, got 3");
  EXPECT_EQ(message([](Dataset& d) { d.inputs.pop_back(); }),
            "data: inputs: expected 8 values, got 7");
  EXPECT_EQ(message([](Dataset& d) { d.input_dim = 3; }),
            "data: inputs: expected 2 values a sample (input_dim), got 3");
  EXPECT_EQ(message([](Dataset& d) { d = {}; }), "data: expected at least one sample");
  EXPECT_EQ(message([](Dataset& d) {
              d.labels.clear();
              d.target_dim = 2;
              d.targets.assign(8, 0.0F);
            }),
            "data: targets: expected 3 values a sample (output_dim), got 2");
}

TEST(DatasetTest, HashTellsDataApart) {
  const std::string hash = HashOf(Labelled(4)).value();
  EXPECT_EQ(HashOf(Labelled(4)).value(), hash);
  Dataset other = Labelled(4);
  other.labels[3] = 2;
  EXPECT_NE(HashOf(other).value(), hash);
  other = Labelled(4);
  other.input_dim = 1;
  EXPECT_NE(HashOf(other).value(), hash);
}

}  // namespace
}  // namespace deeppcr::training
