// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CUDA_STACK_BACKWARD_PROBLEM_H_
#define DEEPPCR_TESTS_KERNELS_CUDA_STACK_BACKWARD_PROBLEM_H_

// A backward pass: its inputs, the gradients by a loop in double precision, and the answer of the
// kernels on the SIMT executor.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/stack/backward_kernel.h"
#include "kernels/cuda/stack/backward_scan_kernel.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/stack/stack_on_device.h"
#include "tests/testing/simt/executor.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {

inline std::vector<float> Rounded(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

// The inputs of a backward pass: the states of n samples, and for each m gradients with respect to
// the final state.
struct BackwardProblem {
  explicit BackwardProblem(const StackOptions& options, int64_t samples = 1, int64_t columns = 1)
      : system(options), n(samples), m(columns), final_gradients(system.Inputs(n * m, 6)) {
    const std::vector<float> inputs = system.Inputs(n, 5);
    for (int64_t s = 0; s < n; ++s) {
      const auto z0 = inputs.begin() + s * options.state_dim;
      const auto trajectory = Rounded(
          reference::Trajectory(system.spec(), std::vector<double>(z0, z0 + options.state_dim)));
      states.insert(states.end(), trajectory.begin(), trajectory.end());
    }
  }
  int64_t dim() const { return system.spec().state_dim; }
  int64_t steps() const { return system.spec().num_steps; }
  const float* state(int64_t s, int64_t l) const {
    return states.data() + (s * (steps() + 1) + l) * dim();
  }

  RandomSystem system;
  int64_t n, m;
  std::vector<float> final_gradients;                 // [n, m, D]
  std::vector<float, DeviceAllocator<float>> states;  // [n, L + 1, D]
};

// ---- The oracle
struct StackGradients {
  std::vector<double> initial;          // [n, D]
  std::vector<double> deltas;           // [n, L, D]
  std::vector<double> weights, biases;  // [L, D, D], [L, D]
};

// The delta of a layer l = 1..L, from the gradient with respect to z_l.
inline std::vector<double> DeltaOf(const DenseStackSpec& spec, int64_t l, const float* z,
                                   const std::vector<double>& g) {
  const int64_t dim = spec.state_dim;
  std::vector<double> delta(dim);
  for (int64_t i = 0; i < dim; ++i) {
    double a = spec.biases[(l - 1) * dim + i];
    for (int64_t k = 0; k < dim; ++k)
      a += double{spec.weights[((l - 1) * dim + i) * dim + k]} * z[k];
    delta[i] = reference::Differentiate(spec.activation, a) * g[i];
    if (spec.residual) delta[i] *= spec.residual_scale;
  }
  return delta;
}

// Of problems with one column.
inline StackGradients ReferenceGradients(const BackwardProblem& problem) {
  const DenseStackSpec& spec = problem.system.spec();
  const int64_t dim = problem.dim(), steps = problem.steps();
  StackGradients all{{},
                     std::vector<double>(problem.n * steps * dim),
                     std::vector<double>(steps * dim * dim),
                     std::vector<double>(steps * dim)};
  for (int64_t s = 0; s < problem.n; ++s) {
    const auto from = problem.final_gradients.begin() + s * dim;
    std::vector<double> g(from, from + dim);
    for (int64_t l = steps; l >= 1; --l) {
      const float* z = problem.state(s, l - 1);
      const std::vector<double> delta = DeltaOf(spec, l, z, g);
      std::copy(delta.begin(), delta.end(), all.deltas.begin() + (s * steps + l - 1) * dim);
      if (!spec.residual) std::fill(g.begin(), g.end(), 0.0);
      for (int64_t i = 0; i < dim; ++i) {
        all.biases[(l - 1) * dim + i] += delta[i];
        for (int64_t j = 0; j < dim; ++j) {
          const int64_t at = ((l - 1) * dim + i) * dim + j;
          g[j] += double{spec.weights[at]} * delta[i];
          all.weights[at] += delta[i] * z[j];
        }
      }
    }
    all.initial.insert(all.initial.end(), g.begin(), g.end());
  }
  return all;
}

// ---- The kernels
struct BackwardLaunch {
  int64_t interval = 0;  // C; 0: the sequential kernel
  int num_blocks = 1;
  int num_warps = 1;
  bool in_workspace = false;
  bool wants_deltas = true;
  int32_t piece = 1 << 30;  // steps of a launch of the sequential kernel

  std::string Name() const {
    return " C " + std::to_string(interval) + " blocks " + std::to_string(num_blocks) + " warps " +
           std::to_string(num_warps);
  }
};

struct BackwardAnswer {
  DeviceVector initial;  // [n, m, W]
  DeviceVector deltas;   // [n, L, D]
  int64_t num_dependent = 0;
  simt::Outcome launch;
};

template <int W>
simt::Outcome Scan(const cuda::BackwardArgs& backward, const BackwardLaunch& launch,
                   const simt::Schedule& schedule) {
  const auto intervals = static_cast<int32_t>((backward.stack.num_steps - 1) / launch.interval + 1);
  cuda::BackwardScanArgs args{.backward = backward,
                              .tree = cuda::IntervalTree(intervals, launch.num_blocks),
                              .shooting_interval = static_cast<int32_t>(launch.interval),
                              .workspace = nullptr};
  const size_t bytes =
      cuda::BackwardMemory<W>::Bytes(args.tree, args.shooting_interval, backward.num_columns);
  DeviceVector workspace(
      launch.in_workspace ? backward.num_samples * launch.num_blocks * bytes / sizeof(float) : 0,
      std::nanf(""));
  const simt::LaunchShape shape{.num_clusters = backward.num_samples,
                                .num_blocks = launch.num_blocks,
                                .num_threads = launch.num_warps * cuda::kWarpSize,
                                .shared_bytes = launch.in_workspace ? 0 : bytes};
  if (launch.in_workspace) args.workspace = reinterpret_cast<std::byte*>(workspace.data());
  simt::Outcome outcome = simt::Execute(shape, schedule, [&](simt::Thread& thread) {
    launch.in_workspace ? cuda::GoBackByScan<W, true>(thread, args)
                        : cuda::GoBackByScan<W, false>(thread, args);
  });
  // Samples run one after another here, so only the use of separate workspaces tells them apart.
  const auto of_sample = static_cast<int64_t>(workspace.size()) / backward.num_samples;
  for (auto from = workspace.begin(); from != workspace.end(); from += of_sample)
    EXPECT_FALSE(std::all_of(from, from + of_sample, [](float x) { return std::isnan(x); }));
  return outcome;
}

template <int W>
simt::Outcome GoStepByStep(const cuda::BackwardArgs& args, const BackwardLaunch& launch,
                           const simt::Schedule& schedule) {
  const int rows = args.num_samples * args.num_columns;
  const simt::LaunchShape shape{.num_clusters = (rows - 1) / launch.num_warps + 1,
                                .num_threads = launch.num_warps * cuda::kWarpSize};
  // In two pieces, where that is wanted, the second from what the first has left.
  const auto steps = static_cast<int32_t>(args.stack.num_steps);
  simt::Outcome outcome;
  for (int32_t end = steps; end > 0 && outcome.trouble.empty();) {
    const int32_t begin = end > launch.piece ? end - launch.piece : 0;
    cuda::BackwardStepsArgs piece = {.backward = args, .begin = begin, .end = end};
    if (end < steps) piece.backward.final_gradients = args.initial_gradients;
    outcome = simt::Execute(
        shape, schedule, [&](simt::Thread& thread) { cuda::GoBackSequentially<W>(thread, piece); });
    end = begin;
  }
  return outcome;
}

template <int W>
BackwardAnswer GoBack(const BackwardProblem& problem, const BackwardLaunch& launch,
                      const simt::Schedule& schedule = {}) {
  const StackOnDevice stack(problem.system.spec(), W);
  const DeviceVector final_gradients = Padded(problem.final_gradients, problem.dim(), W);
  const float nan = std::nanf("");
  BackwardAnswer answer{DeviceVector(problem.n * problem.m * W, nan), {}};
  const bool wants_deltas = launch.wants_deltas && problem.m == 1;
  if (wants_deltas) answer.deltas.assign(problem.n * problem.steps() * problem.dim(), nan);
  const cuda::BackwardArgs args{.stack = stack.view(),
                                .num_samples = static_cast<int32_t>(problem.n),
                                .num_columns = static_cast<int32_t>(problem.m),
                                .states = problem.states.data(),
                                .final_gradients = final_gradients.data(),
                                .initial_gradients = answer.initial.data(),
                                .deltas = wants_deltas ? answer.deltas.data() : nullptr,
                                .num_dependent = &answer.num_dependent};
  answer.launch = launch.interval == 0 ? GoStepByStep<W>(args, launch, schedule)
                                       : Scan<W>(args, launch, schedule);
  return answer;
}

// Rows of W without the elements beyond D, which must be zero.
inline std::vector<float> Used(const DeviceVector& rows, int64_t dim, int64_t width) {
  std::vector<float> used;
  for (size_t at = 0; at < rows.size(); ++at) {
    if (static_cast<int64_t>(at) % width < dim)
      used.push_back(rows[at]);
    else
      EXPECT_EQ(rows[at], 0.0F);
  }
  return used;
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CUDA_STACK_BACKWARD_PROBLEM_H_
