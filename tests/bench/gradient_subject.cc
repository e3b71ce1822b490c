// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/gradient_subject.h"

#include <algorithm>
#include <random>

#include "kernels/base/status_macros.h"
#include "tests/bench/measure.h"

namespace deeppcr::bench {

GradientSubject::GradientSubject(std::shared_ptr<const LoadedModel> model)
    : model_(std::move(model)), system_(model_->Find()) {
  const int64_t dim = info().state_dim, steps = info().num_layers, outputs = info().output_dim;
  outputs_.resize(outputs);
  states_.resize((steps + 1) * dim);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  of_outputs_.resize(outputs);
  for (float& value : of_outputs_) value = normal(random);
  of_final_.resize(dim * dim);
  for (int64_t i = 0; i < dim; ++i) of_final_[i * dim + i] = 1;
  gradient_.resize(info().generates() ? dim : info().input_dim);
  jacobian_.resize(dim * dim);
  deltas_.resize(steps * dim);
  encode_delta_.resize(dim);
  for (const TensorShape& parameter : info().parameters) {
    int64_t size = 1;
    for (const int64_t extent : parameter.extents) size *= extent;
    by_parameters_.emplace_back(size);
  }
}

absl::StatusOr<std::unique_ptr<GradientSubject>> GradientSubject::Load(
    const Engine& engine, const std::string& directory, std::span<const float> input) {
  DEEPPCR_ASSIGN_OR_RETURN(auto model, engine.LoadModel(directory, nullptr, nullptr));
  std::unique_ptr<GradientSubject> subject(new GradientSubject(std::move(model)));
  if (!subject->info().generates())
    subject->input_.assign(input.begin(), input.begin() + subject->info().input_dim);
  DEEPPCR_ASSIGN_OR_RETURN(subject->sequential_,
                           subject->system_->Resolve({.solver = "sequential"}, 1));
  DEEPPCR_RETURN_IF_ERROR(subject->Forward(true));
  return subject;
}

SampleInputs GradientSubject::Samples() const {
  return {.num_samples = 1, .inputs = input_, .seed = kSeed, .first_sample = 0};
}

absl::Status GradientSubject::Forward(bool keeps_states) {
  RunItem item = {.samples = Samples(),
                  .outputs = outputs_,
                  .trajectory = keeps_states ? std::span<float>(states_) : std::span<float>(),
                  .reports = {&forward_report_, 1}};
  return system_->Run(sequential_, {&item, 1}, nullptr);
}

absl::Status GradientSubject::GoBack(BackwardWay way, BackwardItem item) {
  item.samples = Samples();
  item.states = states_;
  item.reports = {&report_, 1};
  DEEPPCR_ASSIGN_OR_RETURN(
      const BackwardOptions options,
      ResolveBackward({.way = way}, *system_->backward_limits(), info().num_layers));
  DEEPPCR_RETURN_IF_ERROR(system_->GoBack(options, {&item, 1}));
  return JudgeReports(item.reports);
}

absl::Status GradientSubject::Back(BackwardWay way) {
  BackwardItem item = {.of_outputs = of_outputs_};
  (info().generates() ? item.initial : item.inputs) = gradient_;
  return GoBack(way, item);
}

absl::Status GradientSubject::BackToParameters() {
  BackwardItem item = {.of_outputs = of_outputs_};
  (info().generates() ? item.initial : item.inputs) = gradient_;
  const bool layers = info().parameter_form == ParameterForm::kLayers;
  (layers ? item.deltas : item.state_cotangents) = deltas_;
  if (info().has_input_layer) item.encode_deltas = encode_delta_;
  DEEPPCR_RETURN_IF_ERROR(GoBack(BackwardWay::kSequential, item));
  std::vector<float*> sums;
  for (std::vector<float>& tensor : by_parameters_) {
    std::ranges::fill(tensor, 0.0F);
    sums.push_back(tensor.data());
  }
  // The output layer has no activation.
  const ParameterSample sample = {.inputs = input_.data(),
                                  .states = states_.data(),
                                  .deltas = layers ? deltas_.data() : nullptr,
                                  .state_cotangents = layers ? nullptr : deltas_.data(),
                                  .encode_delta = encode_delta_.data(),
                                  .decode_delta = of_outputs_.data()};
  return system_->AddParameterGradients({&sample, 1}, sums, nullptr, [](double) {});
}

std::span<const float> GradientSubject::gradient_by(std::string_view parameter) const {
  for (size_t i = 0; i < by_parameters_.size(); ++i)
    if (info().parameters[i].name == parameter) return by_parameters_[i];
  return {};
}

absl::Status GradientSubject::Jacobian() {
  return GoBack(BackwardWay::kSequential,
                {.columns = info().state_dim, .of_final = of_final_, .initial = jacobian_});
}

void GradientSubject::TakeStatesOf(const GradientSubject& other) {
  states_ = other.states_;
  of_outputs_ = other.of_outputs_;
}

}  // namespace deeppcr::bench
