// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_PLAIN_BACKWARD_H_
#define DEEPPCR_TESTS_TESTING_PLAIN_BACKWARD_H_

// The backward pass in plain float32, to know what single precision can give for a system: the
// Jacobians of the reference, of which each slope is off by up to kUlps units in the last place, as
// float32's functions are (kernels/program/op.h); everything else is loops over floats.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/reference/recurrence.h"

namespace deeppcr::testing {

class PlainBackward {
 public:
  // At states z_0..z_L [L + 1, D] of one sample.
  PlainBackward(const reference::Family& family, const SampleInput& input, const float* states)
      : dim_(family.shape.state_dim), num_steps_(family.shape.num_steps) {
    const auto recurrence = family.Encode(input);
    for (int64_t l = 1; l <= num_steps_; ++l) {
      const float* z = states + (l - 1) * dim_;
      exact_.push_back(recurrence->StepJacobian(l, {z, z + dim_}));
    }
  }

  // Draws the errors of the slopes.
  void Draw(uint64_t seed) {
    constexpr double kUlps = 4;
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> ulps(-kUlps, kUlps);
    jacobians_.clear();
    for (const std::vector<double>& exact : exact_) {
      std::vector<float>& jacobian = jacobians_.emplace_back(exact.size());
      for (int64_t i = 0; i < dim_; ++i) {
        const double slope = 1 + ulps(random) * 0x1p-24;
        for (int64_t k = i * dim_; k < (i + 1) * dim_; ++k)
          jacobian[k] = static_cast<float>(exact[k] * slope);
      }
    }
  }

  // g_0 from g_L, step by step.
  std::vector<float> Sequential(std::vector<float> g) const {
    for (int64_t l = num_steps_; l > 0; --l) g = Back(jacobians_[l - 1], g);
    return g;
  }
  // g_0 by the matrices of intervals of C steps.
  std::vector<float> ByIntervals(std::vector<float> g, int64_t interval) const {
    for (int64_t begin = (num_steps_ - 1) / interval * interval; begin >= 0; begin -= interval) {
      std::vector<float> product = jacobians_[begin];
      for (int64_t l = begin + 1; l < std::min(begin + interval, num_steps_); ++l)
        product = Product(jacobians_[l], product);
      g = Back(product, g);
    }
    return g;
  }

 private:
  std::vector<float> Back(const std::vector<float>& a, const std::vector<float>& g) const {
    std::vector<float> y(g.size());
    for (int64_t i = 0; i < dim_; ++i)
      for (int64_t k = 0; k < dim_; ++k) y[k] += a[i * dim_ + k] * g[i];
    return y;
  }
  std::vector<float> Product(const std::vector<float>& a, const std::vector<float>& b) const {
    std::vector<float> c(a.size());
    for (int64_t i = 0; i < dim_; ++i)
      for (int64_t k = 0; k < dim_; ++k)
        for (int64_t j = 0; j < dim_; ++j) c[i * dim_ + j] += a[i * dim_ + k] * b[k * dim_ + j];
    return c;
  }

  const int64_t dim_, num_steps_;
  std::vector<std::vector<double>> exact_;
  std::vector<std::vector<float>> jacobians_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_PLAIN_BACKWARD_H_
