// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/program/random_process.h"

#include <cmath>

#include "kernels/program/optimize.h"
#include "tests/testing/larger.h"

namespace deeppcr::program {
namespace {

Program DrawProgram(int seed, int64_t num_steps) {
  RandomProgramOptions options;
  options.instructions = 10 + seed % 31;
  options.jumps = seed % 4 == 0;
  options.state = 1 + seed % 23;
  options.largest = seed % 3 == 0 ? 70 : 24;
  options.layers = seed % 5 < 2 ? num_steps : 0;
  Program program = RandomProgram(static_cast<uint64_t>(seed), options);
  return seed % 2 == 0 ? program : *Optimize(program);
}

// True if an element of `near` is off by more than what the slope of a smooth function explains.
bool Jumps(const std::vector<double>& near, const std::vector<double>& here) {
  for (size_t i = 0; i < here.size(); ++i)
    if (!(std::fabs(near[i] - here[i]) <= 5e-4 * LargestOf(here))) return true;
  return false;
}

}  // namespace

std::vector<float> Floats(std::span<const double> x) { return {x.begin(), x.end()}; }
std::vector<double> Doubles(std::span<const float> x) { return {x.begin(), x.end()}; }

double LargestOf(std::span<const double> x) {
  double largest = 0;
  for (const double e : x) largest = testing::Larger(largest, std::fabs(e));
  return largest;
}

RandomProcess::RandomProcess(int seed, int64_t num_steps)
    : program_(DrawProgram(seed, num_steps)),
      random_(program_, static_cast<uint64_t>(seed)),
      state_(Floats(random_.state())),
      condition_(Floats(random_.inputs().condition)),
      noise_(Floats(random_.inputs().noise)),
      steps_(static_cast<size_t>(num_steps), *random_.inputs().reverse) {
  for (ReverseStep& step : steps_) {
    if (seed % 3 == 1) step.z_z = 2;
    step.timestep = static_cast<int64_t>(random_.inputs().time);
    step_noise_.insert(step_noise_.end(), noise_.begin(), noise_.end());
  }
}

DiffusionProgramSpec RandomProcess::spec() const {
  return {.state_dim = dim(),
          .steps = steps_,
          .clip_range = random_.inputs().clip_range,
          .program = &program_,
          .step_weights = 1,
          .condition_dim = static_cast<int64_t>(condition_.size()),
          .num_classes = kRowsOfTables};
}

void RandomProcess::Evaluate(Evaluation& evaluation, std::span<const double> state, int64_t step,
                             double condition_factor) {
  condition_in_double_ = Doubles(condition_);
  for (double& c : condition_in_double_) c *= condition_factor;
  noise_in_double_ = Doubles(noise_);
  StepInputs in = random_.inputs();
  in.condition = condition_in_double_;
  in.noise = noise_in_double_;
  in.reverse = &steps_[static_cast<size_t>(step)];
  in.step = step;
  evaluation.Run(in, state);
}

std::vector<double> RandomProcess::JacobianAt(Evaluation& evaluation, double factor, int64_t step) {
  std::vector<double> state = Doubles(state_);
  for (double& z : state) z *= factor;
  Evaluate(evaluation, state, step);
  std::vector<double> unit(static_cast<size_t>(dim() * dim()));
  for (int64_t i = 0; i < dim(); ++i) unit[static_cast<size_t>(i * dim() + i)] = 1;
  return evaluation.Tangents(unit, dim());
}

bool RandomProcess::ChangesSides(Evaluation& evaluation, int64_t step) {
  const std::vector<double> here = JacobianAt(evaluation, 1, step);
  const bool jumps = Jumps(JacobianAt(evaluation, 1 - 1e-6, step), here) ||
                     Jumps(JacobianAt(evaluation, 1 + 1e-6, step), here);
  Evaluate(evaluation, Doubles(state_), step);
  return jumps;
}

bool RandomProcess::ConditionChangesSides(Evaluation& evaluation, std::span<const double> of_output,
                                          int64_t step) {
  const auto cotangent_at = [&](double factor) {
    Evaluate(evaluation, Doubles(state_), step, factor);
    return evaluation.Cotangent(of_output, program_.condition);
  };
  const std::vector<double> here = cotangent_at(1);
  const bool jumps = Jumps(cotangent_at(1 - 1e-6), here) || Jumps(cotangent_at(1 + 1e-6), here);
  Evaluate(evaluation, Doubles(state_), step);
  return jumps;
}

}  // namespace deeppcr::program
