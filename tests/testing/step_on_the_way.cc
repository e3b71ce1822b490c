// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/step_on_the_way.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {

StepOnTheWay::StepOnTheWay(uint64_t seed, double rtol, int64_t interval, float stale)
    : random_(seed), rtol_(rtol), interval_(interval) {
  step_ = 6 + 2 * static_cast<int64_t>(seed % 5);
  attack_ = ZeroStack(step_ + 10, kDim, Activation::kTanh);
  attack_.residual = true;
  attack_.inputs = {Any(), Any(), 0, 0, 1};
  for (int64_t l = 0; l < step_; ++l)
    for (int i = 0; i < 2; ++i) {
      Weight(l, i, i) = 1.2F * Any();
      attack_.biases[kDim * l + i] = Any();
    }
  const SolverRig rig(*cpu::NewCpuBackend(), attack_.spec());
  attack_.options = OptionsFor("newton", attack_.num_steps, interval, rtol);
  attack_.options.on_no_convergence = OnNoConvergence::kReturn;
  if (stale != 0) {
    std::vector<float> inputs = attack_.inputs;
    for (const int i : {0, 1}) inputs[i] += Any() > 0 ? stale : -stale;
    inputs[4] += 3 * stale;
    attack_.previous = rig.Solve({.solver = "sequential"}, inputs).trajectory;
    attack_.options.initial_guess = InitialGuess::kPrevious;
    attack_.options.max_iterations = 1;  // or the answer is found from nearer states than these
  }
  const Solved certified =
      rig.Solve(attack_.options,
                {.num_samples = 1, .inputs = attack_.inputs, .initial_states = attack_.previous});
  const Solved sequential = rig.Solve({.solver = "sequential"}, attack_.inputs);
  if (!certified.reports[0].converged) return;
  for (int i = 0; i < 2; ++i) {
    claim_[i] = certified.trajectory[kDim * step_ + i];
    error_[i] = sequential.trajectory[kDim * step_ + i] - claim_[i];
  }
}

bool StepOnTheWay::has_error(double least) const {
  return std::fabs(error_[0]) >= least * std::max(1.0, std::fabs(claim_[0]));
}

bool StepOnTheWay::PlantGate(double at, double other) {
  const double sign = error_[0] > 0 ? 1 : -1, steep = Steepness(at);
  if (sign * error_[0] - other * error_[1] < 0.5 * std::fabs(error_[0])) return false;
  SetRow(step_, 4, sign * steep, -other * steep,
         steep * (other * (claim_[1] + at * error_[1]) - sign * (claim_[0] + at * error_[0])));
  return true;
}

void StepOnTheWay::PlantWindow(double at, double wide) {
  const double sign = error_[0] > 0 ? 1 : -1, steep = sign * Steepness(at);
  SetRow(step_, 2, steep, 0, -steep * (claim_[0] + at * error_[0]));
  SetRow(step_, 3, steep, 0, -steep * (claim_[0] + (1 + wide / 2) * error_[0]));
  Weight(step_ + 1, 2, 2) = Weight(step_ + 1, 3, 3) = -20;
  Weight(step_ + 1, 4, 2) = 20;
  Weight(step_ + 1, 4, 3) = -20;
  attack_.biases[kDim * (step_ + 1) + 4] = -20;
}

void StepOnTheWay::PlantLowStep(double at, double height) {
  const double steep = (error_[0] > 0 ? 1 : -1) * Steepness(at);
  SetRow(step_, 2, steep, 0, -steep * (claim_[0] + at * error_[0]));
  Weight(step_ + 1, 2, 2) = -20;
  Weight(step_ + 1, 4, 2) = static_cast<float>(height / 2);
  attack_.biases[kDim * (step_ + 1) + 4] = static_cast<float>(height / 2);
}

float StepOnTheWay::Any() { return std::uniform_real_distribution<float>(-1, 1)(random_); }
float& StepOnTheWay::Weight(int64_t l, int to, int from) {
  return attack_.weights[(l * kDim + to) * kDim + from];
}
double StepOnTheWay::Steepness(double at) const { return 20 / (1 - at) / std::fabs(error_[0]); }
void StepOnTheWay::SetRow(int64_t l, int to, double first, double second, double bias) {
  Weight(l, to, 0) = static_cast<float>(first);
  Weight(l, to, 1) = static_cast<float>(second);
  attack_.biases[kDim * l + to] = static_cast<float>(bias);
}

}  // namespace deeppcr::testing
