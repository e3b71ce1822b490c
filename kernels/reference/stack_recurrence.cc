// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/reference/recurrence.h"
#include "kernels/reference/reference_ops.h"

namespace deeppcr::reference {
namespace {

std::span<const float> Own(std::span<const float> from, std::vector<float>* to) {
  to->assign(from.begin(), from.end());
  return *to;
}

class StackFamily final : public Family {
 public:
  explicit StackFamily(const DenseStackSpec& spec) : spec_(spec) {
    shape = ShapeOf(spec);
    spec_.weights = Own(spec.weights, &weights_);
    spec_.biases = Own(spec.biases, &biases_);
    spec_.encode.weight = Own(spec.encode.weight, &encode_weight_);
    spec_.encode.bias = Own(spec.encode.bias, &encode_bias_);
    spec_.decode.weight = Own(spec.decode.weight, &decode_weight_);
    spec_.decode.bias = Own(spec.decode.bias, &decode_bias_);
  }
  std::unique_ptr<Recurrence> Encode(const SampleInput& input) const override;
  std::vector<double> Decode(const std::vector<double>& z) const override {
    return reference::Decode(spec_, z);
  }
  std::vector<double> DecodeJacobian(const std::vector<double>& z) const override {
    return DenseJacobian(spec_.decode, z);
  }
  double OutputAmplification(const std::vector<double>&) const override {
    return LargestRowSum(spec_.decode);
  }
  int64_t memory_bytes() const override {
    return static_cast<int64_t>((weights_.size() + biases_.size()) * sizeof(float));
  }
  bool has_parameter_gradients() const override { return true; }
  absl::Status Repack(const DenseStackSpec& spec, int64_t begin, int64_t end) override;
  const DenseStackSpec& spec() const { return spec_; }

 private:
  DenseStackSpec spec_;
  std::vector<float> weights_, biases_, encode_weight_, encode_bias_, decode_weight_, decode_bias_;
};

class StackRecurrence final : public Recurrence {
 public:
  StackRecurrence(const DenseStackSpec& spec, std::vector<double> inputs)
      : spec_(spec), inputs_(std::move(inputs)), initial_(reference::Encode(spec, inputs_)) {}
  std::vector<double> Initial() const override { return initial_; }
  std::vector<double> Step(int64_t l, const std::vector<double>& z) const override {
    return reference::Step(spec_, l, z);
  }
  std::vector<double> StepJacobian(int64_t l, const std::vector<double>& z) const override {
    return reference::StepJacobian(spec_, l, z);
  }
  std::vector<double> InitialByInputs() const override {
    return DenseJacobian(spec_.encode, inputs_);
  }
  std::vector<double> Delta(int64_t l, const std::vector<double>& z,
                            const std::vector<double>& g) const override {
    std::vector<double> delta = StepSlopes(spec_, l, z);
    for (size_t i = 0; i < delta.size(); ++i) delta[i] *= g[i];
    return delta;
  }
  std::vector<double> EncodeDelta(const std::vector<double>& g) const override {
    std::vector<double> delta = DenseSlopes(spec_.encode, inputs_);
    for (size_t i = 0; i < delta.size(); ++i) delta[i] *= g[i];
    return delta;
  }
  std::vector<std::vector<double>> CoarseTrajectory(PassCount*) const override {
    return std::vector<std::vector<double>>(spec_.num_steps + 1, initial_);
  }

 private:
  const DenseStackSpec& spec_;
  const std::vector<double> inputs_, initial_;
};

std::unique_ptr<Recurrence> StackFamily::Encode(const SampleInput& input) const {
  return std::make_unique<StackRecurrence>(
      spec_, std::vector<double>(input.inputs, input.inputs + shape.input_dim));
}

std::array<size_t, 6> SizesOf(const DenseStackSpec& spec) {
  return {spec.weights.size(),     spec.biases.size(),        spec.encode.weight.size(),
          spec.encode.bias.size(), spec.decode.weight.size(), spec.decode.bias.size()};
}

// Copies elements [first, first + count) in place.
void Retake(std::span<const float> from, int64_t first, int64_t count, std::vector<float>* to) {
  if (!from.empty()) std::copy_n(from.begin() + first, count, to->begin() + first);
}

absl::Status StackFamily::Repack(const DenseStackSpec& spec, int64_t begin, int64_t end) {
  if (ShapeOf(spec) != shape || SizesOf(spec) != SizesOf(spec_))
    return absl::InvalidArgumentError("repack: expected a dense stack of the same shape");
  const int64_t dim = spec_.state_dim, layer = dim * dim;
  Retake(spec.weights, begin * layer, (end - begin) * layer, &weights_);
  Retake(spec.biases, begin * dim, (end - begin) * dim, &biases_);
  if (begin > 0) return absl::OkStatus();
  Retake(spec.encode.weight, 0, std::ssize(encode_weight_), &encode_weight_);
  Retake(spec.encode.bias, 0, std::ssize(encode_bias_), &encode_bias_);
  Retake(spec.decode.weight, 0, std::ssize(decode_weight_), &decode_weight_);
  Retake(spec.decode.bias, 0, std::ssize(decode_bias_), &decode_bias_);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Family> NewFamily(const DenseStackSpec& spec) {
  return std::make_unique<StackFamily>(spec);
}

}  // namespace deeppcr::reference
