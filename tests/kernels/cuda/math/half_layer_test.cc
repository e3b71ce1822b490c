// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math/half_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "kernels/cuda/math/device_halves.h"
#include "tests/testing/simt/executor.h"
#include "tests/testing/simt/simt_device.h"

namespace deeppcr::testing {
namespace {

using simt::Thread;

// ---- Numbers
TEST(NearestHalfTest, IsTheNearestOfTwoAndTheEvenOneBetween) {
  for (uint16_t half = 0; half < 0x7C00; ++half) {
    const uint16_t next = half + 1;
    const float low = Thread::OfHalf(half), high = next == 0x7C00 ? 65536.0F : Thread::OfHalf(next);
    const float middle = (low + high) / 2;
    const auto expect = [](float x, uint16_t nearest) {
      ASSERT_EQ(cuda::NearestHalf(x), nearest) << x;
      ASSERT_EQ(cuda::NearestHalf(-x), nearest | 0x8000) << x;
      ASSERT_EQ(Thread::ToHalf(x), nearest) << x;
    };
    expect(low, half);
    expect(std::nextafter(middle, low), half);
    expect(middle, half % 2 == 0 ? half : next);
    expect(std::nextafter(middle, high), next);
  }
}

TEST(NearestHalfTest, IsInfiniteBeyondTheLargestAndKeepsNans) {
  for (const float x : {65520.0F, 65536.0F, 1e30F, INFINITY}) {
    EXPECT_EQ(cuda::NearestHalf(x), 0x7C00) << x;
    EXPECT_EQ(cuda::NearestHalf(-x), 0xFC00) << x;
  }
  EXPECT_TRUE(std::isnan(Thread::OfHalf(cuda::NearestHalf(NAN))));
  EXPECT_EQ(cuda::NearestHalf(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(HalfPlaceTest, GivesEveryWeightAPlaceOfItsOwn) {
  for (const auto& [rows, cols] : {std::pair{16, 16}, {32, 16}, {16, 128}, {128, 128}, {64, 32}}) {
    std::set<int64_t> places;
    for (int i = 0; i < rows; ++i)
      for (int k = 0; k < cols; ++k) places.insert(cuda::HalfPlace(cols, i, k));
    EXPECT_EQ(std::ssize(places), rows * cols);
    EXPECT_EQ(*places.rbegin(), rows * cols - 1);
  }
}

// ---- Products
// L x of a layer of `rows` and 16 kSteps columns, by a warp for sixteen rows.
template <int kSteps>
std::vector<float> Multiply(int rows, std::span<const float> weights, std::span<const float> x) {
  constexpr int kCols = kSteps * cuda::kPanelCols;
  const auto device = simt::NewSimtDevice({});
  const auto layer = *cuda::DeviceHalves::Upload(*device, 1, rows, kCols, rows, kCols, weights);
  std::vector<float> product(rows);
  const simt::Outcome outcome = simt::Execute(
      {.num_clusters = 1,
       .num_threads = rows / cuda::kHalfRows * simt::kWarpSize,
       .shared_bytes = int{cuda::HalfVector::kFloats * sizeof(float)}},
      {}, [&](Thread& thread) {
        const cuda::HalfVector vector = {reinterpret_cast<uint16_t*>(thread.shared())};
        for (int k = thread.thread(); k < kCols; k += thread.num_threads())
          vector.Put<kCols, Thread>(k, x[k]);
        thread.SyncBlock(0);
        const int tile = thread.warp(), row = cuda::RowOfLane(thread, tile);
        cuda::HalfWeights<kSteps> of_tile;
        of_tile.Load(thread, layer.layer(), tile, row);
        const float sum = cuda::MultiplyHalves(thread, of_tile, vector);
        if (cuda::StoresRow(thread)) product[row] = sum;
      });
  EXPECT_EQ(outcome.trouble, "");
  return product;
}

// Weights of rows of very different sizes, among them zeros and a row of zeros.
std::vector<float> RandomWeights(int rows, int cols) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  std::vector<float> weights(static_cast<size_t>(rows) * cols);
  for (int i = 0; i < rows; ++i) {
    const float scale = i == 3 ? 0.0F : i == 5 ? 1e30F : i == 6 ? 1e-30F : 0.1F;
    for (int k = 0; k < cols; ++k)
      weights[i * cols + k] = k % 7 == 0 ? 0.0F : scale * normal(generator);
  }
  return weights;
}

template <int kSteps>
void ExpectCloseProducts(float scale) {
  constexpr int kCols = kSteps * cuda::kPanelCols, kRows = 48;
  const std::vector<float> weights = RandomWeights(kRows, kCols);
  std::mt19937 generator(9);
  std::normal_distribution<float> normal;
  std::vector<float> x(kCols);
  for (float& element : x) element = scale * normal(generator);
  x[1] = 0.0F;
  const std::vector<float> product = Multiply<kSteps>(kRows, weights, x);
  for (int i = 0; i < kRows; ++i) {
    double sum = 0, size = 0;
    for (int k = 0; k < kCols; ++k) {
      const double term = double{weights[i * kCols + k]} * x[k];
      sum += term;
      size += std::fabs(term);
    }
    EXPECT_LE(std::fabs(product[i] - sum), 0x1p-11 * size) << kSteps << " row " << i;
  }
}

TEST(MultiplyHalvesTest, LosesNoMoreThanTheWeightsDo) {
  for (const float scale : {1.0F, 1000.0F, 0.001F}) {
    ExpectCloseProducts<2>(scale);
    ExpectCloseProducts<4>(scale);
    ExpectCloseProducts<8>(scale);
  }
}

// Weights that are halves: what is lost is of the vector, of which two halves are kept.
TEST(MultiplyHalvesTest, KeepsTwiceTheDigitsOfTheVector) {
  constexpr int kCols = 128, kRows = 16;
  std::vector<float> weights(kRows * kCols, 0.0F), x(kCols);
  std::mt19937 generator(9);
  std::normal_distribution<float> normal;
  for (float& element : x) element = normal(generator);
  for (int i = 0; i < kRows; ++i) weights[i * kCols + 8 * i + 3] = 1.0F;
  const std::vector<float> product = Multiply<8>(kRows, weights, x);
  for (int i = 0; i < kRows; ++i)
    EXPECT_NEAR(product[i], x[8 * i + 3], std::fmax(0x1p-21 * std::fabs(x[8 * i + 3]), 0x1p-25))
        << i;
}

TEST(MultiplyHalvesTest, IsNotFiniteWhereTheVectorIsBeyondHalves) {
  std::vector<float> weights(16 * 32, 1.0F), x(32, 1.0F);
  for (const float large : {7e4F, INFINITY, NAN}) {
    x[9] = large;
    for (const float sum : Multiply<2>(16, weights, x)) EXPECT_FALSE(std::isfinite(sum)) << large;
  }
}

}  // namespace
}  // namespace deeppcr::testing
