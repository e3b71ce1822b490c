// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/program_ops.h"

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
                            std::span<const double> condition, std::span<const double> z) {
  return At(spec, step, condition, {}, z).Get(spec.program->prediction);
}

std::vector<double> Step(const DiffusionProgramSpec& spec, int64_t step,
                         std::span<const double> condition, std::span<const float> noise,
                         std::span<const double> z) {
  return At(spec, step, condition, noise, z).Get(spec.program->output);
}

std::vector<double> StepJacobian(const DiffusionProgramSpec& spec, int64_t step,
                                 std::span<const double> condition, std::span<const double> z) {
  const int64_t dim = spec.state_dim;
  std::vector<double> unit(static_cast<size_t>(dim * dim));
  for (int64_t i = 0; i < dim; ++i) unit[static_cast<size_t>(i * dim + i)] = 1;
  return At(spec, step, condition, {}, z).evaluation().Tangents(unit, dim);
}

std::vector<double> StepByInputs(const DiffusionProgramSpec& spec, int64_t step,
                                 const float* inputs, int32_t label, std::span<const double> z) {
  if (spec.program->condition == program::kNoValue) return {};
  const std::vector<double> condition = Condition(spec, inputs, label);
  const At at(spec, step, condition, {}, z);
  std::vector<double> jacobian;
  for (int64_t i = 0; i < spec.state_dim; ++i) {
    std::vector<double> unit(static_cast<size_t>(spec.state_dim));
    unit[static_cast<size_t>(i)] = 1;
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
