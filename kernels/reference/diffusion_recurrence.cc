// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/problem/philox.h"
#include "kernels/program/program.h"
#include "kernels/reference/diffusion_ops.h"
#include "kernels/reference/program_ops.h"
#include "kernels/reference/recurrence.h"

namespace deeppcr::reference {
namespace {

// Largest number of denoiser evaluations of a coarse trajectory.
constexpr int64_t kCoarseEvaluations = 16;

// A reverse process with a denoiser of either kind: the functions of diffusion_ops.h and
// program_ops.h are those of the spec.
template <class Spec>
class DiffusionFamily final : public Family {
 public:
  explicit DiffusionFamily(const Spec& spec) : spec_(spec) {
    shape = ShapeOf(spec);
    steps_.assign(spec.steps.begin(), spec.steps.end());
    spec_.steps = steps_;
    OwnNetwork(&spec_);
    decoder_.assign(spec.decoder.begin(), spec.decoder.end());
    for (DenseSpec& layer : decoder_) Own(&layer);
    spec_.decoder = decoder_;
  }
  std::unique_ptr<Recurrence> Encode(const SampleInput& input) const override;
  std::vector<double> Decode(const std::vector<double>& z) const override {
    return reference::Decode(spec_, std::span(z).first(shape.sample_dim()));
  }
  std::vector<double> DecodeJacobian(const std::vector<double>& z) const override {
    return reference::DecodeJacobian(spec_, std::span(z).first(shape.sample_dim()));
  }
  double OutputAmplification(const std::vector<double>& z) const override;
  int64_t memory_bytes() const override {
    size_t bytes = steps_.size() * sizeof(ReverseStep) + time_embedding_.size() * sizeof(double);
    for (const std::vector<float>& numbers : numbers_) bytes += numbers.size() * sizeof(float);
    return static_cast<int64_t>(bytes);
  }

 private:
  // Copies the numbers of a span and points the span to the copy, which stays where it is when
  // numbers_ grows.
  void Own(std::span<const float>* numbers) {
    numbers_.emplace_back(numbers->begin(), numbers->end());
    *numbers = numbers_.back();
  }
  void Own(DenseSpec* layer) {
    Own(&layer->weight);
    Own(&layer->bias);
  }
  void OwnNetwork(DiffusionSpec* spec) {
    time_embedding_.assign(spec->time_embedding.begin(), spec->time_embedding.end());
    spec->time_embedding = time_embedding_;
    Own(&spec->class_embedding);
    Own(&spec->condition);
    DenoiserSpec* net = &spec->denoiser;
    for (DenseSpec* layer : {&net->input, &net->output, &net->modulation}) Own(layer);
    for (auto* numbers : {&net->first_weight, &net->first_bias, &net->second_weight,
                          &net->second_bias, &net->norm_weight, &net->norm_bias})
      Own(numbers);
  }
  void OwnNetwork(DiffusionProgramSpec* spec) {
    program_ = *spec->program;
    spec->program = &program_;
  }

  Spec spec_;
  program::Program program_;
  std::vector<ReverseStep> steps_;
  std::vector<double> time_embedding_;
  std::vector<DenseSpec> decoder_;
  std::vector<std::vector<float>> numbers_;
};

// Noise of `step`: the row that the caller gave, or drawn noise.
std::vector<float> NoiseOf(const SampleInput& input, const float* given, uint32_t step,
                           int64_t dim) {
  if (given != nullptr) return {given, given + dim};
  std::vector<float> noise(dim);
  FillNormals(input.seed, input.sample, step, dim, noise.data());
  return noise;
}

template <class Spec>
class DiffusionRecurrence final : public Recurrence {
 public:
  DiffusionRecurrence(const Spec& spec, const SampleInput& input)
      : spec_(spec),
        inputs_(input.inputs, input.inputs + spec.input_dim()),
        label_(input.label),
        condition_(Condition(spec, input.inputs, input.label)) {
    const int64_t dim = spec.state_dim;
    const std::vector<float> z0 = NoiseOf(input, input.initial_noise, kInitialNoiseStep, dim);
    for (const float noise : z0) initial_.push_back(spec.initial_scale * noise);  // in float32
    if (spec.form.carries) initial_.resize(2 * dim);
    for (int64_t i = 0; i < spec.num_steps(); ++i) {
      const float* given = input.step_noise == nullptr ? nullptr : input.step_noise + i * dim;
      noise_.push_back(NoiseOf(input, given, static_cast<uint32_t>(i), dim));
    }
  }
  std::vector<double> Initial() const override { return initial_; }
  std::vector<double> Step(int64_t l, const std::vector<double>& z) const override {
    return reference::Step(spec_, l - 1, condition_, noise_[l - 1], z);
  }
  std::vector<double> StepJacobian(int64_t l, const std::vector<double>& z) const override {
    return reference::StepJacobian(spec_, l - 1, condition_, z, noise_[l - 1]);
  }
  std::vector<double> StepByInputs(int64_t l, const std::vector<double>& z) const override {
    if (inputs_.empty()) return {};
    return reference::StepByInputs(spec_, l - 1, inputs_.data(), label_, z, noise_[l - 1]);
  }
  std::vector<double> NoiseFactors(int64_t l, const std::vector<double>& z) const override {
    return StepByNoise(spec_, l - 1, condition_, z);
  }
  double InitialFactor() const override { return spec_.initial_scale; }
  std::vector<std::vector<double>> CoarseTrajectory(PassCount* count) const override;

