// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math/dense_chain_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/kernels/cuda/stack/stack_on_device.h"
#include "tests/testing/simt/executor.h"
#include "tests/testing/simt/orders.h"

namespace deeppcr::testing {
namespace {

using simt::Order;

constexpr int kSamples = 2;

// Random layers of these widths; the first width is that of the input.
struct Chain {
  explicit Chain(const std::vector<int>& dims, Activation activation = Activation::kSilu)
      : widths(dims) {
    std::mt19937 generator(7);
    std::normal_distribution<float> normal;
    const auto draw = [&](int64_t n, float scale) {
      DeviceVector values(n);
      for (float& x : values) x = scale * normal(generator);
      return values;
    };
    inputs = draw(int64_t{kSamples} * widths.front(), 1);
    for (size_t i = 1; i < widths.size(); ++i) {
      weights.push_back(draw(int64_t{widths[i]} * widths[i - 1],
                             1 / std::sqrt(static_cast<float>(widths[i - 1]))));
      biases.push_back(draw(widths[i], 0.1F));
      layers.push_back({.weights = weights.back().data(),
                        .biases = biases.back().data(),
                        .rows = widths[i],
                        .cols = widths[i - 1],
                        .activation = activation});
    }
  }

  std::vector<int> widths;
  std::vector<DeviceVector> weights, biases;
  std::vector<cuda::DenseView> layers;
  DeviceVector inputs;
};

struct Applied {
  DeviceVector outputs, copies, amplification;
  simt::Outcome launch;
};

Applied Apply(const Chain& chain, int num_warps, bool in_shared,
              const simt::Schedule& schedule = {}) {
  const int widest = *std::max_element(chain.widths.begin(), chain.widths.end());
  const int64_t floats = cuda::DenseChainFloats(widest);
  const int64_t stride = chain.widths.back() + 3;
  Applied applied{DeviceVector(kSamples * stride),
                  DeviceVector(chain.inputs.size()),
                  DeviceVector(kSamples),
                  {}};
  DeviceVector scratch(in_shared ? 0 : kSamples * floats, NAN);
  const cuda::DenseChainArgs args{.layers = chain.layers.data(),
                                  .num_layers = static_cast<int32_t>(chain.layers.size()),
                                  .input_dim = chain.widths.front(),
                                  .output_dim = chain.widths.back(),
                                  .widest = widest,
                                  .inputs = chain.inputs.data(),
                                  .input_stride = chain.widths.front(),
                                  .outputs = applied.outputs.data(),
                                  .output_stride = stride,
                                  .input_copies = applied.copies.data(),
                                  .copied_dim = chain.widths.front(),
                                  .amplification = applied.amplification.data(),
                                  .scratch = in_shared ? nullptr : scratch.data()};
  const simt::LaunchShape shape{.num_clusters = kSamples,
                                .num_threads = num_warps * cuda::kWarpSize,
                                .shared_bytes = in_shared ? floats * sizeof(float) : 0};
  applied.launch =
      Execute(shape, schedule, [&](simt::Thread& thread) { cuda::ApplyDenseChain(thread, args); });
  return applied;
}

// The output, computed in double, layer by layer.
std::vector<double> Reference(const Chain& chain, std::vector<double> x) {
  for (size_t i = 0; i < chain.layers.size(); ++i) {
    std::vector<double> y(chain.widths[i + 1]);
    for (size_t r = 0; r < y.size(); ++r) {
      y[r] = chain.biases[i][r];
      for (size_t k = 0; k < x.size(); ++k) y[r] += chain.weights[i][r * x.size() + k] * x[k];
      y[r] = y[r] / (1 + std::exp(-y[r]));  // silu
    }
    x = y;
  }
  return x;
}

// The largest row sum of the absolute Jacobian, by central differences.
double ReferenceAmplification(const Chain& chain, const std::vector<double>& x) {
  std::vector<double> sums(chain.widths.back());
  for (size_t j = 0; j < x.size(); ++j) {
    std::vector<double> up = x, down = x;
    up[j] += 1e-5;
    down[j] -= 1e-5;
    const std::vector<double> high = Reference(chain, up), low = Reference(chain, down);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += std::fabs(high[i] - low[i]) / 2e-5;
  }
  return *std::max_element(sums.begin(), sums.end());
}

TEST(DenseChainKernelTest, AgreesWithTheReference) {
  for (const std::vector<int>& widths : std::vector<std::vector<int>>{
           {1, 1}, {5, 3}, {8, 8, 8}, {9, 33, 4}, {17, 70, 40, 12}, {31, 2, 65}}) {
    const Chain chain(widths);
    for (const bool in_shared : {true, false}) {
      const Applied applied = Apply(chain, 3, in_shared);
      ASSERT_EQ(applied.launch.trouble, "");
      const int dim = widths.front(), rows = widths.back();
      for (int s = 0; s < kSamples; ++s) {
        const std::vector<double> x(chain.inputs.begin() + s * dim,
                                    chain.inputs.begin() + (s + 1) * dim);
        const std::vector<double> want = Reference(chain, x);
        for (int i = 0; i < rows + 3; ++i)
          EXPECT_NEAR(applied.outputs[s * (rows + 3) + i], i < rows ? want[i] : 0, 1e-5);
        EXPECT_NEAR(applied.amplification[s], ReferenceAmplification(chain, x),
                    1e-4 * (1 + applied.amplification[s]));
      }
      EXPECT_EQ(applied.copies, chain.inputs);
    }
  }
}

TEST(DenseChainKernelTest, NoLayersGiveTheInputs) {
  const Chain chain({11});
  const Applied applied = Apply(chain, 2, true);
  for (int i = 0; i < 11; ++i) EXPECT_EQ(applied.outputs[i], chain.inputs[i]);
  EXPECT_EQ(applied.amplification[0], 1.0F);
}

TEST(DenseChainKernelTest, ANaNAmplifiesWithoutBound) {
  Chain chain({4, 20, 3});
  chain.weights[0][5] = NAN;
  EXPECT_EQ(Apply(chain, 2, true).amplification[1], INFINITY);
}

TEST(DenseChainKernelTest, BitsDoNotDependOnTheLaunch) {
  const Chain chain({13, 40, 21});
  const Applied first = Apply(chain, 1, true);
  for (const int num_warps : {2, 5, 8}) {
    for (const Order order : {Order::kDescending, Order::kShuffled}) {
      const Applied other = Apply(chain, num_warps, num_warps == 5, {.order = order, .seed = 3});
      EXPECT_EQ(other.outputs, first.outputs);
      EXPECT_EQ(other.amplification, first.amplification);
    }
  }
}

TEST(DenseChainKernelTest, EveryBarrierIsNeeded) {
  const Chain chain({13, 40, 21, 70});
  const Applied right = Apply(chain, 4, true);
  const simt::OrdersOfWarps orders([&](const simt::Schedule& schedule) {
    const Applied other = Apply(chain, 4, true, schedule);
    return !other.launch.trouble.empty() || other.outputs != right.outputs ||
           other.amplification != right.amplification;
  });
  for (int site = 0; site < cuda::kNumDenseChainSites; ++site) {
    EXPECT_GT(right.launch.passes[site], 0);
    EXPECT_TRUE(orders.Notice(site)) << "site " << site;
  }
}

}  // namespace
}  // namespace deeppcr::testing
