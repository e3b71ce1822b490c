// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/program_ops.h"

#include <algorithm>

#include "kernels/program/evaluate.h"
#include "kernels/reference/diffusion_ops.h"

namespace deeppcr::reference {
namespace {

// The program at state z of a reverse step.
class At {
 public:
  At(const DiffusionProgramSpec& spec, int64_t step, std::span<const double> condition,
     std::span<const float> noise, std::span<const double> z)
      : noise_(noise.begin(), noise.end()), evaluation_(*spec.program) {
    const ReverseStep& reverse = spec.steps[static_cast<size_t>(step)];
    evaluation_.Run({.time = reverse.timestep,
                     .step = step,
                     .condition = condition.first(static_cast<size_t>(spec.condition_dim)),
                     .label = spec.num_classes > 0 ? condition.back() : 0,
                     .reverse = &reverse,
                     .clip_range = spec.clip_range,
                     .noise = noise_},
                    z);
  }
  std::vector<double> Get(program::ValueId id) const {
    const std::span<const double> value = evaluation_.at(id);
    return {value.begin(), value.end()};
  }
  const program::Evaluation& evaluation() const { return evaluation_; }

 private:
  std::vector<double> noise_;
  program::Evaluation evaluation_;
};

}  // namespace

std::vector<double> Condition(const DiffusionProgramSpec& spec, const float* inputs,
                              int32_t label) {
  std::vector<double> condition(inputs, inputs + spec.condition_dim);
  if (spec.num_classes > 0) condition.push_back(label);
  return condition;
}

std::vector<double> Denoise(const DiffusionProgramSpec& spec, int64_t step,
                            std::span<const double> condition, std::span<const double> state) {
  return At(spec, step, condition, {}, state).Get(spec.program->prediction);
}

std::vector<double> Step(const DiffusionProgramSpec& spec, int64_t step,
                         std::span<const double> condition, std::span<const float> noise,
                         std::span<const double> state) {
  return At(spec, step, condition, noise, state).Get(spec.program->output);
}

std::vector<double> StepJacobian(const DiffusionProgramSpec& spec, int64_t step,
                                 std::span<const double> condition, std::span<const double> state,
                                 std::span<const float> noise) {
  const auto dim = static_cast<int64_t>(state.size());
  std::vector<double> unit(static_cast<size_t>(dim * dim));
  for (int64_t i = 0; i < dim; ++i) unit[static_cast<size_t>(i * dim + i)] = 1;
  return At(spec, step, condition, noise, state).evaluation().Tangents(unit, dim);
}

// No element of z' has noise of another one: a cotangent of ones picks all factors at once.
std::vector<double> StepByNoise(const DiffusionProgramSpec& spec, int64_t step,
                                std::span<const double> condition, std::span<const double> state) {
  // The noise comes with the state, or by itself where what scales it does. Known elements take
  // none of it.
  const StepPart part = spec.form.noise_scale == NoiseScale::kFixed ? StepPart::kState  //
                                                                    : StepPart::kNoise;
  const auto adds_noise = [&](const program::Instruction& instruction) {
    return instruction.op == program::Op::kReverseStep && instruction.part == part;
  };
  const auto noise = std::ranges::find_if(spec.program->instructions, adds_noise);
  std::vector<double> ones(state.size());
  std::fill_n(ones.begin(), spec.state_dim, 1.0);
  std::vector<double> factors =
      At(spec, step, condition, {}, state).evaluation().Cotangent(ones, noise->result);
  for (double& factor : factors) factor *= spec.steps[static_cast<size_t>(step)].sigma;
  return factors;
}

std::vector<double> StepByInputs(const DiffusionProgramSpec& spec, int64_t step,
                                 const float* inputs, int32_t label, std::span<const double> state,
                                 std::span<const float> noise) {
  if (spec.program->condition == program::kNoValue) return {};
  const std::vector<double> condition = Condition(spec, inputs, label);
  const At at(spec, step, condition, noise, state);
  std::vector<double> jacobian;
  for (size_t i = 0; i < state.size(); ++i) {
    std::vector<double> unit(state.size());
    unit[i] = 1;
    const std::vector<double> row = at.evaluation().Cotangent(unit, spec.program->condition);
    jacobian.insert(jacobian.end(), row.begin(), row.end());
  }
  return jacobian;
}

std::vector<double> Decode(const DiffusionProgramSpec& spec, std::span<const double> state) {
  return Decode(DiffusionSpec{.decoder = spec.decoder}, state);
}

std::vector<double> DecodeJacobian(const DiffusionProgramSpec& spec,
                                   std::span<const double> state) {
  return DecodeJacobian(DiffusionSpec{.decoder = spec.decoder}, state);
}

}  // namespace deeppcr::reference