 private:
  // What a step takes from the denoiser: the denoised samples before they are clipped, and the
  // scales of the noise.
  struct Said {
    std::vector<double> raw, scales;
  };

  Said SaidAt(int64_t i, const std::vector<double>& state) const {
    const ReverseStep& step = spec_.steps[i];
    const std::vector<double> m = Denoise(spec_, i, condition_, ForDenoiser(spec_, state));
    Said said;
    for (int64_t k = 0; k < spec_.state_dim; ++k) {
      said.raw.push_back(RawDenoised(step, state[k], m[k]));
      const NoiseScale kind = spec_.form.noise_scale;
      said.scales.push_back(
          NoiseScaleAt(kind, step, kind == NoiseScale::kFixed ? 0 : m[spec_.state_dim + k]));
    }
    return said;
  }
  // A named denoiser reads z, a program the whole state.
  static std::vector<double> ForDenoiser(const DiffusionSpec& spec,
                                         const std::vector<double>& state) {
    return {state.begin(), state.begin() + spec.state_dim};
  }
  static std::vector<double> ForDenoiser(const DiffusionProgramSpec&,
                                         const std::vector<double>& state) {
    return state;
  }

  // Reverse step i with what the denoiser has said, whatever it would say.
  std::vector<double> StepTowards(int64_t i, const Said& said,
                                  const std::vector<double>& state) const {
    const ReverseStep& step = spec_.steps[i];
    const ReverseStep memory = PartOf(step, StepPart::kMemory);
    std::vector<double> next(state.size());
    for (int64_t k = 0; k < spec_.state_dim; ++k) {
      const double z = state[k], raw = said.raw[k];
      // By the model output that would have led to this denoised sample, if that depends on it.
      const auto towards = [&](const ReverseStep& by, double noise) {
        const double m = by.z_m == 0 || by.x0_m == 0 ? 0 : (raw - by.x0_z * z) / by.x0_m;
        return NextState(by, spec_.clip_range, raw, z, m, noise);
      };
      next[k] = towards(step, said.scales[k] * noise_[i][k]);
      if (!spec_.form.carries) continue;
      next[k] += step.z_c * state[spec_.state_dim + k];
      next[spec_.state_dim + k] = towards(memory, 0);
    }
    return next;
  }

  const Spec& spec_;
  const std::vector<float> inputs_;
  const int32_t label_;
  const std::vector<double> condition_;
  std::vector<double> initial_;
  std::vector<std::vector<float>> noise_;  // by reverse step
};

template <class Spec>
std::vector<std::vector<double>> DiffusionRecurrence<Spec>::CoarseTrajectory(
    PassCount* count) const {
  const int64_t stride = (spec_.num_steps() - 1) / kCoarseEvaluations + 1;
  *count = {.stages = 0, .columns = 1};
  std::vector<std::vector<double>> states = {initial_};
  Said said;
  for (int64_t i = 0; i < spec_.num_steps(); ++i) {
    if (i % stride == 0) {
      said = SaidAt(i, states.back());
      ++count->stages;
    }
    states.push_back(StepTowards(i, said, states.back()));
  }
  return states;
}

template <class Spec>
std::unique_ptr<Recurrence> DiffusionFamily<Spec>::Encode(const SampleInput& input) const {
  return std::make_unique<DiffusionRecurrence<Spec>>(spec_, input);
}

template <class Spec>
double DiffusionFamily<Spec>::OutputAmplification(const std::vector<double>& z) const {
  const std::vector<double> jacobian = DecodeJacobian(z);
  double largest = 0;
  for (int64_t i = 0; i < shape.output_dim; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < shape.sample_dim(); ++k)
      sum += std::fabs(jacobian[i * shape.sample_dim() + k]);
    if (std::isnan(sum)) return sum;
    largest = std::max(largest, sum);
  }
  return largest;
}

}  // namespace

std::unique_ptr<Family> NewFamily(const DiffusionSpec& spec) {
  return std::make_unique<DiffusionFamily<DiffusionSpec>>(spec);
}
std::unique_ptr<Family> NewFamily(const DiffusionProgramSpec& spec) {
  return std::make_unique<DiffusionFamily<DiffusionProgramSpec>>(spec);
}

}  // namespace deeppcr::reference
