// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_AFFINE_FIT_H_
#define DEEPPCR_TESTS_GPU_AFFINE_FIT_H_

// The affine guess of a network as a load of a model would fit it: least squares over random
// initial states, at the ends of shooting intervals.

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/loop/guess.h"
#include "tests/gpu/trial.h"

namespace deeppcr::cuda {

class AffineFit {
 public:
  // `states` [n, L + 1, D]: trajectories of the trial's samples, of which there are more than D
  // + 1.
  AffineFit(const Trial& trial, const std::vector<float>& states, int interval)
      : stride_(interval),
        count_((trial.network().steps - 1) / interval + 1),
        map_(Fit(trial, states, interval)) {}

  GuessView View() const { return {nullptr, map_.data(), stride_, count_}; }

 private:
  using Matrix = std::vector<std::vector<double>>;

  // Rows of `right` become those of the solution: Gauss's elimination of a positive definite
  // `left`.
  static void Eliminate(Matrix* left, Matrix* right) {
    const size_t n = left->size();
    const auto subtract = [](const std::vector<double>& from, double factor,
                             std::vector<double>* to) {
      for (size_t i = 0; i < from.size(); ++i) (*to)[i] -= factor * from[i];
    };
    for (size_t k = 0; k < n; ++k) {
      const double pivot = (*left)[k][k];
      for (double& x : (*left)[k]) x /= pivot;
      for (double& x : (*right)[k]) x /= pivot;
      for (size_t r = 0; r < n; ++r) {
        if (r == k) continue;
        const double factor = (*left)[r][k];
        subtract((*left)[k], factor, &(*left)[r]);
        subtract((*right)[k], factor, &(*right)[r]);
      }
    }
  }

  // [count, D + 1, W], zero beyond D.
  static std::vector<float> Fit(const Trial& trial, const std::vector<float>& states,
                                int interval) {
    const int dim = trial.network().dim, width = trial.network().width;
    const int64_t steps = trial.network().steps, count = (steps - 1) / interval + 1;
    const int64_t n = static_cast<int64_t>(trial.initial().size()) / width;
    const auto input = [&](int64_t s, int k) {
      return k == 0 ? 1.0 : double{trial.initial()[s * width + k - 1]};
    };
    Matrix left(dim + 1, std::vector<double>(dim + 1));
    Matrix weights(dim + 1, std::vector<double>(n));  // of the samples' states in a coefficient
    for (int k = 0; k <= dim; ++k) {
      for (int64_t s = 0; s < n; ++s) weights[k][s] = input(s, k);
      for (int j = 0; j <= dim; ++j)
        for (int64_t s = 0; s < n; ++s) left[k][j] += input(s, k) * input(s, j);
    }
    Eliminate(&left, &weights);
    std::vector<float> map(count * (dim + 1) * width);
    for (int64_t p = 0; p < count; ++p) {
      const int64_t step = std::min<int64_t>((p + 1) * interval, steps);
      for (int k = 0; k <= dim; ++k) {
        for (int i = 0; i < dim; ++i) {
          double sum = 0;
          for (int64_t s = 0; s < n; ++s)
            sum += weights[k][s] * states[(s * (steps + 1) + step) * dim + i];
          map[(p * (dim + 1) + k) * width + i] = static_cast<float>(sum);
        }
      }
    }
    return map;
  }

  const int64_t stride_, count_;
  const OnDevice<float> map_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_AFFINE_FIT_H_
