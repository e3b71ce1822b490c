// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_PROGRAM_RANDOM_PROCESS_H_
#define DEEPPCR_TESTS_KERNELS_PROGRAM_RANDOM_PROCESS_H_

#include <cstdint>
#include <vector>

#include "kernels/problem/spec.h"
#include "kernels/program/evaluate.h"
#include "tests/kernels/program/random_program.h"

namespace deeppcr::program {

// A random program as a process of equal steps but for stacked constants, every third of which
// expands its states, and inputs of it, which are numbers of float32.
class RandomProcess {
 public:
  RandomProcess(int seed, int64_t num_steps);
  RandomProcess(const RandomProcess&) = delete;

  const Program& program() const { return program_; }
  // A view of this object.
  DiffusionProgramSpec spec() const;
  int64_t dim() const { return static_cast<int64_t>(state_.size()); }
  int64_t num_steps() const { return static_cast<int64_t>(steps_.size()); }
  const std::vector<float>& state() const { return state_; }
  const std::vector<float>& condition() const { return condition_; }
  const std::vector<float>& step_noise() const { return step_noise_; }  // [L, D]
  int32_t label() const { return static_cast<int32_t>(random_.inputs().label); }

  // Evaluates a step in double, with the condition times a factor.
  void Evaluate(Evaluation& evaluation, std::span<const double> state, int64_t step = 0,
                double condition_factor = 1);
  // The Jacobian [D, D] of a step at the state times a factor.
  std::vector<double> JacobianAt(Evaluation& evaluation, double factor, int64_t step);
  // True if the Jacobian of the step jumps within the rounding of float32 around the state, where
  // the evaluation is left.
  bool ChangesSides(Evaluation& evaluation, int64_t step);
  // The same of the cotangent of the condition, from one of the output.
  bool ConditionChangesSides(Evaluation& evaluation, std::span<const double> of_output,
                             int64_t step);

 private:
  const Program program_;
  const RandomInputs random_;
  const std::vector<float> state_, condition_, noise_;
  std::vector<ReverseStep> steps_;
  std::vector<float> step_noise_;
  std::vector<double> condition_in_double_, noise_in_double_;
};

std::vector<float> Floats(std::span<const double> x);
std::vector<double> Doubles(std::span<const float> x);
// The largest magnitude; NaN where an element is none.
double LargestOf(std::span<const double> x);

}  // namespace deeppcr::program

#endif  // DEEPPCR_TESTS_KERNELS_PROGRAM_RANDOM_PROCESS_H_
